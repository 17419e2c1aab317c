"""One mode of `overhead` in one run: `python -m studies.overhead.program JSON`, a process of its own.

A process opens one profiler at most, and measures "off" before it. Once a profiler was open, CUPTI, which records the
kernels of a GPU, stays attached to the process: no later step would be without it. Where it is detached after each
profiler (TEARDOWN_CUPTI=1), profilers that follow each other have crashed the process, or recorded no kernels:
github.com/pytorch/kineto/pull/1169 and 1554. So the first steps that the profiler traces are its warm-up.

A window lasts a certain time, since 25 steps of a fast GPU are over in 0.1 s. All its steps are in the trace, of which
each has up to 7 MB with stacks, so a traced window ends earlier where its trace would be too large (`most_steps`).
"""

import gc
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from common.device import autocast_dtype, disable_tf32, synchronize
from common.machine import keep_freed_memory
from common.model import classifier
from common.options import StepOptions
from common.timing import Plan, warm_up
from common.tracing import kernel_count, leave_spare_memory, read_trace
from studies import one_batch
from studies.one_batch import Batch, TrainStep
from studies.overhead.tracings import Tracing, tracings
from walkthrough.compare.isolated import REASON_LENGTH, options_from, print_answer
from walkthrough.compare.reader import end_with_reader
from walkthrough.results.errors import InputError, printable

FULL = Plan(warmup_steps=1, warmup_seconds=0.5, windows=1, window_steps=2, window_seconds=0.75)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=1, window_steps=2, window_seconds=0.0)
LEAD_STEPS = 2  # traced, not timed: the first after tracing began find caches and buffers cold


@dataclass(frozen=True)
class TraceSizes:
    """Of a trace, per step: bytes of JSON, bytes once compressed as the steps compress theirs, events but metadata."""

    json_bytes_per_step: int
    gzip_bytes_per_step: int
    events_per_step: float


@dataclass(frozen=True)
class ModeRun:
    """One mode in one run. off_ms: of a step, before the process used a profiler; step_ms: of one in the mode.

    steps: that step_ms is the mean of. finish_seconds: from the end of the last step until the trace is written; None
    without a trace. sizes: None where they were not asked for. batch_size: the one that fits; notes: of those that
    did not.
    """

    off_ms: float
    step_ms: float
    steps: int
    finish_seconds: float | None
    sizes: TraceSizes | None
    batch_size: int
    notes: list[str]


def from_json(value: Mapping[str, Any]) -> ModeRun:
    """The `ModeRun` that a process answered with."""
    return ModeRun(**{**value, "sizes": value["sizes"] and TraceSizes(**value["sizes"])})


def measured_here(tracing: Tracing, options: StepOptions, most_steps: int | None, with_sizes: bool) -> ModeRun:
    """Measure "off", then a mode, in this process. most_steps: in the traced window, None for as many as "off" has.

    Raises InputError where no batch fits, and where the trace is not whole or has no kernels.
    """
    device = torch.device(options.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    disable_tf32()
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)
    train_step = TrainStep(model, device, autocast_dtype(device, options.precision))
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, options.image_size)
    off_steps = warm_up(repeat(batch), train_step, device, QUICK if options.quick else FULL)
    gc.collect()
    off_ms = timed_steps(train_step, batch, device, off_steps)
    steps = off_steps if most_steps is None else min(off_steps, most_steps)
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        path = Path(folder) / "trace.json"
        step_ms, finish_seconds = mode_steps(tracing, train_step, batch, device, steps, path)
        sizes = None
        if tracing.arguments is not None:
            events, all_steps = read_trace(path), LEAD_STEPS + steps
            check_kernels(events, all_steps, device)
            sizes = trace_sizes(path, events, all_steps) if with_sizes else None
    return ModeRun(off_ms, step_ms, steps, finish_seconds, sizes, len(batch[1]), notes)


def timed_steps(train_step: TrainStep, batch: Batch, device: torch.device, steps: int) -> float:
    """ms per step, the mean of `steps`. Only the edges synchronise the device."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        train_step(*batch)
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3 / steps


def mode_steps(
    tracing: Tracing, train_step: TrainStep, batch: Batch, device: torch.device, steps: int, path: Path
) -> tuple[float, float | None]:
    """Train in a mode, `LEAD_STEPS` that are not timed and `steps` that are; write the trace of all into `path`.

    Returns ms per step, and seconds from the end of the last step until the trace is written, None without one.
    """
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


def check_kernels(events: Sequence[Mapping[str, Any]], steps: int, device: torch.device) -> None:
    """Raise InputError for the trace of so many steps on a GPU that has not even one kernel per step."""
    kernels = kernel_count(events)
    if device.type == "cuda" and kernels < steps:
        raise InputError(f"its trace holds {kernels} kernels in {steps} steps: CUPTI recorded nothing, or lost some")


def trace_sizes(path: Path, events: Sequence[Mapping[str, Any]], steps: int) -> TraceSizes:
    """The `TraceSizes` of a trace of so many steps, whose events are `events`."""
    content = path.read_bytes()
    return TraceSizes(
        json_bytes_per_step=len(content) // steps,
        gzip_bytes_per_step=len(gzip.compress(content, 6)) // steps,
        events_per_step=sum(event.get("ph") != "M" for event in events) / steps,
    )


def main(settings: str) -> None:
    """Measure the mode that a line of JSON describes: {"mode": its name, "options", "most_steps", "with_sizes"}.

    Answers with the fields of a `ModeRun`, or {"error": why not, in a line}.
    """
    try:
        values = json.loads(settings)
        options = options_from(values["options"])
        tracing = next(each for each in tracings(torch.device(options.device)) if each.name == values["mode"])
        answer = asdict(measured_here(tracing, options, values["most_steps"], values["with_sizes"]))
    except InputError as error:
        answer = {"error": printable(error, REASON_LENGTH)}
    except Exception as error:  # profilers and drivers fail in any way; the other modes go on
        answer = {"error": printable(f"{type(error).__name__}: {error}", REASON_LENGTH)}
    print_answer(answer)


if __name__ == "__main__":
    end_with_reader()
    main(sys.argv[1])
