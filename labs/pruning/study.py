"""Magnitude pruning with late resetting: what is left of accuracy, by how much is pruned and what is reset to when.

    python labs/pruning/study.py            # the whole grid
    python labs/pruning/study.py --quick    # 3 sparsities x 3 reset epochs x 2 seeds: minutes on two CPU cores
    python labs/pruning/study.py --cluster slurm    # the trainings as SLURM arrays (--logdir, --data: shared folders)

Trains the unpruned network from several seeds and keeps its weights at initialisation, at early epochs and at the end;
masks it by magnitude, resets what stays, and trains again, each as a job of its own. Then: other masks, other random
weights, pruning in rounds, channels, speed, and jobs one after the other against several at a time. The result is
labs/pruning/study.json in --logdir.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.options import StepOptions
from labs.pruning import tables
from labs.pruning.masks import HOW
from labs.pruning.model import DEFAULTS, width_of
from labs.pruning.plans import CHANNELS, OTHER_SPARSITIES, RESETS, SPARSITIES, Plan
from labs.pruning.training import data_of
from labs.shared.study import Measured, grid_options, measurements, report
from walkthrough.compare.study import Claim, Measurements, Row
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

import torch

SEEDS = {True: 2, False: 3}  # by --quick
ROUNDS = {True: 2, False: 5}  # of speeds, and of trainings one after the other and side by side
JOBS = 4  # trainings that are timed, at least
LIMIT_SECONDS = 6 * 3600  # of one measurement
PROCESSES = {"cpu": 8, "cuda": 2}  # at a time, at most


def main() -> None:
    options, cluster = grid_options(__doc__, "pruning", DEFAULTS)
    width_of(options.model)
    data, plan = data_of(options)
    options = replace(options, download=False)
    study = Study(
        measurements("pruning", options, Path(__file__).with_name("measure.py"), LIMIT_SECONDS, cluster), plan
    )
    in_order, claims = study.measured()
    sizes = f"{len(data.train)} training and {len(data.test)} test images of {data.source}, {options.model}"
    notes = [
        f"{sizes}, {plan.epochs} epochs, {len(study.seeds)} seeds",
        "intervals are of seeds: a network, its batches and its masks; the test images are the same for all",
        *notes_of(options),
        *study.notes,
    ]
    report(study.lab.study(in_order, claims, notes), options)


class Study(Measured):
    """The measurements."""

    def __init__(self, lab: Measurements, plan: Plan) -> None:
        super().__init__(lab)
        self.iterations = plan.rounds
        self.resets = list(RESETS.get(self.quick, plan.resets))  # the last of them is late
        self.seeds = range(SEEDS[self.quick])
        self.processes = min(usable_cores(), PROCESSES[lab.options.device.partition(":")[0]])

    def measured(self) -> tuple[dict[str, list[Row]], list[Claim]]:
        """Tables and claims. Raises InputError where no unpruned network could be trained."""
        rounds = range(1, ROUNDS[self.quick] + 1)
        speeds = [found for run in rounds if (found := self.one("speeds", run=run))]
        products = [found for run in rounds if (found := self.product(run))]
        count, jobs = max(JOBS, self.processes), {at_a_time: [] for at_a_time in sorted({1, self.processes})}
        for run in rounds:
            done = {one: self.one("jobs", at_a_time=one, count=count, run=run) for one in jobs}
            if all(done.values()):
                for at_a_time, found in done.items():
                    jobs[at_a_time].append(found["seconds"])
        [trained] = self.each("trained", [{}])  # first, once for each seed: the others read its weights
        if not trained:
            raise InputError(f"no unpruned network was trained: {'; '.join(self.notes)}")
        of, parameters = self.accuracies(trained)
        runs = list(trained.values())
        in_order = {
            "counts": tables.count_rows(runs[0]["counts"]),
            "quantiles": tables.quantile_rows(runs),
            "misplaced": tables.misplaced_rows(runs),
            "grid": tables.grid_rows(of),
            "resetting": tables.reset_rows(of),
            "schedule": tables.schedule_rows(of),
            "masks": tables.mask_rows(of, runs),
            "rounds": tables.iterated_rows(of),
            "channels": tables.channel_rows(of, parameters),
            "speed": tables.speed_rows(speeds, of) if speeds else [],
            "two_of_four": tables.product_rows(products) if products else [],
            "processes": tables.job_rows(jobs, count),
            "pruned": tables.curve_rows(of),
        }
        return in_order, tables.claims(of, runs, speeds, jobs)

    def accuracies(self, trained: dict[int, Any]) -> tuple[tables.Accuracies, dict[float, float]]:
        """All trainings with fewer weights, and {share of channels: parameters that are left}."""
        late, some, shares = self.resets[-1], OTHER_SPARSITIES[self.quick], CHANNELS[self.quick]
        cells = [(sparsity, reset) for sparsity in SPARSITIES[self.quick] for reset in self.resets]
        others = [(how, sparsity) for how in HOW[1:] for sparsity in some]
        grid = self.each("retrained", [{"sparsity": sparsity, "reset": reset} for sparsity, reset in cells])
        by_how = self.each("retrained", [{"sparsity": one, "reset": late, "how": how} for how, one in others])
        swapped = [(sparsity, late, 0) for sparsity in some] + [(sparsity, 0, late) for sparsity in some]
        by_schedule = self.each(
            "retrained", [{"sparsity": one, "reset": reset, "begin": begin} for one, reset, begin in swapped]
        )
        again = self.each("retrained", [{"sparsity": one, "reset": 0, "reinitialised": True} for one in some])
        in_rounds = [] if self.quick else [0, late]
        iterated = self.each("iterated", [{"reset": reset} for reset in in_rounds])
        fewer = self.each("channel_pruned", [{"share": share, "reset": late} for share in shares])
        by_round: dict[tables.Cell, dict[int, float]] = {}
        for reset, by_seed in zip(in_rounds, iterated, strict=True):
            for seed, rows in by_seed.items():
                for row in rows:
                    by_round.setdefault((row["sparsity"], reset), {})[seed] = row["accuracy"]
        as_it_is: dict[float, dict[int, float]] = {}
        for seed, run in trained.items():
            for sparsity, accuracy in run["without_retraining"]:
                as_it_is.setdefault(sparsity, {})[seed] = accuracy
        of = tables.Accuracies(
            unpruned=_accuracy(trained),
            without_retraining=as_it_is,
            grid=dict(zip(cells, map(_accuracy, grid), strict=True)),
            swapped=dict(zip(swapped, map(_accuracy, by_schedule), strict=True)),
            others=dict(zip(others, map(_accuracy, by_how), strict=True)),
            reinitialised=dict(zip(some, map(_accuracy, again), strict=True)),
            iterated=by_round,
            channel_pruned=dict(zip(shares, map(_accuracy, fewer), strict=True)),
            late=late,
        )
        parameters = {
            share: answer["parameters"]
            for share, by_seed in zip(shares, fewer, strict=True)
            for answer in by_seed.values()
        }
        return of, parameters

    def product(self, run: int) -> Any:
        """A round of products with two weights of four; None where no Tensor Core skips the others."""
        return self.one("semi_structured", run=run) if has_sparse_cores(self.lab.options) else None

    def each(self, what: str, settings: Sequence[dict[str, Any]]) -> list[dict[int, Any]]:
        """{seed: answer} for each of these settings: jobs of their own, several at a time; a note of failed ones."""
        jobs = [{"seed": seed, "resets": self.resets, **own} for own in settings for seed in self.seeds]
        answers = self.lab.several(what, jobs, self.processes)
        # What failed is tried again by itself, which says why.
        answers = [
            self.one(what, **job) if answer is None else answer for job, answer in zip(jobs, answers, strict=True)
        ]
        if failed := answers.count(None):
            self.note(f"{failed} of {len(jobs)} trainings ({what.replace('_', ' ')}) failed and are left out")
        count = len(self.seeds)
        by_seed = [zip(self.seeds, answers[at : at + count], strict=True) for at in range(0, len(answers), count)]
        return [{seed: answer for seed, answer in pairs if answer is not None} for pairs in by_seed]


def _accuracy(by_seed: dict[int, Any]) -> dict[int, float]:
    return {seed: answer["accuracy"] for seed, answer in by_seed.items()}


def notes_of(options: StepOptions) -> list[str]:
    """What this device cannot show."""
    if has_sparse_cores(options):
        return []
    return ["2:4 sparsity is not measured: it needs an NVIDIA GPU of capability 8.0 or later, which skips zeros"]


def has_sparse_cores(options: StepOptions) -> bool:
    """Whether the device's Tensor Cores skip the zeros of 2:4 sparsity."""
    if options.device == "cpu" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(options.device) >= (8, 0)


if __name__ == "__main__":
    main()
