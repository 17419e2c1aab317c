"""`python -m common overhead`: what tracing itself costs a training step, for each thing that the profiler can record.

The train step of the course on one batch that lies on the device, so that no loader's noise is in it. Every mode is
measured in every run, in an order that turns from run to run, and compared with "off" of the same run; a second "off"
is the control, which tells how much of a ratio is noise.
"""

import gc
import gzip
import inspect
import math
import os
import tempfile
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import repeat
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from common import record
from common.device import autocast_dtype, device_name
from common.model import classifier
from common.run import progress
from common.session import read_trace, synchronize, timed_window
from common.studies import one_batch, report
from common.studies.overhead.record import FILE, OFF, OFF_AGAIN, Mode, Overhead
from common.studies.overhead.view import print_overhead

BATCH_SIZE = {"cuda": 128, "cpu": 32}
RUNS, QUICK_RUNS = 5, 2
MODE_SECONDS, FEWEST_STEPS, MOST_STEPS = 0.75, 2, 10  # of a mode in a run; a trace with stacks has 7 MB a step
LEAD_STEPS = 1  # traced, not timed: the first after tracing began finds caches and buffers cold
SMOKE = "smoke run (--quick): few runs of one step, so the figures are rough"


@dataclass(frozen=True)
class Tracing:
    """A mode before it is measured. arguments: for `torch.profiler.profile`, None to trace nothing; why_not: if not."""

    name: str
    switches: str
    arguments: dict | None = None
    why_not: str | None = None


def overhead(args):
    """Measure, write `overhead.json` into `args.logdir`, print it. Returns 0. Raises InputError; see `limit`."""
    device = one_batch.ready_device(args)
    args.batch_size = args.batch_size or BATCH_SIZE[device.type]
    args.runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    return report.of(args, FILE, lambda: measure(args, device), print_overhead)


def tracings(device):
    """Every mode, as a `Tracing`, "off" and its control first."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    operators = "activities CPU and CUDA" if gpu else "activity CPU"
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)

    def plus(name, switches, **arguments):
        return Tracing(name, f"{operators}, {switches}", {"activities": activities, **arguments})

    modules = plus("+ modules", "with_modules=True", with_modules=True)
    if "with_modules" not in inspect.signature(torch.profiler.profile).parameters:
        modules = Tracing(modules.name, modules.switches, None, "this torch has no with_modules any more")
    return [
        Tracing(OFF, "no profiler"),
        Tracing(OFF_AGAIN, "no profiler"),
        Tracing(
            "kernels only",
            "activity CUDA",
            {"activities": [ProfilerActivity.CUDA]} if gpu else None,
            None if gpu else "no GPU, so there are no kernels to record",
        ),
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


def measure(args, device):
    """The `Overhead` of tracing on a device. Prints its progress; see `overhead` for errors."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else what watches a GPU stays attached, and "off" would not be off
    torch.manual_seed(args.seed)
    model = classifier(args.model, args.image_size)
    precision, notes = autocast_dtype(device)
    progress.say(
        f"overhead: {args.model}, {args.image_size} px, batch {args.batch_size}, on {device_name(device)}, with no data"
    )
    train_step = one_batch.TrainStep(model, device, precision)
    batch, halved = one_batch.fitting_batch(train_step, args.batch_size, args.image_size)
    every = tracings(device)
    steps = 1 if args.quick else steps_for(train_step, batch, device)
    untraced = traced(every[0], train_step, batch, device, steps, None).step_ms
    modes = measured(every, train_step, batch, device, args.runs, steps)
    return Overhead(
        schema=record.SCHEMA,
        device=device_name(device),
        device_type=device.type,
        model=args.model,
        image_size=args.image_size,
        batch_size=len(batch[1]),
        precision=str(precision).removeprefix("torch."),
        seed=args.seed,
        steps=steps,
        runs=args.runs,
        before_ms=untraced,
        modes=modes,
        notes=[*notes, *halved, *([SMOKE] if args.quick else [])],
        environment=record.environment(torch.__version__, torch.version.cuda),
        started=started,
    )


def measured(every, train_step, batch, device, runs, steps):
    """Measure `steps` steps of each `Tracing` in each run. What cannot be measured becomes a `Mode` without numbers."""
    taken = [tracing for tracing in every if tracing.why_not is None]
    seen = {tracing.name: [] for tracing in taken}
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="with_modules is deprecated")  # said in the table
        path = Path(folder) / "trace.json"
        for tracing in taken:  # the first profiler of a process prepares Kineto, and the first of each kind its own
            if tracing.arguments is not None:
                traced(tracing, train_step, batch, device, 1, path)
        progress.report("warm-up", 1, runs + 1)
        for run in range(runs):
            for tracing in turned(taken, run):
                seen[tracing.name].append(traced(tracing, train_step, batch, device, steps, path, sized=run == 0))
            progress.report(f"run {run + 1}/{runs}", run + 2, runs + 1)
    off = [each.step_ms for each in seen[OFF]]
    return [mode_of(tracing, seen.get(tracing.name, []), off) for tracing in every]


def steps_for(train_step, batch, device):
    """How many steps fill `MODE_SECONDS`, between `FEWEST_STEPS` and `MOST_STEPS`."""
    ms = timed_window(repeat(batch), train_step, device, FEWEST_STEPS).step_ms
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(MODE_SECONDS * 1e3 / min(ms))))


def turned(modes, run):
    """The modes in the order of a run: begun elsewhere each time, every other one backwards."""
    start = run * len(modes) // 3 % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if run % 2 else order


@dataclass(frozen=True)
class Traced:
    """One mode in one run; see `overhead_record.Mode`. sizes: of the trace, a step; see `trace_sizes`."""

    step_ms: float
    finish_seconds: float | None
    sizes: tuple[int, int, float] | None


def traced(tracing, train_step, batch, device, steps, path, sized=False):
    """Train `steps` timed steps in one mode; its trace goes to `path`, and only if `sized` is it read."""
    gc.collect()
    tracing_now = nullcontext() if tracing.arguments is None else torch.profiler.profile(**tracing.arguments)
    with tracing_now:
        for _ in range(LEAD_STEPS):
            train_step(*batch)
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            train_step(*batch)
        synchronize(device)
        end = time.perf_counter()
    step_ms = (end - begin) * 1e3 / steps
    if tracing.arguments is None:
        return Traced(step_ms, None, None)
    tracing_now.export_chrome_trace(str(path))
    finish_seconds = time.perf_counter() - end
    return Traced(step_ms, finish_seconds, trace_sizes(path, steps + LEAD_STEPS) if sized else None)


def trace_sizes(path, steps):
    """Of a trace of so many steps, a step's (bytes of JSON, bytes once compressed, events other than metadata).

    Compressed as the steps compress theirs. Raises InputError where the trace is not whole.
    """
    events = sum(event.get("ph") != "M" for event in read_trace(path))
    content = path.read_bytes()
    return len(content) // steps, len(gzip.compress(content, 6)) // steps, events / steps


def mode_of(tracing, seen, off):
    """The `Mode` of what was seen run by run (`Traced`); off: ms a step without tracing in the same runs."""
    sizes = next((each.sizes for each in seen if each.sizes), (None, None, None))
    return Mode(
        name=tracing.name,
        switches=tracing.switches,
        not_measured=tracing.why_not,
        step_ms=[each.step_ms for each in seen],
        ratios=[each.step_ms / baseline for each, baseline in zip(seen, off, strict=False)],
        finish_seconds=[each.finish_seconds for each in seen if each.finish_seconds is not None],
        json_bytes_per_step=sizes[0],
        gzip_bytes_per_step=sizes[1],
        events_per_step=sizes[2],
    )
