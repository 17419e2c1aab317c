"""Which trick holds less memory, and what does it cost? The published tables measured here, and their claims.

    python labs/memory/study.py            # full size: on a GPU the write-up's own
    python labs/memory/study.py --quick    # a few minutes on two CPU cores

Published: ResNeXt on CIFAR-10, batch 128, Adam with a learning rate of 0.01, 200 epochs, one A100, one run, no spread,
seen with Nsight Systems ("ResNeXt memory study").
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from common.data import check_cifar10
from common.device import autocast_notes, disable_tf32, synchronize, without_gpu
from common.options import StepOptions
from common.program import captured, float_batch, peak_bytes, timed, words_of
from labs.memory.data import real_data
from labs.memory.model import DEFAULTS, PUBLISHED, resnext
from labs.memory.train import Settings, batches, train
from labs.shared import study as shared
from labs.shared.training import precision_of
from walkthrough.compare.statistics import mean, of_pairs, ratio
from walkthrough.compare.study import Claim, Row, claim, interval, percent
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.tracker import KINDS, Block, MemoryTracker
from walkthrough.results.errors import InputError
from walkthrough.results.result import data_label

import torch

HERE = Path(__file__).parent
BASELINE, HALF, CHECKPOINTED = "00_baseline", "01_half_precision", "02_checkpointing"
SELECTIVE, OFFLOAD, COMPILED = "03_selective_checkpointing", "04_offload", "05_compiled_budget"
PROGRAMS = (BASELINE, HALF, CHECKPOINTED, SELECTIVE, OFFLOAD, COMPILED)
WORKERS = {True: (0, 2), False: (0, 1, 2, 4, 8)}  # by --quick, as all that follows
TRAINED_WORKERS = {True: (0, 2), False: (0, 2, 8)}  # fewer: these are whole trainings
ROUNDS, FEWER_ROUNDS = {True: 1, False: 5}, {True: 1, False: 3}  # fewer where differences are large
SEEDS, EPOCHS = {True: (0, 1), False: (0, 1, 2)}, {True: 3, False: 20}
WINDOW_STEPS, OPTIMIZER_STEPS = {True: 3, False: 10}, {True: 6, False: 20}
LARGER, LARGEST = 4, 7  # times the batch, as published
IMAGES, ALL_EPOCHS = 50_000, 200
LIMIT_SECONDS = 6 * 3600  # of one measurement: a training of CIFAR-10 on an old GPU takes hours
POINTS = 2.0  # accuracies that differ by fewer percentage points are "kept"
POINTS_SHOWN = 300  # of a timeline, at most: the figure is no wider
ALIKE = (0.8, 1.25)  # losses whose ratio is surely in between are "the same"
GROWS = 2.0  # times: what takes surely longer than that "grows with the batch"
Runs = Mapping[int, Any]  # {round: what was measured}
Curves = Mapping[str, Sequence[Sequence[Mapping[str, float]]]]  # {variant: for each seed, its epochs}


class Run(NamedTuple):
    """One published training. optimizer_ms: read without synchronising, it seems."""

    batch_size: int
    step_ms: float
    epoch_seconds: float
    total_seconds: float
    optimizer_ms: float | None = None
    memory_gb: float | None = None


RUNS = {
    "base": Run(128, 104, 44.5, 8934, 28, 7.82),
    "half precision": Run(128, 78, 33.7, 6744),
    "checkpointing": Run(128, 152, 63.5, 12703, 34, 5.11),
    "base, larger batch": Run(512, 380, 40, 8097, 200, 33.79),
    "checkpointing, same memory": Run(896, 948, 56.5, 11302, 560, 33.93),
}
SAME_BATCH: dict[str, Run] = dict(zip(PROGRAMS, list(RUNS.values())[:3], strict=False))
SAME_MEMORY: dict[str, Run] = dict(zip((BASELINE, CHECKPOINTED), list(RUNS.values())[3:], strict=True))
NONE = Run(*[None] * 4)  # type: ignore[arg-type]  # of a program that nobody published
LOADING = {0: (63, 104, 67.7), 1: (1.9, 105, 44.6), 2: (1.6, 104, 44.5), 4: (1.6, 104, 44.7), 8: (1.6, 104, 44.9)}


@shared.measurement
def step(options: StepOptions, name: str, precision: str, batch_size: int, run: int) -> dict[str, Any]:
    """Speed and peak memory of a program's train step, on one batch that is on the device. run: the round."""
    options = replace(options, precision=precision, batch_size=batch_size)
    one, batch = captured(HERE / f"{name}.py", words_of(options)), float_batch(options)
    timing = timed(one, batch, options.quick)
    return {
        "samples_per_second": timing.samples_per_second.windows,
        "step_ms": timing.step_ms.median,
        "peak_bytes": peak_bytes(one, batch),
        "precision": one.dtype,
    }


@shared.measurement
def loading(options: StepOptions, workers: int, run: int) -> dict[str, Any]:
    """How long the baseline waits for a batch and trains on it, with so many workers. run: the round.

    What workers loaded ahead is used up first. load_ms, step_ms: means, since a batch that is waited for delays the
    epoch whether it is typical or not. samples_per_second: of windows of steps, both together.
    """
    one = captured(HERE / f"{BASELINE}.py", words_of(options, workers), blank_data=False)
    device, batches, times = torch.device(options.device), iter(one.loader), list[tuple[float, float]]()
    for _ in range(workers * (one.loader.prefetch_factor or 0) + 2):
        one.train_step(*next(batches))
    for _ in range(5 * (size := WINDOW_STEPS[options.quick])):
        synchronize(device)
        begin = time.perf_counter()
        batch = next(batches)
        loaded = time.perf_counter()
        one.train_step(*batch)
        synchronize(device)
        times.append((loaded - begin, time.perf_counter() - loaded))
    windows = [sum(map(sum, times[at : at + size])) for at in range(0, len(times), size)]
    load_ms, step_ms = (statistics.fmean(part) * 1e3 for part in zip(*times, strict=True))
    speeds = [size * options.batch_size / seconds for seconds in windows]
    return {"load_ms": load_ms, "step_ms": step_ms, "samples_per_second": speeds, "data": one.loader.dataset.source}


@shared.measurement
def optimizer_times(options: StepOptions, batch_size: int, run: int) -> dict[str, list[float]]:
    """The optimizer's time in ms, step by step, by where the clock waits for the device. run: the number of the round.

    "after": the clock stops once the device is done, but starts while the backward pass may still run there. "both": it
    starts only once that is done.
    """
    options = replace(options, batch_size=batch_size, precision="fp32")
    variables, device = captured(HERE / f"{BASELINE}.py", words_of(options)).variables, torch.device(options.device)
    images, labels = float_batch(options)
    times: dict[str, list[float]] = {"after": [], "both": []}
    for number in range(OPTIMIZER_STEPS[options.quick] + 1):  # the first makes the optimizer's state
        for waits, ms in times.items():
            variables["optimizer"].zero_grad()
            variables["criterion"](variables["model"](images), labels).backward()
            if waits == "both":
                synchronize(device)
            begin = time.perf_counter()
            variables["optimizer"].step()
            synchronize(device)
            if number:
                ms.append((time.perf_counter() - begin) * 1e3)
    return times


@shared.measurement
def curves(options: StepOptions, seed: int, epochs: int, workers: int, **changes: Any) -> dict[str, Any]:
    """The epochs of a training on real data; changes: of the base training's `Settings`."""
    disable_tf32()
    (train_set, test_set), device = real_data(options.data, options.image_size), torch.device(options.device)
    source = getattr(train_set, "source", "")
    settings = Settings(options.model, source, options.image_size, options.batch_size, 0.01, "fp32", False, seed)
    settings = replace(settings, **changes)
    settings = replace(settings, precision=precision_of(device, settings.precision))
    loader = batches(settings, train_set, device, workers)
    return {"data": source, "epochs": train(settings, loader, test_set, epochs, device, None)}


class Timeline(MemoryTracker):
    """A tracker that keeps every block, also once it is freed: its kind is known late."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Block] = {}

    def _block(self, tensor: torch.Tensor) -> Block:
        block = super()._block(tensor)
        return self.blocks.setdefault(block.number, block)

    def rows(self, begin: int) -> list[dict[str, Any]]:
        """{"allocations and releases": so many since `begin`, kind: MB held then, …}.

        At most `POINTS_SHOWN`: of neighbours, the highest. After `mark_state`.
        """
        held, after = dict.fromkeys(KINDS, 0), list[dict[str, Any]]()
        for event, (number, allocated) in enumerate(self.events):
            block = self.blocks[number]
            held[block.kind] += block.allocated_bytes if allocated else -block.allocated_bytes
            megabytes = {kind: round(size / 1e6, 2) for kind, size in held.items()}
            after.append({"allocations and releases": event - begin} | megabytes)
        del after[:begin]
        every = -(-len(after) // POINTS_SHOWN)
        neighbours = [after[at : at + every] for at in range(0, len(after), every)]
        return [max(rows, key=lambda row: sum(row[kind] for kind in KINDS)) for rows in neighbours]


@shared.measurement
def by_kind(options: StepOptions, name: str) -> list[dict[str, Any]]:
    """Memory over one step of a program on a GPU, of the published model and batch, in float32; predicted."""
    options = replace(options, device="cpu", model=PUBLISHED, image_size=32, batch_size=128, precision="fp32")
    with fake_gpu(timeline := Timeline(), []):
        one, batch = captured(HERE / f"{name}.py", words_of(options)), float_batch(options)
        timeline.begin()
        timeline.mark("inputs", batch)
        one.train_step(*batch)  # makes the optimizer's state
        begin = len(timeline.events)
        one.train_step(*batch)
        timeline.mark_state()
        return timeline.rows(begin)


class Study(shared.Measured):
    """The measurements, in rounds."""

    @property
    def half(self) -> str:
        """Half precision: as the options say, but on a CPU bf16 also where it is slower, to see its memory."""
        return "bf16" if (self.options.device, self.options.precision) == ("cpu", "auto") else self.options.precision

    def steps(self, sizes: Mapping[str, int], rounds: int) -> dict[str, dict[int, Any]]:
        """{program: its rounds}, interleaved, each with a batch size; in float32 but for the one that is not."""
        settings = {name: {"name": name, "precision": self.half if name == HALF else "fp32"} for name in sizes}
        measured = {name: partial(self.one, "step", **settings[name], batch_size=sizes[name]) for name in sizes}
        return self.rounds(rounds, measured)

    def same_memory(self, steps: Mapping[str, Runs]) -> list[Row]:
        """The largest batch within what the baseline holds of `LARGER` times the batch, by a line through two sizes."""
        small, names = self.options.batch_size, [name for name in (BASELINE, CHECKPOINTED, SELECTIVE) if name in steps]
        large = self.steps({name: LARGER * small for name in names}, 1)
        sizes = {}
        for name in large if BASELINE in large else ():
            at_small, at_large = first(steps[name])["peak_bytes"], first(large[name])["peak_bytes"]
            room = first(large[BASELINE])["peak_bytes"] - at_small
            sizes[name] = small + int(room * (LARGER - 1) * small / (at_large - at_small))
        runs = self.steps(sizes, FEWER_ROUNDS[self.quick])
        return [
            {"program": name, "largest batch": sizes[name], "step ms": median_ms(runs[name])}
            | {"images/s": sizes[name] / median_ms(runs[name]) * 1e3, "speed": speed(runs, name)}
            | {"peak MB": first(runs[name])["peak_bytes"] / 1e6}
            | {"published batch": known.batch_size, "published GB": known.memory_gb}
            for name in runs
            for known in [SAME_MEMORY.get(name, NONE)]
        ]

    def workers(self) -> list[Row]:
        """Load, step and epoch time for each number of workers, next to the published ones."""
        measured = {count: partial(self.one, "loading", workers=count) for count in WORKERS[self.quick]}
        runs, rows = self.rounds(ROUNDS[self.quick], measured), []
        for count, by_round in runs.items():
            self.note(f"workers load {data_label(first(by_round)['data'])}")
            load_ms, step_ms = (mean([run[key] for run in by_round.values()]).mean for key in ("load_ms", "step_ms"))
            seconds = epoch_seconds(load_ms + step_ms, self.options.batch_size)
            ours = {"workers": count, "load ms": load_ms, "step ms": step_ms, "epoch s": seconds}
            names = ("published load ms", "published step ms", "published epoch s")
            rows.append(ours | {"speed": speed(runs, count)} | dict(zip(names, LOADING[count], strict=True)))
        return rows

    def optimizer(self) -> list[Row]:
        """How long the optimizer seems to take, by where the clock waits, and how that grows with the batch."""
        sizes = [factor * self.options.batch_size for factor in (1, LARGER, LARGEST)]
        measured = {size: partial(self.one, "optimizer_times", batch_size=size) for size in sizes}
        runs = self.rounds(FEWER_ROUNDS[self.quick], measured)
        published = dict(zip(sizes, [RUNS["base"], *SAME_MEMORY.values()], strict=True))
        smallest = next(iter(runs), None)
        rows = []
        for size, own in runs.items():
            after, both = each(own, "after"), each(own, "both")
            rows.append(
                {
                    "batch": size,
                    "waits after, ms": statistics.median(map(statistics.median, after.values())),
                    "waits before and after, ms": statistics.median(map(statistics.median, both.values())),
                    "times the smallest": ratio(both, each(runs[smallest], "both")) if size != smallest else None,
                    "between the clocks": ratio(after, both),
                    "published batch": published[size].batch_size,
                    "published ms": published[size].optimizer_ms,
                }
            )
        return rows

    def trained(self) -> Curves:
        """Of each variant, the seeds that all variants were trained from; on digits without CIFAR-10."""
        own = base_workers(self.options)
        variants: dict[str, dict[str, Any]] = {
            "base": {},
            "half precision": {"precision": self.half},
            "checkpointing": {"checkpoint": True},
            "larger batch": {"batch_size": LARGER * self.options.batch_size},
            "lower learning rate": {"lr": 0.01 / LARGER},
        }
        variants |= {f"{count} workers": {"workers": count} for count in TRAINED_WORKERS[self.quick] if count != own}
        trained: dict[str, list[Any]] = {name: [] for name in variants}
        for seed in SEEDS[self.quick]:
            settings = {"seed": seed, "epochs": EPOCHS[self.quick], "workers": own}
            done = {name: self.one("curves", **settings | changes) for name, changes in variants.items()}
            if all(done.values()):  # pairs need all of a seed
                self.note(f"the curves are of training on {data_label(done['base']['data'])}")
                for name, one in done.items():
                    trained[name].append(one["epochs"])
        return {name: seeds for name, seeds in trained.items() if seeds}


def base_workers(options: StepOptions) -> int:
    """Of the base training: two, as published; on a CPU they would compete with it."""
    return 0 if options.device == "cpu" else 2


def epoch_seconds(step_ms: float, batch_size: int) -> float:
    """Of CIFAR-10, of so many full batches."""
    return step_ms / 1e3 * (IMAGES // batch_size)


def first(runs: Runs) -> Any:
    """Of several rounds, which agree on what does not vary."""
    return next(iter(runs.values()))


def each(runs: Runs, what: str) -> dict[int, Any]:
    """{round: one of the values that it measured}."""
    return {number: run[what] for number, run in runs.items()}


def median_ms(runs: Runs) -> float:
    """The step's time, of several rounds."""
    return statistics.median(each(runs, "step_ms").values())


def speed(runs: Mapping[Any, Runs], name: Any) -> Any:
    """The `Ratio` of one's samples per second to those of the first; None of the first itself."""
    base = next(iter(runs))
    return None if name == base else ratio(*(each(runs[one], "samples_per_second") for one in (name, base)))


def programs(steps: Mapping[str, Runs], options: StepOptions) -> list[Row]:
    """Every way to hold less, with the same batch: its speed, and the most memory that a step holds."""
    base, rows = first(steps[BASELINE])["peak_bytes"], []
    for name, runs in steps.items():
        one, known = first(runs), SAME_BATCH.get(name, NONE)
        rows.append(
            {
                "program": name,
                "model": options.model,
                "batch": options.batch_size,
                "precision": one["precision"],
                "step ms": median_ms(runs),
                "speed": speed(steps, name),
                "peak MB": one["peak_bytes"] / 1e6,
                "of the baseline's": one["peak_bytes"] / base,
                "published step ms": known.step_ms,
                "published GB": known.memory_gb,
            }
        )
    return rows


def overall(programs: Sequence[Row], same_memory: Sequence[Row]) -> list[Row]:
    """How long all epochs take, computed from the steps' times, next to the published totals."""
    small = {row["program"]: (row["step ms"], row["batch"]) for row in programs}
    same = {row["program"]: (row["step ms"], row["largest batch"]) for row in same_memory}
    ours = [*map(small.get, SAME_BATCH), *map(same.get, SAME_MEMORY)]
    seconds = [epoch_seconds(*one) if one else None for one in ours]
    return [
        {
            "run": name,
            "batch": one and one[1],
            "epoch s": epoch,
            f"{ALL_EPOCHS} epochs, h": epoch and ALL_EPOCHS * epoch / 3600,
            "of the base's time": epoch and seconds[0] and epoch / seconds[0],
            "published batch": run.batch_size,
            "published epoch s": run.epoch_seconds,
            "published h": run.total_seconds / 3600,
            "published, of the base's time": run.total_seconds / RUNS["base"].total_seconds,
        }
        for (name, run), one, epoch in zip(RUNS.items(), ours, seconds, strict=True)
    ]


def curve_rows(curves: Curves) -> list[Row]:
    """Means over seeds, with intervals, of every epoch."""
    return [
        {
            "variant": name,
            "epoch": number + 1,
            "seeds": len(seeds),
            "loss": mean([row["loss"] for row in epoch]),
            "training accuracy %": percent([row["train_accuracy"] for row in epoch]),
            "test accuracy %": percent([row["test_accuracy"] for row in epoch]),
        }
        for name, seeds in curves.items()
        for number, epoch in enumerate(zip(*seeds, strict=True))
    ]


def compared(curves: Curves) -> list[Row]:
    """What differs in the last epoch from another variant's, in pairs of one seed."""
    rows, to = [], {"base": None, "larger batch": "lower learning rate", "lower learning rate": None}
    for name in curves if len(curves.get("base", ())) > 1 else ():
        if other := to.get(name, "base"):
            pairs = [(ours[-1], theirs[-1]) for ours, theirs in zip(curves[name], curves[other], strict=True)]
            points = mean([100 * (ours["test_accuracy"] - theirs["test_accuracy"]) for ours, theirs in pairs])
            losses = of_pairs([ours["loss"] / theirs["loss"] for ours, theirs in pairs])
            rows.append({"variant": name, "minus": other, "test accuracy, points": points, "loss, times": losses})
    return rows


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was published, and what the tables say about it."""
    cell, optimizer = partial(shared.cell, tables), (tables.get("optimizer") or [{}])[-1]
    batches = [cell("same_memory", "largest batch", program=name) for name in (CHECKPOINTED, BASELINE)]
    points, kept = "test accuracy, points", (-POINTS, POINTS)
    return [
        claim("checkpoint-memory", "Checkpointing lowers the peak",
              cell("programs", "of the baseline's", program=CHECKPOINTED), published="0.65 of it", below=1),
        claim("checkpoint-time", "Checkpointing makes a step slower",
              cell("programs", "speed", program=CHECKPOINTED), published="0.68x the speed", below=1),
        claim("same-memory-batch", "Checkpointing fits a larger batch into the same memory",
              batches[0] / batches[1] if all(batches) else None, published="1.75x", above=1),
        claim("same-memory-time",
              "Checkpointing with the larger batch that then fits is slower per image",
              cell("same_memory", "speed", program=CHECKPOINTED), published="0.71x the speed", below=1),
        claim("half-precision", "Half precision makes a step faster",
              cell("programs", "speed", program=HALF), published="1.33x", above=1,
              needs=None if on_gpu else "a GPU with 16-bit units"),
        claim("workers", "Two loader workers make an epoch faster than none",
              cell("workers", "speed", workers=2), published="1.52x", above=1),
        claim("optimizer-grows",
              f"The optimizer takes over {GROWS:g} times as long with {LARGEST} times the batch",
              interval(optimizer.get("times the smallest")), published="20x", above=GROWS),
        claim("optimizer-clock",
              "A clock that waits for the device only after the optimizer counts the backward pass too: with the "
              f"largest batch it shows over {GROWS:g} times what a clock shows that waits before as well",
              interval(optimizer.get("between the clocks")), above=GROWS,
              needs=None if on_gpu else "a GPU, which works through a queue"),
        claim("half-precision-accuracy",
              f"Half precision keeps the test accuracy within {POINTS:g} percentage points",
              cell("compared", points, variant="half precision"), within=kept),
        claim("checkpoint-accuracy", f"Checkpointing keeps the test accuracy within {POINTS:g} percentage points",
              cell("compared", points, variant="checkpointing"), within=kept,
              needs=None if on_gpu else "a GPU: on a CPU both trainings are equal bit by bit"),
        claim("workers-accuracy", f"Two workers or none: the test accuracy ends within {POINTS:g} percentage points",
              cell("compared", points, variant="0 workers" if on_gpu else "2 workers"), within=kept),
        claim("batch-like-learning-rate",
              f"{LARGER} times the batch ends with the training loss of 1/{LARGER} of the learning rate (ratio between "
              f"{ALIKE[0]} and {ALIKE[1]})",
              cell("compared", "loss, times", variant="larger batch"), within=ALIKE),
    ]  # fmt: skip


def main() -> None:
    options, _ = shared.lab_options(__doc__, "memory", DEFAULTS)
    with torch.device("meta"):
        resnext(options.model)  # refuses a name that is none
    check_cifar10(options.data)  # refuses what is broken
    study = Study(shared.measurements("memory", options, limit_seconds=LIMIT_SECONDS))
    steps = study.steps(dict.fromkeys(PROGRAMS, options.batch_size), ROUNDS[options.quick])
    if BASELINE not in steps:
        raise InputError(f"nothing to compare with: {study.notes[0]}")
    tables: dict[str, list[Row]] = {"programs": programs(steps, options), "same_memory": study.same_memory(steps)}
    tables["overall"] = overall(tables["programs"], tables["same_memory"])
    tables |= {"workers": study.workers(), "optimizer": study.optimizer()}
    trained = study.trained()
    by_workers = {f"{base_workers(options)} workers": trained.get("base", [])}
    by_workers |= {name: trained[name] for name in trained if "workers" in name}
    tables |= {"compared": compared(trained), "curves_by_workers": curve_rows(by_workers)}
    tables["curves"] = curve_rows({name: seeds for name, seeds in trained.items() if name not in by_workers})
    for name in (BASELINE, CHECKPOINTED):
        tables[f"memory_by_kind_{name}"] = study.one("by_kind", name=name) or []
    notes = [] if shared.on_gpu(options) else [
        *(f"bf16 is measured although {note}" for note in autocast_notes("cpu", study.half)),
        *without_gpu("offload", "cpu"),
        "a peak on a CPU is what a step allocates on top of weights and optimizer state",
    ]  # fmt: skip
    audit = claims(shared.as_stored(tables), shared.on_gpu(options))
    shared.report(study.lab.study(tables, audit, [*notes, *study.notes]), options)


if __name__ == "__main__":
    shared.program(main, claims)
