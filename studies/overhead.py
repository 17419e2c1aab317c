"""`overhead`: how much each kind of tracing slows a training step down.

The train step of the course on one batch that is on the device, without a loader's noise. Every mode is measured in
every run, in an order that changes from run to run, each time in a process of its own. It is compared with "off", which
the same process measures first. The control is a process that opens no profiler and measures "off" again in its place:
its interval should include 1.

A process opens one profiler at most: once one was open, CUPTI, which records the kernels of a GPU, stays attached, and
no later step would be without it. Where it is detached (TEARDOWN_CUPTI=1), profilers that follow each other crashed the
process, or recorded no kernels: github.com/pytorch/kineto/pull/1169 and 1554. So the first traced steps warm it up.
"""

import argparse
import gc
import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.options import StepOptions
from studies import study
from walkthrough.compare.figures import GREY, SPEED, in_style
from walkthrough.compare.statistics import Ratio, of_pairs
from walkthrough.compare.study import Measurements, NotMeasured, Row, Study, interval
from walkthrough.results import progress
from walkthrough.results.errors import InputError

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from studies.one_batch import Batch, TrainStep

OFF, OFF_AGAIN = "off", "off again"
BATCH_SIZE = {"cuda": 128, "cpu": 32}
RUNS, QUICK_RUNS = 5, 3
LEAD_STEPS = 2  # traced, not timed: the first after tracing began find caches and buffers cold
MOST_STEPS = 20  # timed of a trace, of which a step has up to 7 MB with stacks


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `overhead`."""
    texts = {"--batch-size": "images per step (default: 128 on a GPU, 32 on a CPU)"}
    without = ("--data", "--download", "--workers")
    study.add_options(parser, without, texts, batch_size=None, runs="runs (default: 5; 3 with --quick)")


def run(args: argparse.Namespace) -> int:
    """Measure, write `overhead.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    from common.device import checked_device

    kind = checked_device(args.device).partition(":")[0]
    options = study.ready(args, batch_size=args.batch_size or BATCH_SIZE[kind])
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    return study.run(args, lambda: measure(options, runs), figure)


@dataclass(frozen=True)
class Tracing:
    """A mode before it is measured. arguments: for `torch.profiler.profile`, None to trace nothing.

    why_not: why it is not measured, if so.
    """

    name: str
    switches: str
    arguments: dict[str, Any] | None = None
    why_not: str | None = None


def tracings(device: "torch.device") -> list[Tracing]:
    """Every mode, as a `Tracing`, the control first."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    from common.device import without_gpu

    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    operators = "activities CPU and CUDA" if gpu else "activity CPU"
    verbose = _ExperimentalConfig(verbose=True)

    def plus(name: str, switches: str, **arguments: Any) -> Tracing:
        return Tracing(name, f"{operators}, {switches}", {"activities": activities, **arguments})

    kernels_only = {"activities": [ProfilerActivity.CUDA]} if gpu else None
    why_no_kernels = next(iter(without_gpu("kernels_only", device)), None)
    return [
        Tracing(OFF_AGAIN, "no profiler"),
        Tracing("kernels only", "activity CUDA", kernels_only, why_no_kernels),
        Tracing("operators", operators, {"activities": activities}),
        plus("+ shapes", "record_shapes=True", record_shapes=True),
        plus("+ flops", "with_flops=True, which records shapes too", with_flops=True),
        plus("+ memory", "profile_memory=True", profile_memory=True),
        plus("+ modules", "with_modules=True", with_modules=True),
        plus("+ stacks", "with_stack=True", with_stack=True),
        plus(
            "+ stacks of operators",
            "with_stack=True, experimental_config=_ExperimentalConfig(verbose=True)",
            with_stack=True,
            experimental_config=verbose,
        ),
        plus("as the steps", "record_shapes=True, profile_memory=True", record_shapes=True, profile_memory=True),
    ]


def measure(options: StepOptions, runs: int) -> Study:
    """The study of a device. Prints its progress; see `run` for errors."""
    import torch

    from common.device import autocast_dtype, autocast_notes, device_name
    from common.model import classifier

    device = torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than in every process
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"overhead: {options.model}, {options.image_size} px, batch {options.batch_size}, on {device_name(device)}, "
        "with no data; a process for each mode and run"
    )
    do = study.measurements("overhead", options, precision)
    measured, notes = measured_modes(do, tracings(device), runs)
    return study.finished(do, measured, [*autocast_notes(device, options.precision), *notes])


def measured_modes(do: Measurements, tracings: Sequence[Tracing], runs: int) -> tuple[dict[str, Any], list[str]]:
    """({"batch_size": the one that fits, "runs", "modes": see `mode_of`}, notes).

    The control's first process finds the batch size. What failed is not tried again. Raises InputError where the
    control could not be measured.
    """
    failed = {tracing.name: tracing.why_not for tracing in tracings if tracing.why_not is not None}
    names = [tracing.name for tracing in tracings if tracing.name not in failed]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    batch_size, notes = do.options.batch_size, list[str]()
    for run in range(1, runs + 1):
        for name in order_of_run(names, run - 1):
            if name in failed:
                continue
            try:
                result = do.measure("mode", run=run, name=name, batch_size=batch_size)
                if run == 1 and name == names[0]:
                    batch_size, notes = result["batch_size"], result["notes"]
                if result["batch_size"] != batch_size:
                    raise NotMeasured(f"out of memory with batch size {batch_size}, which fitted before")
                results[name].append(result)
            except NotMeasured as error:
                if name == OFF_AGAIN:
                    raise InputError(f"a step without a profiler could not be measured: {error}") from error
                failed[name] = str(error)
    modes = [mode_of(tracing, results.get(tracing.name, []), failed.get(tracing.name)) for tracing in tracings]
    control = modes[0]
    notes += study.unsteady([[*control["off_ms"], *control["step_ms"]]], "steps without a profiler")
    notes += [f"{name} was not measured: {why}" for name, why in failed.items()]
    return {"batch_size": batch_size, "runs": runs, "modes": modes}, notes


def order_of_run(modes: Sequence[str], run: int) -> list[str]:
    """The modes in the order of a run: it begins elsewhere each time, and every other one is backwards."""
    start = run * len(modes) // 3 % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if run % 2 else order


def mode_of(tracing: Tracing, of_runs: Sequence[Mapping[str, Any]], failed: str | None) -> dict[str, Any]:
    """What was measured of a mode; lists hold a number per run, in order, and none where it was not measured.

    switches: what is passed to `torch.profiler.profile`. steps: timed in the mode. off_ms: of a step in the same
    process before it used a profiler; step_ms: of one in the mode, both means. finish_seconds: from the end of the last
    step until the trace is written. Sizes and events (metadata aside) are those of the first run's trace, per step.
    """
    of_runs = [] if failed else of_runs
    sizes = (of_runs[0]["sizes"] if of_runs else None) or {}
    return {
        "name": tracing.name,
        "switches": tracing.switches,
        "not_measured": failed,
        **{name: [run[name] for run in of_runs] for name in ("steps", "off_ms", "step_ms")},
        "finish_seconds": [run["finish_seconds"] for run in of_runs if run["finish_seconds"] is not None],
        **{name: sizes.get(name) for name in ("json_bytes_per_step", "gzip_bytes_per_step", "events_per_step")},
    }


# One mode in one run: a process of its own


def mode(options: StepOptions, run: int, name: str, batch_size: int) -> dict[str, Any]:
    """Measure "off", then a mode, in this process: see `mode_of`; sizes in the first run only.

    Raises InputError where no batch fits, and where the trace is not whole or has no kernels.
    """
    import torch

    from common.device import autocast_dtype, disable_tf32, keep_freed_memory
    from common.model import classifier
    from common.timing import Plan, warm_up
    from common.tracing import read_trace
    from studies import one_batch

    # A window lasts a certain time, since 25 steps of a fast GPU are over in 0.1 s.
    seconds = 0.0 if options.quick else 0.75
    plan = Plan(warmup_steps=1, warmup_seconds=seconds / 1.5, windows=1, window_steps=2, window_seconds=seconds)
    device = torch.device(options.device)
    tracing = next(each for each in tracings(device) if each.name == name)
    if device.index is not None:
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    disable_tf32()
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)
    train_step = one_batch.TrainStep(model, device, autocast_dtype(device, options.precision))
    batch, notes = one_batch.fitting_batch(train_step, batch_size, options.image_size)
    off_steps = warm_up(repeat(batch), train_step, device, plan)
    gc.collect()
    off_ms = timed_steps(train_step, batch, device, off_steps)
    steps = off_steps if tracing.arguments is None else min(off_steps, MOST_STEPS)
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        path = Path(folder) / "trace.json"
        step_ms, finish_seconds = mode_steps(tracing, train_step, batch, device, steps, path)
        sizes = None
        if tracing.arguments is not None:
            events, all_steps = read_trace(path), LEAD_STEPS + steps
            check_kernels(events, all_steps, device)
            sizes = trace_sizes(path, events, all_steps) if run == 1 else None
    return {
        "off_ms": off_ms, "step_ms": step_ms, "steps": steps, "finish_seconds": finish_seconds, "sizes": sizes,
        "batch_size": len(batch[1]), "notes": notes,
    }  # fmt: skip


def timed_steps(train_step: "TrainStep", batch: "Batch", device: "torch.device", steps: int) -> float:
    """ms per step, the mean of `steps`. Only the edges synchronise the device."""
    from common.device import synchronize

    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        train_step(*batch)
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3 / steps


def mode_steps(
    tracing: Tracing, train_step: "TrainStep", batch: "Batch", device: "torch.device", steps: int, path: Path
) -> tuple[float, float | None]:
    """Train in a mode, `LEAD_STEPS` that are not timed and `steps` that are; write the trace of all into `path`.

    Returns ms per step, and seconds from the end of the last step until the trace is written, None without one.
    """
    import torch

    from common.tracing import leave_spare_memory

    gc.collect()
    profiler = None if tracing.arguments is None else torch.profiler.profile(**tracing.arguments)
    if profiler and device.type == "cpu":
        leave_spare_memory()
    with profiler or nullcontext():
        for _ in range(LEAD_STEPS):
            train_step(*batch)
        step_ms = timed_steps(train_step, batch, device, steps)
        end = time.perf_counter()
    if profiler is None:
        return step_ms, None
    profiler.export_chrome_trace(str(path))
    return step_ms, time.perf_counter() - end


def check_kernels(events: Sequence[Mapping[str, Any]], steps: int, device: "torch.device") -> None:
    """Raise InputError for the trace of so many steps on a GPU that has not even one kernel per step."""
    from common.tracing import kernel_count

    kernels = kernel_count(events)
    if device.type == "cuda" and kernels < steps:
        raise InputError(f"its trace holds {kernels} kernels in {steps} steps: CUPTI recorded nothing, or lost some")


def trace_sizes(path: Path, events: Sequence[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """Of a trace of so many steps, per step: bytes of JSON, bytes once compressed as the steps compress theirs, events
    but metadata.
    """
    content = path.read_bytes()
    return {
        "json_bytes_per_step": len(content) // steps,
        "gzip_bytes_per_step": len(gzip.compress(content, 6)) // steps,
        "events_per_step": sum(event.get("ph") != "M" for event in events) / steps,
    }


# What follows


def cost(mode: Mapping[str, Any]) -> Ratio | None:
    """How many times as long a step takes as without a profiler; above 1 is slower. None of fewer than two runs."""
    ratios = _ratios(mode)
    return of_pairs(ratios) if len(ratios) > 1 else None


def _ratios(mode: Mapping[str, Any]) -> list[float]:
    return [step / off for step, off in zip(mode["step_ms"], mode.get("off_ms", ()), strict=False)]


def is_slower(mode: Mapping[str, Any]) -> bool:
    """Whether a step takes measurably longer than without a profiler."""
    ratio = cost(mode)
    return ratio is not None and ratio.resolved and ratio.ratio > 1


def us_per_event(mode: Mapping[str, Any]) -> float | None:
    """µs that a step takes longer, over its events; None where there are none, or it is not measurably slower."""
    if not mode.get("events_per_step") or not is_slower(mode):
        return None
    more_ms = statistics.median(step - off for step, off in zip(mode["step_ms"], mode["off_ms"], strict=True))
    return max(more_ms, 0.0) * 1e3 / mode["events_per_step"]


def tables(measured: Mapping[str, Any]) -> dict[str, list[Row]]:
    """What each way of tracing costs, a row each, with "off", the median of all processes, first."""

    def mb(size: float | None) -> float | None:
        return None if size is None else size / 1e6

    def median(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    off = {"name": OFF, "step_ms": [off for mode in measured["modes"] for off in mode["off_ms"]]}
    return {
        "overhead": [
            {
                "tracing": mode["name"],
                "step ms": median(mode["step_ms"]),
                "x off": cost(mode) or median(_ratios(mode)),
                "us per event": us_per_event(mode),
                "export s": median(mode.get("finish_seconds", ())),
                "MB per step": mb(mode.get("json_bytes_per_step")),
                "gzip MB": mb(mode.get("gzip_bytes_per_step")),
                "events per step": mode.get("events_per_step"),
            }
            for mode in (off, *measured["modes"])
        ]
    }


def conclusions(measured: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the control shows, which modes are measurably slower, and by how much."""
    control, *modes = measured["modes"]
    costs = [(mode, ratio) for mode in modes if (ratio := cost(mode))]
    steps = [number for mode in measured["modes"] for number in mode["steps"]]
    sentences = [f"{measured['runs']} interleaved runs of {min(steps)} to {max(steps)} steps each."]
    if (same := cost(control)) is None:
        return {"overhead": [*sentences, "One run gives no interval, so no cost is measurable: --runs 5, say."]}
    differs = "it should include 1, so something else differs between runs."
    sentences.append(
        f"The control, which traces nothing either, took {same} as long{': ' + differs if same.resolved else '.'}"
    )
    slower = sorted(((mode, ratio) for mode, ratio in costs if is_slower(mode)), key=lambda pair: pair[1].ratio)
    others = [(mode, ratio) for mode, ratio in costs if not is_slower(mode)]
    for words, which in (("Slower than without a profiler, cheapest first", slower), ("Not measurably slower", others)):
        if which:
            names = ", ".join(f"{mode['name']} {ratio}" for mode, ratio in which)
            sentences.append(f"{words}: {names}.")
    return {"overhead": sentences}


@in_style
def figure(result: Study) -> "Figure":
    """A matplotlib `Figure`: a row for the control and for each mode, its cost and the interval; nothing of one run."""
    from matplotlib.figure import Figure  # half a second to import

    rows = result.tables["overhead"][1:]
    drawn = Figure(figsize=(9, 1.6 + 0.4 * len(rows)))
    axes = drawn.subplots()
    axes.axvline(1, color=GREY, linewidth=1)
    costs = [(at, ratio) for at, row in enumerate(rows) if isinstance(ratio := interval(row["x off"]), Ratio)]
    study.draw_ratios(axes, costs, colour=SPEED, label="mean, 95 % interval")
    low, high = study.shown_range(ratio for _, ratio in costs)
    axes.set_xlim(low - 0.02, high + 0.02)
    for at, row in enumerate(rows):
        if not isinstance(row["x off"], dict):
            text = "not measured" if row["x off"] is None else "one run: no interval"
            axes.annotate(text, (1, at), (8, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row["tracing"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time of a step over that without a profiler")
    axes.set_title(f"{study.title(result)}; {result.measured['runs']} runs")
    if costs:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawn


if __name__ == "__main__":
    study.serve(mode)
