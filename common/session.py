"""How every step is measured: warm-up, timed windows without a profiler, then one traced window.

The two measurements are never mixed: tracing slows what it looks at, so throughput comes from the timed windows alone.
"""

import gzip
import json
import math
import os
import shutil
import statistics
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from common import record
from common.device import device_name
from common.errors import InputError
from common.failures import explained
from common.run import progress
from common.run.folder import own_folder, publish, stamp


@dataclass(frozen=True)
class Plan:
    """How long to measure. Steps of a window: as many as fill `window_seconds`, and at least `window_steps`."""

    warmup_steps: int
    warmup_seconds: float
    windows: int
    window_steps: int
    window_seconds: float


FULL = Plan(warmup_steps=2, warmup_seconds=2.0, windows=5, window_steps=3, window_seconds=2.0)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.25)


@dataclass(frozen=True)
class BatchTransfer:
    """What a batch moves to the device: the images' dtype as the step hands them over, None for nothing, and bytes."""

    images: torch.dtype | None
    batch_bytes: int


@dataclass(frozen=True)
class Window:
    """What one timed window saw: images/s over the whole of it, ms of each step, mean loss."""

    samples_per_second: float
    step_ms: list[float]
    loss: float


def run_step(file, args, loader, train_step, precision=torch.float32, notes=()):
    """Measure a step and write `args.logdir/<name of file>/`: result.json, a trace, TensorBoard events.

    file: the step's `__file__`. args: from `step_options`. loader: a DataLoader, or what offers as much (`Prefetcher`,
    `DeviceLoader`): yields (images [N, 3, H, W], labels [N]) and drops a last, smaller batch. train_step(images, labels):
    trains on one batch as it comes from the loader and returns the loss, a tensor of one element. precision: the dtype
    that the model computes in. notes: what this device could not do.

    The first step is timed apart: it compiles, loads kernels and chooses algorithms, so it is in no window.

    An earlier run in that folder is replaced once this one is whole. Raises InputError for what the user can mend:
    a batch larger than the data, no memory, a loader worker killed, a folder that cannot be written, another run
    of the same step in it.
    """
    step, device = Path(file).stem, torch.device(args.device)
    if len(loader) == 0:
        raise InputError(f"--batch-size {loader.batch_size} is larger than the data ({len(loader.dataset)} images)")
    plan = QUICK if args.quick else FULL
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    progress.say(
        f"{step}: {args.model}, {loader.dataset.source} data, {args.image_size} px, batch {loader.batch_size}, "
        f"{loader.num_workers} workers, on {device_name(device)}"
    )
    with own_folder(args.logdir, step) as (folder, beside), explained(args, loader, device):
        parts, batches = plan.windows + 2, endless(loader)
        images, labels = next(batches)
        on_device = getattr(loader, "on_device", False)
        moves = BatchTransfer(None, 0) if on_device else BatchTransfer(images.dtype, images.nbytes + labels.nbytes)
        progress.report("first step", 0, parts)  # it may take minutes
        first_step_seconds = first_step(train_step, images, labels, device)
        del images, labels  # else they would count as memory that the training needs
        steps = warm_up(batches, train_step, device, plan, loader)
        progress.report("warm-up", 1, parts)

        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        windows = []
        for number in range(plan.windows):
            windows.append(timed_window(batches, train_step, device, steps))
            progress.report(f"window {number + 1}/{plan.windows}", number + 2, parts, windows[-1].samples_per_second)
        if device.type == "cuda":
            peak = record.PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))

        trace, packed = beside / "trace.json", beside / "trace.json.gz"  # names that TensorBoard would not load
        trace_events = traced_window(batches, train_step, device, trace, args.stacks)
        if device.type == "cpu":
            peak = record.PeakMemory(cpu_peak_bytes(trace_events), None)
        with open(trace, "rb") as plain, gzip.open(packed, "wb", compresslevel=6) as compressed:
            shutil.copyfileobj(plain, compressed)

        speeds = [window.samples_per_second for window in windows]
        step_ms = [ms for window in windows for ms in window.step_ms]
        result = record.Result(
            schema=record.SCHEMA,
            step=step,
            device=device_name(device),
            device_type=device.type,
            model=args.model,
            data=loader.dataset.source,
            image_size=args.image_size,
            batch_size=loader.batch_size,
            samples_per_second=record.Throughput(statistics.median(speeds), speeds),
            step_ms=record.step_time(step_ms),
            peak_memory_bytes=peak,
            batch_bytes=moves.batch_bytes,
            trace=f"{stamp()}.pt.trace.json.gz",
            notes=[*notes, *_cannot_act(loader, moves, device), *_smoke(args)],
            environment=record.environment(torch.__version__, torch.version.cuda),
            started=started,
        )
        _write_events(beside / "events", windows, steps, first_step_seconds, result, loader, moves, precision)
        publish(folder, beside, packed.name, "events", result)
        progress.report("trace", parts, parts)
    progress.say(
        f"  {result.samples_per_second.median:.1f} images/s (windows {min(speeds):.1f} to {max(speeds):.1f}), "
        f"{result.step_ms.median:.1f} ms a step, peak memory {peak.allocated / 1e9:.2f} GB\n"
        f"  the first step took {first_step_seconds:.1f} s, which is in none of these figures\n"
        f"  written to {folder}; look at it with: tensorboard --logdir {args.logdir}"
    )
    return result


def first_step(train_step, images, labels, device):
    """Train the first batch; return the seconds until the device is done with it. Loading is not in them."""
    synchronize(device)
    begin = time.perf_counter()
    train_step(images, labels)
    synchronize(device)
    return time.perf_counter() - begin


def warm_up(batches, train_step, device, plan, loader):
    """Train untimed until caches, clocks and the loader's queue are as they will be; return the steps of a window."""
    begin = time.perf_counter()
    prefetched = loader.num_workers * (loader.prefetch_factor or 0)  # queued while the workers started: not its pace
    for _ in range(plan.warmup_steps + prefetched):
        train_step(*next(batches))
    step_ms = []
    while not step_ms or time.perf_counter() - begin < plan.warmup_seconds:
        step_ms += timed_window(batches, train_step, device, plan.window_steps).step_ms
    return max(plan.window_steps, math.ceil(plan.window_seconds * 1e3 / statistics.fmean(step_ms)))


def timed_window(batches, train_step, device, steps):
    """Train `steps` steps and time them. Only its edges synchronise the device; in between, only `train_step` may."""
    losses, marks, samples = [], [], 0
    mark = partial(_cuda_mark, device) if device.type == "cuda" else time.perf_counter
    synchronize(device)
    begin = time.perf_counter()
    marks.append(mark())
    for _ in range(steps):
        images, labels = next(batches)
        losses.append(train_step(images, labels).detach())
        marks.append(mark())
        samples += len(labels)
    synchronize(device)
    seconds = time.perf_counter() - begin
    pairs = pairwise(marks)
    if device.type == "cuda":
        step_ms = [before.elapsed_time(after) for before, after in pairs]
    else:
        step_ms = [(after - before) * 1e3 for before, after in pairs]
    return Window(samples / seconds, step_ms, torch.stack(losses).float().mean().item())


def _cuda_mark(device):
    """An event in the device's own queue: times each step without making the host wait for it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def synchronize(device):
    """Wait until a GPU has done all that was launched; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def traced_window(batches, train_step, device, path, stacks=False):
    """Record a torch.profiler trace of three steps (after one skipped and one warm-up step) into `path`.

    With shapes and memory; with `stacks` also Python call stacks and the modules they belong to. Returns its events;
    raises InputError where the trace could not be written whole.
    """
    if device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True) if stacks else None  # operators' stacks need it
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
        with_stack=stacks,
        experimental_config=verbose,
    ) as profiler:
        for _ in range(5):
            images, labels = next(batches)
            train_step(images, labels)
            profiler.step()
    return read_trace(path)


def read_trace(path):
    """The events of a trace that was just written. Raises InputError where it is not whole.

    On a full disk the profiler cuts a trace short without a word.
    """
    try:
        return json.loads(path.read_bytes())["traceEvents"]
    except (OSError, ValueError) as error:
        raise InputError(f"the trace could not be written whole to {path.parent.parent}: is the disk full?") from error


def cpu_peak_bytes(events):
    """The profiler's peak on a CPU: the most bytes that torch's CPU allocator had handed out since tracing began.

    events: those of a trace. What was allocated before (weights, momentum) is not in it, nor is what loader workers
    hold. Read from the `[memory]` events, as the profiler plugin's Memory view does.
    """
    memory = (event["args"] for event in events if event.get("name") == "[memory]")
    return max((values["Total Allocated"] for values in memory if values["Device Type"] == 0), default=0)


def endless(loader):
    """The batches of a loader, epoch after epoch."""
    while True:
        yield from loader


def _cannot_act(loader, moves, device):
    """Optimisations in use that this device cannot profit from, one line each."""
    if device.type == "cuda":
        return []
    notes = []
    if moves.images == torch.uint8:
        notes.append("no GPU: nothing is copied to a device, so sending fewer bytes cannot help")
    if loader.pin_memory:
        notes.append("no GPU: without a copy to a device, pinned memory cannot help (torch leaves it unpinned)")
    return [*notes, *getattr(loader, "notes", ())]


def _smoke(args):
    return ["smoke run (--quick): few steps, so the figures are rough"] if args.quick else []


def _write_events(path, windows, steps, first_step_seconds, result, loader, moves, precision):
    from common.run.events import write_events  # TensorBoard takes a while to import: not before the measuring is over

    scalars = [("first_step_seconds", 1, first_step_seconds)]
    for number, window in enumerate(windows, start=1):
        at = number * steps
        scalars += [("loss", at, window.loss), ("images_per_second", at, window.samples_per_second)]
        scalars += [("step_ms", at, statistics.median(window.step_ms))]
    peak = result.peak_memory_bytes.allocated
    scalars.append(("peak_memory_bytes", len(windows) * steps, peak))
    settings = {  # what the steps change, and no more: the HParams tab shows five columns unasked
        "batch_size": result.batch_size,
        "precision": str(precision).removeprefix("torch."),
        "transfer": str(moves.images).removeprefix("torch."),
        "workers": loader.num_workers,
        "pin_memory": str(loader.pin_memory),  # as text: the tab would print 1.0000
    }
    medians = {
        "median/images_per_second": result.samples_per_second.median,
        "median/step_ms": result.step_ms.median,
        "median/peak_memory_bytes": peak,
    }
    write_events(path, scalars, settings, medians)
