"""Magnitude pruning with late resetting: what is left of accuracy, by how much is pruned and what is reset to when.

    python labs/pruning/study.py            # the whole grid
    python labs/pruning/study.py --quick    # 3 shares x 3 reset epochs x 2 seeds: minutes on two CPU cores
    python labs/pruning/study.py --cluster slurm    # the trainings as SLURM arrays (--logdir, --data: shared folders)

By the functions of `prune.py`, each training as a job of its own: the grid of shares and epochs, other masks, other
random weights, rounds, channels; then speed. The result is labs/pruning/study.json in --logdir.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from common.device import disable_tf32, keep_freed_memory
from common.options import StepOptions
from common.program import FULL, QUICK
from common.timing import time_training
from labs.pruning import prune
from labs.pruning.masks import HOW, apply, magnitudes, masks_of, remove, without_channels
from labs.pruning.model import DEFAULTS, network
from labs.pruning.prune import Settings, accuracy, optimizer_at, reset, train
from labs.shared import study as shared
from labs.shared.cluster import add_cluster_options, cluster_of
from labs.shared.images import DataSet
from walkthrough.compare.statistics import Mean, Ratio, mean, ratio
from walkthrough.compare.study import Claim, Measurements, Row, claim, percent
from walkthrough.results.environment import code_hash, usable_cores
from walkthrough.results.errors import InputError

import torch
from torch import nn

# Published about MobileNetV2 on ImageNet, not measured here: "weights" whose magnitudes were sorted, and quantiles.
PUBLISHED_WEIGHTS = 3_538_984
PUBLISHED_QUANTILES = {"mean": 0.140, "50 %": 0.0218, "90 %": 0.123, "99 %": 2.95, "largest": 2226.8}

SEEDS = {True: 2, False: 3}  # by --quick, as those that follow
ROUNDS = {True: 2, False: 5}  # of speeds
SHARES = {True: (0.8, 0.95, 0.99), False: (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)}
RESETS = {True: (0, 1, 2), False: (0, 1, 2, 4)}  # the last of them is late
SOME = {True: (0.95,), False: (0.8, 0.9, 0.95, 0.99)}  # shares, with other masks and weights
CHANNELS = {True: (0.9,), False: (0.5, 0.75, 0.9)}  # shares of the channels inside blocks that are taken out
IN_ROUNDS = (0.6, 0.8, 0.9, 0.95, 0.99)  # shares, one after the other

OTHER_WEIGHTS = 10_000_019  # added to a seed: the weights of another network
TIMED = 0.9  # share of the weights, or channels, that a network is timed without
NETWORKS = ("unpruned", "masked", "masks removed", "channels pruned")
LIMIT_SECONDS = 6 * 3600  # of one measurement
PROCESSES = {"cpu": 8, "cuda": 2}  # at a time, at most
JUDGED, GOOD = 95.0, 95  # % pruned, what claims are of; % right
SAME_SPEED = (0.95, 1.05)  # times the speed that count as none gained or lost
FEWEST, NO_WIDTH = 3, 1e-6  # seeds, and points, for a claim to be decided

BySeed = Mapping[int, float]  # accuracy, 0..1
Tables = Mapping[str, Sequence[Row]]


class Cell(NamedTuple):
    """A training of a pruned network: the share (0..1) that is gone, the epoch that weights are reset to, what goes.

    how: one of `HOW`, "channels", "reinitialised" or "rounds"; "untrained": not trained again. begin: the epoch that
    training begins at; None: `epoch`.
    """

    share: float
    epoch: int = 0
    how: str = HOW[0]
    begin: int | None = None


UNPRUNED = Cell(0.0, 0, "unpruned")


def variants(late: int) -> dict[str, Cell]:
    """What the study compares at the same share, which is not in these cells. late: the epoch of late resetting."""
    return {
        "initialisation": Cell(0),
        "late": Cell(0, late),
        "late, all epochs": Cell(0, late, begin=0),
        "initialisation, late beginning": Cell(0, 0, begin=late),
        "other random weights": Cell(0, 0, "reinitialised"),
        "late, global masks": Cell(0, late, "global"),
        "late, random masks": Cell(0, late, "random"),
        "initialisation, in rounds": Cell(0, 0, "rounds"),
        "late, in rounds": Cell(0, late, "rounds"),
    }


COMPARED = {  # {what is claimed: one of `variants`, over the other}; without a claim: ""
    "late-reset": ("Late resetting beats resetting to the initialisation", "late", "initialisation"),
    "late-weights": (
        "Late weights beat the initialisation, both trained in full",
        "late, all epochs",
        "initialisation",
    ),
    "late-beginning": ("", "initialisation, late beginning", "initialisation"),
    "initialisation": ("The initialisation beats other random weights", "initialisation", "other random weights"),
    "late-reinitialised": ("Late resetting beats other random weights", "late", "other random weights"),
    "global-layer-wise": ("A threshold over all layers beats one for each layer", "late, global masks", "late"),
    "layer-wise-random": ("Layer-wise masks beat random ones", "late", "late, random masks"),
    "rounds": ("With late resetting, pruning in rounds beats one shot", "late, in rounds", "late"),
    "rounds-initialisation": ("", "initialisation, in rounds", "initialisation"),
}


# What is measured


def setup(options: StepOptions, seed: int, threads: int | None = 1) -> tuple[DataSet, Settings]:
    """The data on the device, and how they are trained on.

    threads: on a CPU, one where it is one of several processes; None for all.
    """
    disable_tf32()
    if options.device == "cpu":
        keep_freed_memory()
        torch.set_num_threads(threads or usable_cores())
    data, settings = prune.data_of(options)
    return data, replace(settings, seed=options.seed + seed)


def new(data: DataSet, settings: Settings, other: int = 0) -> nn.Module:
    """The network of the settings' seed. other: added to it."""
    torch.manual_seed(settings.seed + other)
    return network(settings.model, data.channels, data.classes).to(data.train.images.device)


def weights_in(options: StepOptions, settings: Settings) -> Path:
    """The folder of the unpruned training, which many processes, or the nodes of a cluster, read."""
    what = f"{settings} {options.device} {torch.__version__} {code_hash('labs/pruning/*.py')}"
    return options.logdir / "weights" / hashlib.sha256(what.encode()).hexdigest()[:12]


@shared.measurement
def trained(options: StepOptions, seed: int) -> dict[str, Any]:
    """The unpruned training from a seed, whose weights are kept, and what its weights' magnitudes are.

    accuracy: 0..1. magnitudes: {of what: {quantile: value}}, see `masks.magnitudes`; counts: of those. misplaced:
    [[%, the % of the parameters that are below the threshold of so many of the pooled numbers]]. untrained: [[share,
    accuracy of the weights at the end, masked]].
    """
    data, settings = setup(options, seed)
    model, folder = new(data, settings), weights_in(options, settings)
    train(model, optimizer_at(model, settings), data, settings, folder, keep=RESETS[options.quick])
    states = prune.read_trained(folder)
    values = {of: magnitudes(model, of) for of in ("weights", "parameters", "pooled")}
    shares = SHARES[options.quick]
    masked = [reset(new(data, settings), states, share, max(states), HOW[0], settings)[0] for share in shares]
    return {
        "accuracy": accuracy(model, data),
        "magnitudes": {of: quantiles(numbers) for of, numbers in values.items()},
        "counts": {of: len(numbers) for of, numbers in values.items()},
        "misplaced": [list(row.values())[::3] for row in prune.count_rows(model, shares)],
        "untrained": [[share, accuracy(own, data)] for share, own in zip(shares, masked, strict=True)],
    }


def quantiles(values: torch.Tensor) -> dict[str, float]:
    """Of magnitudes: mean, quantiles and the largest."""
    of = {in_percent(share): prune.threshold(values, share) for share in (0.5, 0.6, 0.9, 0.99)}
    return {"mean": values.mean().item(), **of, "largest": values.max().item()}


@shared.measurement
def retrained(options: StepOptions, seed: int, share: float, epoch: int, how: str, begin: int | None) -> dict[str, Any]:
    """Prune the weights as they are at the end, reset the others to an epoch, and train; see `Cell`.

    accuracy: 0..1. parameters: of the network that is left.
    """
    data, settings = setup(options, seed)
    states = prune.read_trained(weights_in(options, settings))
    if how == "reinitialised":
        states, how = {**states, epoch: {"model": new(data, settings, OTHER_WEIGHTS).state_dict()}}, HOW[0]
    model, optimizer = reset(new(data, settings), states, share, epoch, how, settings)
    train(model, optimizer, data, settings, begin=epoch if begin is None else begin)
    return {"accuracy": accuracy(model, data), "parameters": sum(of.numel() for of in model.parameters())}


@shared.measurement
def iterated(options: StepOptions, seed: int, epoch: int) -> list[tuple[float, float]]:
    """Prune in rounds, each from the weights that the one before ends with, reset and train again after each.

    (share, accuracy 0..1) for each of `IN_ROUNDS`.
    """
    data, settings = setup(options, seed)
    states, rows = prune.read_trained(weights_in(options, settings)), []
    for share in IN_ROUNDS:
        model, optimizer = reset(new(data, settings), states, share, epoch, HOW[0], settings)
        train(model, optimizer, data, settings, begin=epoch)
        rows.append((share, accuracy(model, data)))
        remove(model)
        states = {**states, max(states): {"model": model.state_dict()}}
    return rows


@shared.measurement
def speeds(options: StepOptions, run: int) -> dict[str, dict[str, list[float]]]:
    """{network: {"inference", "training": images/s of each window}} of `NETWORKS`, not trained, with all threads.

    run: the number of the round. A network whose masks are removed is timed in inference alone: its zeros are
    parameters like others, and a training step would fill them.
    """
    data, settings = setup(options, run, threads=None)
    device, plan = data.train.images.device, QUICK if options.quick else FULL
    batch = data.prepared(data.train.chosen(torch.arange(settings.batch_size)), device)
    rows: dict[str, dict[str, list[float]]] = {name: {} for name in NETWORKS}
    for name in NETWORKS if run % 2 else NETWORKS[::-1]:
        model = timed_network(name, new(data, settings))
        steps = {"inference": partial(inference, model)}
        if name != "masks removed":
            steps["training"] = partial(prune.train_step, model, optimizer_at(model, settings))
        for what, step in steps.items():
            model.train(what == "training")
            rows[name][what] = time_training(repeat(batch), step, device, plan).samples_per_second.windows
    return rows


def timed_network(name: str, model: nn.Module) -> nn.Module:
    """One of `NETWORKS`. model: the one without anything pruned."""
    if name == "channels pruned":
        return without_channels(model, TIMED)
    if name != "unpruned":
        apply(model, masks_of(model, TIMED))
    if name == "masks removed":
        remove(model)
    return model


@torch.no_grad()
def inference(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(images)[0, 0]


# Tables


def points(of: BySeed) -> Mean | None:
    """The mean accuracy in %; None of no seed."""
    return percent(list(of.values())) if of else None


def more(one: BySeed, other: BySeed) -> Mean | None:
    """How many percentage points more the first has: paired by seed; None without a pair."""
    pairs = [100 * (one[seed] - other[seed]) for seed in one if seed in other]
    if not pairs:
        return None
    paired = mean(pairs)
    return replace(paired, mean=round(paired.mean, 9) + 0.0)  # no -3.7e-15, and no -0


def in_percent(share: float) -> str:
    """For people: "95 %"."""
    return f"{100 * share:.3g} %"


def count_rows(counts: Mapping[str, int]) -> list[Row]:
    """What is counted as weights: of the published network, and of ours. counts: see `trained`."""
    theirs = {name: len(magnitudes(network("mobilenet_v2", 3, 1000), name)) for name in counts}
    return [
        {
            "network": name,
            "weights that can be pruned": of["weights"],
            "parameters": of["parameters"],
            "running statistics": of["pooled"] - of["parameters"],
            "parameters and statistics": of["pooled"],
            "published as weights": said,
        }
        for name, of, said in (("MobileNetV2", theirs, PUBLISHED_WEIGHTS), ("ours", counts, None))
    ]


def quantile_rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Magnitudes by quantile, means over seeds: as published, and ours with running statistics and without."""
    ours = {"pooled": "pooled", "parameters": "parameters", "weights": "weights that can be pruned"}
    return [
        {"of the magnitudes": name, "published, pooled": PUBLISHED_QUANTILES.get(name)}
        | {f"ours, {text}": mean([run["magnitudes"][of][name] for run in runs]).mean for of, text in ours.items()}
        for name in runs[0]["magnitudes"]["weights"]
    ]


def misplaced_rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What a threshold from pooled numbers really prunes."""
    by_seed = [dict(map(tuple, run["misplaced"])) for run in runs]
    return [{"asked for %": asked, "of the parameters %": mean([of[asked] for of in by_seed])} for asked in by_seed[0]]


def grid_rows(cells: Mapping[Cell, BySeed], quick: bool) -> list[Row]:
    """A row for each share: accuracy by the epoch that weights are reset to."""
    columns = {"not trained again": Cell(0, 0, "untrained")}
    columns |= {f"reset to epoch {epoch}": Cell(0, epoch) for epoch in RESETS[quick]}
    columns["other random weights"] = Cell(0, 0, "reinitialised")
    return [
        {"pruned %": 100 * share}
        | {name: points(cells.get(own._replace(share=share), {})) for name, own in columns.items()}
        | {"unpruned": points(cells[UNPRUNED])}
        for share in SHARES[quick]
    ]


def variant_rows(cells: Mapping[Cell, BySeed], late: int, shares: Sequence[float]) -> list[Row]:
    """Accuracy of each of `variants`, a column for each share."""
    return [
        {"accuracy": name} | {in_percent(share): points(cells.get(own._replace(share=share), {})) for share in shares}
        for name, own in variants(late).items()
    ]


def difference_rows(cells: Mapping[Cell, BySeed], late: int, shares: Sequence[float]) -> list[Row]:
    """Each of `COMPARED`, paired by seed, a column for each share."""

    def of(name: str, share: float) -> BySeed:
        return cells.get(variants(late)[name]._replace(share=share), {})

    return [
        {"points": f"{one} - {other}"} | {in_percent(share): more(of(one, share), of(other, share)) for share in shares}
        for _, one, other in COMPARED.values()
    ]


def speed_rows(rounds: Mapping[int, Mapping[str, Mapping[str, list[float]]]]) -> list[Row]:
    """What masks and fewer channels do to speed, over the unpruned network."""

    def times(name: str, what: str) -> Ratio | None:
        own, plain = (
            {n: round[of][what] for n, round in rounds.items() if what in round[of]} for of in (name, NETWORKS[0])
        )
        return ratio(own, plain) if own else None

    return [
        {
            "network": f"{name}, {in_percent(TIMED)}",
            "inference, times as fast": times(name, "inference"),
            "training, times as fast": times(name, "training"),
        }
        for name in NETWORKS[1:]
    ]


# What follows


def claims(tables: Tables, on_gpu: bool) -> list[Claim]:
    """What was published or expected, and what came of it; of the tables as stored."""
    cell = partial(shared.cell, tables)
    timed, at = in_percent(TIMED), f"{JUDGED:g} % pruned (points more)"
    statistics = cell("counts", "running statistics", network="MobileNetV2")
    text = "All numbers that were sorted are weights (% of them that are running statistics)"
    share = 100 * statistics / PUBLISHED_WEIGHTS
    result = [claim("counted", text, share, below=0.001, published=f"{PUBLISHED_WEIGHTS:,} weights")]
    text = f"Of {JUDGED:g} % asked for, a threshold with statistics prunes more (% of the parameters)"
    value = cell("misplaced", "of the parameters %", **{"asked for %": JUDGED})
    result.append(claim("pooled", text, value, above=JUDGED))
    text = f"A network without {timed} of its weights, trained again, has a test accuracy of at least {GOOD} % (%)"
    result.append(claim("accurate", text, cell("variants", timed, accuracy="initialisation"), above=GOOD))
    for id, (text, one, other) in COMPARED.items():
        value = cell("differences", f"{JUDGED:g} %", points=f"{one} - {other}")
        result += [of_seeds(id, f"{text}, {at}", value)] if text else []

    def speed(name: str) -> Any:
        return cell("speed", "inference, times as fast", network=f"{name}, {timed}")

    for name in ("masked", "masks removed"):
        text = f"Inference is as fast with {timed} of the weights zero, {name} (times as fast)"
        result.append(claim(name.replace(" ", "-"), text, speed(name), within=SAME_SPEED))
    text = f"Inference without {timed} of the channels inside the blocks is faster (times as fast)"
    result.append(claim("channels", text, speed("channels pruned"), above=1))
    text = "Late resetting beats the initialisation for MobileNetV2 on ImageNet (points more)"
    return [*result, claim("late-imagenet", text, None, needs="a GPU and ImageNet: prune.py --trained")]


def of_seeds(id: str, text: str, value: Mean | None) -> Claim:
    """A claim that a mean over seeds is above 0: not decided of too few, or where all seeds differ by the same."""
    low, high = (value.low, value.high) if value else (None, None)
    too_few = value and (low is None or high is None or value.count < FEWEST or high - low < NO_WIDTH)
    return claim(id, text, value, above=0, more="three seeds that differ" if too_few else None)


# The study


class Study(shared.Measured):
    """The measurements."""

    def __init__(self, lab: Measurements) -> None:
        super().__init__(lab)
        self.seeds, self.late = range(SEEDS[self.quick]), RESETS[self.quick][-1]
        self.processes = min(usable_cores(), PROCESSES[lab.options.device.partition(":")[0]])

    def tables(self) -> dict[str, list[Row]]:
        """Raises InputError where no unpruned network could be trained."""
        quick = self.quick
        timed = self.rounds(ROUNDS[quick], {"speeds": partial(self.one, "speeds")})
        [trained] = self.each("trained", [{}])  # first, once for each seed: the others read its weights
        if not trained:
            raise InputError(f"no unpruned network was trained: {'; '.join(self.notes)}")
        runs, late, (cells, parameters) = list(trained.values()), self.late, self.cells(trained)
        grid, channels = grid_rows(cells, quick), {share: Cell(share, late, "channels") for share in CHANNELS[quick]}
        return {
            "counts": count_rows(runs[0]["counts"]),
            "quantiles": quantile_rows(runs),
            "misplaced": misplaced_rows(runs),
            "grid": grid,
            "variants": variant_rows(cells, late, SOME[quick]),
            "differences": difference_rows(cells, late, SOME[quick]),
            "channels": [
                {
                    "channels gone %": 100 * share,
                    "parameters left": parameters.get(own),
                    "accuracy %": points(cells[own]),
                    "over unpruned, points": more(cells[own], cells[UNPRUNED]),
                }
                for share, own in channels.items()
            ],
            "speed": speed_rows(timed["speeds"]) if timed else [],
            "pruned": [  # for the figure
                {"variant": name, "pruned %": row["pruned %"], "accuracy %": row[name]}
                for name in list(grid[0])[2:]
                for row in grid
                if row[name]
            ],
        }

    def cells(self, trained: Mapping[int, Any]) -> tuple[dict[Cell, dict[int, float]], dict[Cell, int]]:
        """Accuracies (0..1) by seed of all that is trained with fewer weights, and the parameters that are left."""
        quick, own = self.quick, variants(self.late).values()
        grid = [Cell(share, epoch) for share in SHARES[quick] for epoch in RESETS[quick]]
        some = [cell._replace(share=share) for cell in own if cell.how != "rounds" for share in SOME[quick]]
        channels = [Cell(share, self.late, "channels") for share in CHANNELS[quick]]
        wanted = list(dict.fromkeys([*grid, *some, *channels]))
        answers = dict(zip(wanted, self.each("retrained", [cell._asdict() for cell in wanted]), strict=True))
        result = {cell: {seed: one["accuracy"] for seed, one in by.items()} for cell, by in answers.items()}
        result[UNPRUNED] = {seed: run["accuracy"] for seed, run in trained.items()}
        epochs = [] if quick else [0, self.late]
        rounds = zip(epochs, self.each("iterated", [{"epoch": epoch} for epoch in epochs]), strict=True)
        several = [("rounds", epoch, seed, rows) for epoch, by in rounds for seed, rows in by.items()]
        several += [("untrained", 0, seed, run["untrained"]) for seed, run in trained.items()]
        for how, epoch, seed, rows in several:
            for share, right in rows:
                result.setdefault(Cell(share, epoch, how), {})[seed] = right
        return result, {cell: one["parameters"] for cell, by in answers.items() for one in by.values()}

    def each(self, what: str, settings: Sequence[dict[str, Any]]) -> list[dict[int, Any]]:
        """{seed: answer} for each of these settings: jobs of their own, several at a time; a note of failed ones."""
        jobs = [{"seed": seed, **own} for own in settings for seed in self.seeds]
        answers = iter(self.lab.several(what, jobs, self.processes))
        by_seed = [{seed: answer for seed in self.seeds if (answer := next(answers)) is not None} for _ in settings]
        if failed := len(jobs) - sum(map(len, by_seed)):
            self.note(f"{failed} of {len(jobs)} trainings ({what}) failed and are left out")
        return by_seed


def main() -> None:
    options, args = shared.lab_options(__doc__, "pruning", DEFAULTS, add_more=add_cluster_options)
    cluster = cluster_of(args, options.logdir / "jobs", gpus=int(shared.on_gpu(options)))
    data, settings = prune.data_of(options)
    network(options.model, data.channels, data.classes)  # InputError for an unknown one
    options = replace(options, download=False)
    study = Study(shared.measurements("pruning", options, limit_seconds=LIMIT_SECONDS, jobs=cluster))
    tables = study.tables()
    notes = [
        f"{len(data.train)} training and {len(data.test)} test images of {data.source}, {options.model}, "
        f"{settings.epochs} epochs, {len(study.seeds)} seeds; late: epoch {study.late}",
        "intervals are of seeds: a network, its batches and its masks; the test images are the same for all",
        *study.notes,
    ]
    shared.report(study.lab.study(tables, claims(shared.as_stored(tables), shared.on_gpu(options)), notes), options)


if __name__ == "__main__":
    shared.program(main, claims)
