"""Measure what tracing itself costs a training step, for each thing that the profiler can record.

The train step of the course on one batch that is on the device, without a loader's noise. Every mode is measured in
every run, in an order that changes from run to run, and compared with "off" of the same run; a second "off" is the
control, whose interval should hold 1.
"""

import gc
import gzip
import inspect
import math
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from common import machine
from common.device import autocast_dtype, autocast_notes, device_name, synchronize, without_gpu
from common.model import classifier
from common.options import StepOptions
from common.run import progress
from common.run.timing import timed_window
from common.run.tracing import read_trace
from common.studies import one_batch, study
from common.studies.one_batch import Batch, TrainStep
from common.studies.overhead.record import OFF, OFF_AGAIN, Mode, Overhead

MODE_SECONDS, FEWEST_STEPS, MOST_STEPS = 0.75, 2, 25  # of a mode in a run; a trace with stacks has 7 MB per step
LEAD_STEPS = 1  # traced, not timed: the first after tracing began finds caches and buffers cold


@dataclass(frozen=True)
class Tracing:
    """A mode before it is measured. arguments: for `torch.profiler.profile`, None to trace nothing.

    why_not: why it is not measured, if so.
    """

    name: str
    switches: str
    arguments: dict[str, Any] | None = None
    why_not: str | None = None


def tracings(device: torch.device) -> list[Tracing]:
    """Every mode, as a `Tracing`, "off" and its control first."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    operators = "activities CPU and CUDA" if gpu else "activity CPU"
    verbose = _ExperimentalConfig(verbose=True)

    def plus(name: str, switches: str, **arguments: Any) -> Tracing:
        return Tracing(name, f"{operators}, {switches}", {"activities": activities, **arguments})

    modules = plus("+ modules", "with_modules=True", with_modules=True)
    if "with_modules" not in inspect.signature(torch.profiler.profile).parameters:
        modules = Tracing(modules.name, modules.switches, None, "this torch has no with_modules any more")
    kernels_only = {"activities": [ProfilerActivity.CUDA]} if gpu else None
    why_no_kernels = next(iter(without_gpu("kernels_only", device)), None)
    return [
        Tracing(OFF, "no profiler"),
        Tracing(OFF_AGAIN, "no profiler"),
        Tracing("kernels only", "activity CUDA", kernels_only, why_no_kernels),
        Tracing("operators", operators, {"activities": activities}),
        plus("+ shapes", "record_shapes=True", record_shapes=True),
        plus("+ flops", "with_flops=True, which records shapes too", with_flops=True),
        plus("+ memory", "profile_memory=True", profile_memory=True),
        modules,
        plus("+ stacks", "with_stack=True", with_stack=True),
        plus(
            "+ stacks of operators",
            "with_stack=True, experimental_config=_ExperimentalConfig(verbose=True)",
            with_stack=True,
            experimental_config=verbose,
        ),
        plus("as the steps", "record_shapes=True, profile_memory=True", record_shapes=True, profile_memory=True),
    ]


def measure(options: StepOptions, runs: int) -> Overhead:
    """The `Overhead` of tracing on a device. Prints its progress; see `overhead.run` for errors."""
    started, device = machine.now(), torch.device(options.device)
    if device.type == "cpu":
        machine.keep_freed_memory()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else what watches a GPU stays attached, and "off" would not be off
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"overhead: {options.model}, {options.image_size} px, batch {options.batch_size}, on {device_name(device)}, "
        "with no data"
    )
    train_step = TrainStep(model, device, precision)
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, options.image_size)
    modes = tracings(device)
    steps = FEWEST_STEPS if options.quick else steps_for(train_step, batch, device)
    before_ms = trace_steps(modes[0], train_step, batch, device, steps).step_ms
    return Overhead(
        **study.header(options, precision, [*autocast_notes(device, options.precision), *notes], started),
        batch_size=len(batch[1]),
        steps=steps,
        runs=runs,
        before_ms=before_ms,
        modes=measure_modes(modes, train_step, batch, device, runs, steps),
    )


def measure_modes(
    tracings: Sequence[Tracing], train_step: TrainStep, batch: Batch, device: torch.device, runs: int, steps: int
) -> list[Mode]:
    """Measure `steps` steps of each `Tracing` in each run. What cannot be measured becomes a `Mode` without numbers."""
    available = [tracing for tracing in tracings if tracing.why_not is None]
    results = {tracing.name: [] for tracing in available}
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="with_modules is deprecated")  # the table notes it
        path = Path(folder) / "trace.json"
        for tracing in available:  # the first profiler of a process prepares Kineto, and the first of each kind its own
            if tracing.arguments is not None:
                trace_steps(tracing, train_step, batch, device, 1, path)
        progress.report("warm-up", 1, runs + 1)
        for run in range(runs):
            for tracing in order_of_run(available, run):
                results[tracing.name].append(
                    trace_steps(tracing, train_step, batch, device, steps, path, with_sizes=run == 0)
                )
            progress.report(f"run {run + 1}/{runs}", run + 2, runs + 1)
    off_ms = [traced.step_ms for traced in results[OFF]]
    return [mode_of(tracing, results.get(tracing.name, []), off_ms) for tracing in tracings]


def steps_for(train_step: TrainStep, batch: Batch, device: torch.device) -> int:
    """How many steps fill `MODE_SECONDS`, between `FEWEST_STEPS` and `MOST_STEPS`."""
    ms = timed_window(repeat(batch), train_step, device, FEWEST_STEPS).step_ms
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(MODE_SECONDS * 1e3 / min(ms))))


def order_of_run(tracings: Sequence[Tracing], run: int) -> list[Tracing]:
    """The modes in the order of a run: it begins elsewhere each time, and every other one is backwards."""
    start = run * len(tracings) // 3 % len(tracings)
    order = [*tracings[start:], *tracings[:start]]
    return order[::-1] if run % 2 else order


@dataclass(frozen=True)
class Traced:
    """One mode in one run; see `record.Mode`. sizes: of the trace, per step; see `trace_sizes`."""

    step_ms: float
    finish_seconds: float | None
    sizes: tuple[int, int, float] | None


def trace_steps(
    tracing: Tracing,
    train_step: TrainStep,
    batch: Batch,
    device: torch.device,
    steps: int,
    path: Path | None = None,
    with_sizes: bool = False,
) -> Traced:
    """Train `steps` timed steps in one mode. path: where its trace goes, which is read only if `with_sizes`."""
    gc.collect()
    profiler = None if tracing.arguments is None else torch.profiler.profile(**tracing.arguments)
    with profiler or nullcontext():
        for _ in range(LEAD_STEPS):
            train_step(*batch)
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            train_step(*batch)
        synchronize(device)
        end = time.perf_counter()
    step_ms = (end - begin) * 1e3 / steps
    if profiler is None or path is None:
        return Traced(step_ms, None, None)
    profiler.export_chrome_trace(str(path))
    finish_seconds = time.perf_counter() - end
    return Traced(step_ms, finish_seconds, trace_sizes(path, steps + LEAD_STEPS) if with_sizes else None)


def trace_sizes(path: Path, steps: int) -> tuple[int, int, float]:
    """Per step of a trace of so many: (bytes of JSON, bytes once compressed, events other than metadata).

    Compressed as the steps compress theirs. Raises InputError where the trace is not whole.
    """
    events = sum(event.get("ph") != "M" for event in read_trace(path))
    content = path.read_bytes()
    return len(content) // steps, len(gzip.compress(content, 6)) // steps, events / steps


def mode_of(tracing: Tracing, traced: Sequence[Traced], off_ms: Sequence[float]) -> Mode:
    """The `Mode` of a tracing. traced: by run, none if not measured. off_ms: ms per step of "off", by run."""
    sizes = next((run.sizes for run in traced if run.sizes), (None, None, None))
    return Mode(
        name=tracing.name,
        switches=tracing.switches,
        not_measured=tracing.why_not,
        step_ms=[run.step_ms for run in traced],
        ratios=[run.step_ms / off for run, off in zip(traced, off_ms, strict=False)],  # none at all, or all runs
        finish_seconds=[run.finish_seconds for run in traced if run.finish_seconds is not None],
        json_bytes_per_step=sizes[0],
        gzip_bytes_per_step=sizes[1],
        events_per_step=sizes[2],
    )
