"""Where does the memory go? The published tables measured here, and the published claims audited.

    python labs/memory/study.py            # full size: on a GPU the write-up's own
    python labs/memory/study.py --quick    # a few minutes on two CPU cores

Tables: loader workers; half precision; checkpointing at the same batch, and in the same memory; memory by kind over a
step; the optimizer's time; curves of loss and accuracy over seeds. The result is labs/memory/study.json in --logdir.
"""

import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common.data import check_cifar10
from common.device import autocast_notes, without_gpu
from common.options import StepOptions
from labs.memory import audit, published
from labs.memory.model import DEFAULTS, resnext
from labs.shared.extras import imported
from labs.shared.study import Measured, lab_options, measurements, report
from walkthrough.compare.statistics import Mean, mean, ratio
from walkthrough.compare.study import Measurements, Row
from walkthrough.results.errors import InputError
from walkthrough.results.result import data_label

import torch

WORKERS = (0, 1, 2, 4, 8)
BASELINE, HALF, CHECKPOINTED = "00_baseline", "01_half_precision", "02_checkpointing"
IN_FLOAT32 = (CHECKPOINTED, "03_selective_checkpointing", "04_offload", "05_compiled_budget")
LARGER = 4  # times the batch: what the budget of memory holds of the baseline, as in the write-up
LARGEST = 7  # times the batch, of the write-up's largest
IMAGES = 50_000  # of an epoch of CIFAR-10
SEEDS = (0, 1, 2)
ROUNDS, LOADING_ROUNDS, EPOCHS = {True: 3, False: 5}, {True: 1, False: 5}, {True: 5, False: 20}  # by --quick
LIMIT_SECONDS = 6 * 3600  # of one measurement: a training of CIFAR-10 on an old GPU takes hours
COMPILED_ROUNDS = {True: 1, False: 5}  # compiling takes most of a minute each time


class Study(Measured):
    """The measurements, table by table."""

    def __init__(self, lab: Measurements) -> None:
        super().__init__(lab)
        self.half = half_precision(lab.options)

    def same_batch(self) -> dict[str, dict[int, Any]]:
        """{program: its rounds}, interleaved, all with the default batch."""
        quick, size = self.options.quick, self.options.batch_size
        programs = {BASELINE: "fp32", HALF: self.half, **dict.fromkeys(IN_FLOAT32, "fp32")}

        def step(name: str, run: int) -> Any:
            if "compiled" in name and run > COMPILED_ROUNDS[quick]:
                return None
            return self.one("step", name=name, precision=programs[name], batch_size=size, run=run)

        return self.rounds(ROUNDS[quick], {name: partial(step, name) for name in programs})

    def workers(self) -> list[Row]:
        """Table 1: load, step and epoch time for each number of workers, next to the published ones."""
        rows, speeds = [], dict[int, dict[int, list[float]]]()
        runs = self.rounds(
            LOADING_ROUNDS[self.quick], {workers: partial(self.one, "loading", workers=workers) for workers in WORKERS}
        )
        for workers, done in runs.items():
            self.note(f"workers load {data_label(done[min(done)]['data'])}")
            load_ms, step_ms = (mean([run[key] for run in done.values()]).mean for key in ("load_ms", "step_ms"))
            speeds[workers] = {number: run["samples_per_second"] for number, run in done.items()}
            load, step, epoch = published.WORKERS[workers]
            rows.append(
                {
                    "workers": workers,
                    "load ms": load_ms,
                    "step ms": step_ms,
                    "epoch s": (load_ms + step_ms) / 1e3 * (IMAGES // self.options.batch_size),
                    "speed": ratio(speeds[workers], speeds[min(speeds)]) if len(speeds) > 1 else None,
                    "published load ms": load,
                    "published step ms": step,
                    "published epoch s": epoch,
                }
            )
        return rows

    def half_precision(self, steps: dict[str, dict[int, Any]]) -> list[Row]:
        """Table 2: float32 and half precision."""
        return [
            {
                "precision": step_of(steps[name])["precision"],
                "step ms": step_of(steps[name])["step_ms"],
                "epoch s": step_of(steps[name])["step_ms"] / 1e3 * (IMAGES // self.options.batch_size),
                "speed": speed(steps[name], steps[BASELINE]),
                "peak MB": step_of(steps[name])["peak_bytes"] / 1e6,
                "published step ms": run.step_ms,
                "published epoch s": run.epoch_seconds,
            }
            for name, run in ((BASELINE, published.BASE), (HALF, published.HALF))
            if name in steps
        ]

    def checkpointing(self, steps: dict[str, dict[int, Any]]) -> list[Row]:
        """Table 3, first half: every way to hold less, with the same batch, in float32."""
        known = {BASELINE: published.BASE, CHECKPOINTED: published.CHECKPOINT}
        base = step_of(steps[BASELINE])
        return [
            {
                "program": name,
                "step ms": step_of(steps[name])["step_ms"],
                "speed": speed(steps[name], steps[BASELINE]),
                "peak MB": step_of(steps[name])["peak_bytes"] / 1e6,
                "of the baseline's": step_of(steps[name])["peak_bytes"] / base["peak_bytes"],
                "published step ms": known[name].step_ms if name in known else None,
                "published GB": known[name].memory_gb if name in known else None,
            }
            for name in (BASELINE, *IN_FLOAT32)
            if name in steps
        ]

    def same_memory(self) -> list[Row]:
        """Table 3, second half: the largest batch within what the baseline holds of `LARGER` times the batch."""
        size = LARGER * self.options.batch_size
        at = self.one("step", name=BASELINE, precision="fp32", batch_size=size, run=1)
        if not at:
            return []
        budget, rows = at["peak_bytes"], []
        known = {BASELINE: published.BASE_LARGE, CHECKPOINTED: published.CHECKPOINT_LARGE}
        sizes: dict[str, Any] = {}
        for name in (BASELINE, CHECKPOINTED, IN_FLOAT32[1]):
            largest = self.one("largest", name=name, precision="fp32", budget_bytes=budget)
            if largest and largest["batch_size"]:
                sizes[name] = largest
        steps = {
            name: partial(self.one, "step", name=name, precision="fp32", batch_size=largest["batch_size"])
            for name, largest in sizes.items()
        }
        speeds = self.rounds(LOADING_ROUNDS[self.quick], steps)
        for name in speeds:
            largest = sizes[name]
            step_ms = step_of(speeds[name])["step_ms"]
            rows.append(
                {
                    "program": name,
                    "largest batch": largest["batch_size"],
                    "peak MB": largest["peak_bytes"] / 1e6,
                    "step ms": step_ms,
                    "epoch s": step_ms / 1e3 * (IMAGES // largest["batch_size"]),
                    "images/s": largest["batch_size"] / step_ms * 1e3,
                    "speed": speed(speeds[name], speeds[BASELINE]) if BASELINE in speeds else None,
                    "published batch": known[name].batch_size if name in known else None,
                    "published step ms": known[name].step_ms if name in known else None,
                    "published GB": known[name].memory_gb if name in known else None,
                }
            )
        return rows

    def optimizer(self) -> tuple[list[Row], dict[int, Any]]:
        """How long the optimizer seems to take, by where the clock waits: its table, and {batch size: times}."""
        times = {
            size: self.one("optimizer_times", batch_size=size)
            for size in (factor * self.options.batch_size for factor in (1, LARGER, LARGEST))
        }
        known = {1: published.BASE, LARGER: published.BASE_LARGE, LARGEST: published.CHECKPOINT_LARGE}
        rows = [
            {
                "batch": size,
                "waits nowhere, ms": statistics.median(found["nowhere"]),
                "waits after, ms": statistics.median(found["after"]),
                "waits before and after, ms": statistics.median(found["both"]),
                "published batch": run.batch_size,
                "published ms": run.optimizer_ms,
            }
            for (size, found), run in zip(times.items(), known.values(), strict=True)
            if found
        ]
        return rows, {size: found for size, found in times.items() if found}

    def has_images(self) -> bool:
        """Whether there are real images to train on; a note where there are none."""
        if check_cifar10(self.options.data):
            return True
        try:
            imported("sklearn", "memory", "training without CIFAR-10, on images of digits,")
        except InputError as error:
            self.note(f"no curves: {error}")
            return False
        return True

    def curves(self) -> dict[str, list[list[dict[str, float]]]]:
        """{variant: its epochs, for each seed that all variants were trained from}."""
        size = self.options.batch_size
        variants = {
            "base": {},
            "half precision": {"precision": self.half},
            "checkpointing": {"checkpoint": True},
            "larger batch": {"batch_size": LARGER * size},
            "lower learning rate": {"lr": 0.01 / LARGER},
        }
        curves: dict[str, list[Any]] = {name: [] for name in variants}
        # One process for all is quicker; one for each loses less where hours of training are cut off.
        groups = [variants] if self.options.quick else [{name: changes} for name, changes in variants.items()]
        for seed in SEEDS:
            trained: dict[str, Any] = {}
            for group in groups:
                done = self.one("curves", seed=seed, variants=group, epochs=EPOCHS[self.options.quick])
                if done:
                    trained |= done["epochs"]
                    self.note(f"the curves are of training on {data_label(done['data'])}")
            for name in variants if len(trained) == len(variants) else ():  # pairs need all of a seed
                curves[name].append(trained[name])
        return {name: seeds for name, seeds in curves.items() if seeds}


def step_of(runs: dict[int, Any]) -> Any:
    """Of several rounds: the one with the median step time."""
    return sorted(runs.values(), key=lambda run: run["step_ms"])[len(runs) // 2]


def speed(runs: dict[int, Any], base: dict[int, Any]) -> Any:
    """The `Ratio` of samples per second of a program over another; None of one over itself."""
    if runs is base:
        return None
    windows = ({number: run["samples_per_second"] for number, run in each.items()} for each in (runs, base))
    return ratio(*windows)


def curve_rows(curves: dict[str, list[list[dict[str, float]]]], last_only: bool = False) -> list[Row]:
    """Means over seeds, with intervals: of every epoch, or of the last."""
    return [
        {
            "variant": name,
            "epoch": number + 1,
            "seeds": len(seeds),
            "loss": mean([epochs[number]["loss"] for epochs in seeds]),
            "training accuracy %": percent([epochs[number]["train_accuracy"] for epochs in seeds]),
            "test accuracy %": percent([epochs[number]["test_accuracy"] for epochs in seeds]),
        }
        for name, seeds in curves.items()
        for number in range(len(seeds[0]))
        if not last_only or number == len(seeds[0]) - 1
    ]


def percent(shares: list[float]) -> Mean:
    """The `Mean` of shares (0..1), in %; its interval ends at 0 and 100, which Student's t does not know of."""
    percentages = mean([100 * share for share in shares])
    if percentages.low is None or percentages.high is None:
        return percentages
    return replace(percentages, low=max(0.0, percentages.low), high=min(100.0, percentages.high))


def at_peak(timelines: dict[str, Any]) -> list[Row]:
    """Table 4: of each program, the moment at which it holds most, by kind: predicted for a GPU.

    timelines: `measure.by_kind` of each. What was published counts cudaMalloc, so it is next to what is reserved.
    """
    known = {BASELINE: published.BASE.memory_gb, CHECKPOINTED: published.CHECKPOINT.memory_gb}
    rows = []
    for name, timeline in timelines.items():
        sizes = [{kind: mb for kind, mb in row.items() if kind != "operator"} for row in timeline["rows"]]
        peak = max(sizes, key=lambda size: sum(size.values()))
        total = {"allocated GB": sum(peak.values()) / 1e3, "reserved GB": timeline["reserved_bytes"] / 1e9}
        published_gb = {"published GB": known.get(name)}
        rows.append({"program": name} | {kind: round(mb) for kind, mb in peak.items()} | total | published_gb)
    return rows


def half_precision(options: StepOptions) -> str:
    """The precision that "half" is here; on a CPU where autocast would stay off, bf16 nevertheless, to see memory."""
    off = options.precision == "auto" and options.device == "cpu" and autocast_notes(options.device)
    return "bf16" if off else options.precision


def notes_of(options: StepOptions) -> list[str]:
    """What this device cannot show."""
    if options.device != "cpu":
        return []
    notes = [f"bf16 is measured although {note}" for note in autocast_notes("cpu", half_precision(options))]
    return [
        *notes,
        *without_gpu("offload", "cpu"),
        "no GPU: nothing runs behind the host's back, so all three clocks of the optimizer show the same; only a GPU "
        "can show what a clock reads that does not wait",
        "no GPU: there is no caching allocator, so no snapshot of it; memory by kind is predicted for a GPU",
        "a peak on a CPU is what a step allocates on top of weights and optimizer state",
    ]


def main() -> None:
    options = lab_options(__doc__, "memory", DEFAULTS)
    if options.precision == "fp32":
        raise InputError("--precision fp32: this study compares half precision with float32; choose auto, bf16 or fp16")
    with torch.device("meta"):
        resnext(options.model)  # refuses a name that is none
    check_cifar10(options.data)  # refuses what is broken
    study = Study(measurements("memory", options, Path(__file__).with_name("measure.py"), LIMIT_SECONDS))
    steps = study.same_batch()
    if BASELINE not in steps:
        raise InputError(f"nothing to compare with: {study.notes[0]}")
    workers, memory = study.workers(), study.same_memory()
    optimizer, times = study.optimizer()
    curves = study.curves() if study.has_images() else {}
    tables: dict[str, list[Row]] = {
        "workers": workers,
        "half_precision": study.half_precision(steps),
        "checkpointing": study.checkpointing(steps),
        "same_memory": memory,
        "optimizer": optimizer,
        "curves_last_epoch": curve_rows(curves, last_only=True),
        "curves": curve_rows(curves),
    }
    predicted = {name: study.one("by_kind", name=name) for name in (BASELINE, *IN_FLOAT32[:3])}
    timelines = {name: timeline for name, timeline in predicted.items() if timeline}
    tables["memory_at_peak"] = at_peak(timelines)
    tables |= {
        f"memory_by_kind_{name}": timelines[name]["rows"] for name in (BASELINE, CHECKPOINTED) if name in timelines
    }
    notes = [*notes_of(options), audit.least_optimizer_ms()]
    if torch.device(options.device).type == "cuda" and (file := study.one("snapshot", name=BASELINE)):
        notes.append(f"the allocator's snapshot is {file}: open it at https://docs.pytorch.org/memory_viz")
    claims = audit.claims(tables, times, curves, torch.device(options.device).type)
    report(study.lab.study(tables, claims, [*notes, *study.notes]), options)


if __name__ == "__main__":
    main()
