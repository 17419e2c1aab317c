"""Input pipelines, and training on many processes: what each delivers, and what it costs.

    python labs/scale/study.py            # the whole study
    python labs/scale/study.py --quick    # minutes on two CPU cores

Makes shards offline, by Spark where it is installed; times every input pipeline by itself and under training, next to
what the model consumes; trains in one process and in several; takes apart what processes cost each other; and sweeps.
The result is labs/scale/study.json in --logdir.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.device import device_name
from common.options import StepOptions
from labs.scale import audit, tables
from labs.scale.batches import bytes_on_disk
from labs.scale.jpegs import DRAWN, Listing, image_folder, listed
from labs.scale.measure import ENGINES, PIPELINES, SHARDS
from labs.scale.model import DEFAULTS, width_of
from labs.shared.study import Measured, lab_options, measurements, report
from walkthrough.compare.study import Claim, Measurements, Row
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

import torch

OTHER_SIZE = 224  # px, besides the lab's own: the write-up's other one
ROUNDS = {True: 2, False: 5}  # of pipelines, and of scaling; by --quick
OFFLINE_ROUNDS = {True: 1, False: 3}
OTHER_SIZE_ROUNDS = {True: 0, False: 3}
EXCHANGE_ROUNDS = {True: 1, False: 3}  # of parts, accumulation and the straggler
BUCKETS_MB = {True: (0.5, None), False: (0.5, 1.0, 2.0, 25.0, None)}  # None: torch's own, 1 and then 25
PASSES = 4
DELAY_MS = 100.0  # that the straggler sleeps
SEEDS = {True: 1, False: 3}
EPOCHS = {True: 3, False: 10}
TRIALS = {True: (4, 2), False: (30, 6)}  # of the sweep, and epochs of each
MOST_PROCESSES, MOST_WORKERS = 8, 8
LIMIT_SECONDS = 6 * 3600  # of one measurement


def main() -> None:
    options = lab_options(__doc__, "scale", DEFAULTS)
    width_of(options.model)
    data = image_folder(options.data)
    train, val = listed(data), listed(data, "val")
    study = Study(measurements("scale", options, Path(__file__).with_name("measure.py"), LIMIT_SECONDS), data)
    in_order, claims = study.measured()
    notes = [*notes_of(options, train, val), *study.notes]
    report(study.lab.study(in_order, claims, notes), options)


class Study(Measured):
    """The measurements. data: the folder of JPEGs."""

    def __init__(self, lab: Measurements, data: Path) -> None:
        super().__init__(lab)
        self.data = data
        own = self.options.image_size
        self.sizes = [own] if self.quick else sorted({own, OTHER_SIZE}, key=lambda size: size != own)
        self.workers = min(usable_cores(), MOST_WORKERS)
        self.processes = most_processes(self.options.device)

    def measured(self) -> tuple[dict[str, list[Row]], list[Claim]]:
        """Tables and claims."""
        offline = self.offline()
        shards = {size: answers[0]["folder"] for (_, size), answers in reversed(offline.items())}
        by_size = self.pipelines({size: folder for size, folder in shards.items() if folder})
        self.notes += tables.refusals(by_size)
        scaled = self.several_rounds("scaled", ROUNDS, most=self.processes)
        buckets, accumulation, straggler = self.exchanges()
        trainings, sweep = self.trainings(), self.sweep()
        jpeg_bytes = sum(bytes_on_disk(self.data / part) for part in ("train", "val"))
        in_order = {
            "offline": tables.offline_rows(offline, jpeg_bytes),
            **{
                name: tables.pipeline_rows(rounds)
                for name, rounds in zip(("pipelines", "pipelines_large"), by_size.values(), strict=False)
            },
            "trained": tables.trained_rows(by_size[self.options.image_size]),
            "utilization": tables.utilization_rows(self.utilization()),
            "epochs": tables.epoch_rows(by_size, f"{device_name(self.options.device)}, {self.options.model}"),
            "scaling": tables.scaling_rows(scaled) if scaled else [],
            "buckets": tables.bucket_rows(buckets, BUCKETS_MB[self.quick]) if buckets else [],
            "accumulation": tables.accumulation_rows(accumulation, PASSES) if accumulation else [],
            "straggler": tables.straggler_rows(straggler, DELAY_MS) if straggler else [],
            "accuracy": tables.accuracy_rows(trainings),
            "sweep": tables.sweep_rows(sweep) if sweep else [],
            "trials": tables.trial_rows(sweep) if sweep else [],
            "importance": tables.importance_rows(sweep) if sweep else [],
            "curves": tables.curve_rows(trainings),
        }
        return in_order, audit.claims(by_size, scaled, accumulation, straggler)

    def offline(self) -> dict[tuple[str, int], list[Any]]:
        """{(engine, px): its rounds}, interleaved; Spark first."""
        found: dict[tuple[str, int], list[Any]] = {}
        for run in range(1, OFFLINE_ROUNDS[self.quick] + 1):
            for size in self.sizes:
                for engine in ENGINES:
                    if answer := self.one("offline", engine=engine, size=size, run=run):
                        found.setdefault((engine, size), []).append(answer)
        return found

    def pipelines(self, shards: Mapping[int, str]) -> dict[int, dict[int, Any]]:
        """{px: {round: answer}}, interleaved, the lab's own size first.

        shards: {px: their folder}; without one the program makes its own. Raises InputError where none was measured.
        """
        by_size: dict[int, dict[int, Any]] = {size: {} for size in self.sizes}
        for run in range(1, ROUNDS[self.quick] + 1):
            for size, rounds in by_size.items():
                own = size == self.options.image_size
                if not own and run > OTHER_SIZE_ROUNDS[self.quick]:
                    continue
                settings = {"shards": shards.get(size, str(self.options.data)), "workers": self.workers, "size": size}
                if answer := self.one("pipelines", **settings, with_training=own, run=run):
                    rounds[run] = answer
        if not by_size[self.options.image_size]:
            raise InputError(f"no pipeline could be measured: {'; '.join(self.notes)}")
        return {size: rounds for size, rounds in by_size.items() if rounds}

    def utilization(self) -> dict[str, Any]:
        """{program: `measure.utilization`}, of the first and the last pipeline; nothing on a CPU."""
        names = () if self.options.device == "cpu" else (PIPELINES[0], SHARDS)
        return {name: answer for name in names if (answer := self.one("utilization", name=name))}

    def exchanges(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Rounds of parts of gradients, of accumulation and of a straggler; none of them where there is one process."""
        if self.processes < 2:
            return [], [], []
        own = {"processes": self.processes}
        return (
            self.several_rounds("buckets", EXCHANGE_ROUNDS, **own, sizes_mb=list(BUCKETS_MB[self.quick])),
            self.several_rounds("accumulation", EXCHANGE_ROUNDS, **own, passes=PASSES),
            self.several_rounds("straggler", EXCHANGE_ROUNDS, **own, delay_ms=DELAY_MS),
        )

    def trainings(self) -> dict[int, list[Any]]:
        """{processes: the epochs of each seed}, of one process and of all, where neither failed."""
        found = {}
        for processes in sorted({1, self.processes}):
            by_seed = [
                self.one("trained", processes=processes, epochs=EPOCHS[self.quick], seed=seed)
                for seed in range(SEEDS[self.quick])
            ]
            if done := [epochs for epochs in by_seed if epochs]:
                found[processes] = done
        return found

    def sweep(self) -> Any:
        """What a sweep leaves; None where there was none."""
        trials, epochs = TRIALS[self.quick]
        return self.one("swept", trials=trials, epochs=epochs)

    def several_rounds(self, what: str, rounds: Mapping[bool, int], **settings: Any) -> list[Any]:
        """`one` in each round; those that could be measured."""
        answers = [self.one(what, **settings, run=run) for run in range(1, rounds[self.quick] + 1)]
        return [answer for answer in answers if answer is not None]


def most_processes(device: str) -> int:
    """How many processes train together: one for each core, or for each GPU, two on a CPU of one core.

    A power of two, so that they can share a batch.
    """
    if device == "cpu":
        count = max(2, min(usable_cores(), MOST_PROCESSES))
    else:
        count = min(torch.cuda.device_count(), MOST_PROCESSES)
    return 2 ** (count.bit_length() - 1)


def notes_of(options: StepOptions, train: Listing, val: Listing) -> list[str]:
    """What the figures rest on, and what this device cannot show."""
    corrupt = len(train.corrupt) + len(val.corrupt)
    notes = [
        f"{len(train)} training and {len(val)} validation images of {len(train.classes)} classes, {train.source}, "
        f"{corrupt} corrupt ones left out; {options.model}, batch {options.batch_size}",
        "the system keeps all files in memory: no figure holds what a disk or a network adds",
        "intervals of times and ratios are of rounds, those of losses and accuracies of seeds",
    ]
    if train.source == DRAWN:
        notes.append("drawn JPEGs are easier than photographs: their accuracies say how training goes, and no more")
    if options.device != "cpu":
        return notes
    return [
        *notes,
        "no GPU: 06_nvjpeg, 07_dali and utilization are not measured; workers and the model share the cores",
        "no GPU: processes exchange gradients by gloo, on one machine, with one thread each",
    ]


if __name__ == "__main__":
    main()
