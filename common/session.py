"""How every program is measured: warm-up, timed windows without a profiler, then one traced window.

The two measurements are never mixed: tracing slows the training, so throughput comes from the timed windows alone.
"""

import gzip
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch

from common import machine, record
from common.device import autocast_notes, device_name, dtype_name, synchronize, without_gpu
from common.errors import InputError
from common.failures import as_input_error
from common.loaders import Batch, DeviceLoader, Loader
from common.options import StepOptions
from common.run import progress, ranks
from common.run.folder import add_trace, own_folder, publish, stamp
from common.run.tracing import cpu_peak_bytes, traced_window

TokenCount = Callable[[Batch], "int | torch.Tensor"]  # tokens in a batch; a tensor is read once a window is over
TrainStep = Callable[..., torch.Tensor]  # train_step(*batch) trains on one batch and returns the loss, one element


@dataclass(frozen=True)
class Plan:
    """How long to measure. Steps of a window: as many as fill `window_seconds`, and at least `window_steps`."""

    warmup_steps: int
    warmup_seconds: float
    windows: int
    window_steps: int
    window_seconds: float


FULL = Plan(warmup_steps=2, warmup_seconds=1.2, windows=10, window_steps=3, window_seconds=0.6)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.2)


@dataclass(frozen=True)
class BatchTransfer:
    """What one batch moves to the device: the dtype of its first tensor, None where nothing is moved, and bytes."""

    dtype: torch.dtype | None
    batch_bytes: int


@dataclass(frozen=True)
class Window:
    """One timed window: samples/s (and tokens/s) over the whole of it, ms of each step, mean loss."""

    samples_per_second: float
    tokens_per_second: float | None
    step_ms: list[float]
    loss: float


@dataclass(frozen=True)
class Timing:
    """A training as it was timed. first_step_seconds: of the first step, loading not included; it is in no window."""

    first_step_seconds: float
    windows: list[Window]

    @property
    def samples_per_second(self) -> record.Throughput:
        speeds = [window.samples_per_second for window in self.windows]
        return record.Throughput(statistics.median(speeds), speeds)

    @property
    def tokens_per_second(self) -> record.Throughput | None:
        speeds = [window.tokens_per_second for window in self.windows if window.tokens_per_second is not None]
        return record.Throughput(statistics.median(speeds), speeds) if speeds else None

    @property
    def step_ms(self) -> record.StepTime:
        return record.step_time([ms for window in self.windows for ms in window.step_ms])


def run_step(
    file: str,
    args: StepOptions,
    loader: Loader,
    train_step: TrainStep,
    precision: torch.dtype | None = None,
    notes: Sequence[str] = (),
    count_tokens: TokenCount | None = None,
) -> record.Result | None:
    """Measure a program and write `args.logdir/<name of file>/`: result.json, a trace, TensorBoard events.

    file: the program's `__file__`. args: from `step_options`. loader: a DataLoader or another `loaders.Loader`.
    train_step(*batch): trains on one batch as the loader yields it and returns the loss, a tensor of one element.
    precision: the dtype that autocast computes in, float32 where it is off; None for a program without autocast.
    notes: what this device could not do, beside what is noted here. count_tokens(batch): tokens in a batch; a tensor is
    read only at a window's end.

    An earlier run in that folder is replaced once this one is whole. Under torch.distributed, samples of all processes
    count, and rank 0 writes; the others add their traces and return None. Raises InputError for what the user can fix:
    a batch larger than the data, no memory, a loader worker killed, a folder that cannot be written, another run of
    the same program in it.
    """
    step, device = Path(file).stem, torch.device(args.device)
    source = getattr(loader.dataset, "source", type(loader.dataset).__name__)
    batch_size = loader.batch_size or 1
    if len(loader) == 0:
        raise InputError(f"--batch-size {batch_size} is larger than the data ({len(loader.dataset)} images)")
    plan = QUICK if args.quick else FULL
    started = machine.now()
    leads = ranks.rank() == 0
    say = progress.say if leads else _quiet
    say(
        f"{step}: {args.model}, {source} data, {args.image_size} px, batch {batch_size}, "
        f"{loader.num_workers} workers, on {device_name(device)}"
    )
    own_name = step if leads else f"{step}.rank{ranks.rank()}"
    with own_folder(args.logdir, own_name) as (folder, staging), as_input_error(args, loader, device):
        parts, batches = plan.windows + 2, endless(loader)
        first_batch = next(batches)
        transfer = batch_transfer(first_batch, loader)
        batches = chain([first_batch], batches)
        del first_batch  # else it would count as memory that the training needs
        report = partial(progress.report, of=parts) if leads else _quiet
        timing = time_training(batches, train_step, device, plan, queued_batches(loader), count_tokens, report)
        if device.type == "cuda":
            peak = record.PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))

        trace, packed = staging / "trace.json", staging / "trace.json.gz"  # names that TensorBoard would not load
        trace_events = traced_window(batches, train_step, device, trace, args.stacks, queued_batches(loader))
        if device.type == "cpu":
            peak = record.PeakMemory(cpu_peak_bytes(trace_events), None)
        with open(trace, "rb") as plain, gzip.open(packed, "wb", compresslevel=6) as compressed:
            shutil.copyfileobj(plain, compressed)
        if not leads:
            ranks.wait_for_all()  # rank 0 has published
            add_trace(args.logdir / step, packed, _trace_name())
            return None

        result = record.Result(
            schema=record.SCHEMA,
            step=step,
            device=device_name(device),
            device_type=device.type,
            model=args.model,
            data=source,
            image_size=args.image_size,
            batch_size=batch_size,
            precision=dtype_name(precision or torch.float32),
            workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            world_size=ranks.world_size(),
            samples_per_second=timing.samples_per_second,
            tokens_per_second=timing.tokens_per_second,
            first_step_seconds=timing.first_step_seconds,
            step_ms=timing.step_ms,
            peak_memory_bytes=peak,
            batch_bytes=transfer.batch_bytes,
            trace=_trace_name(),
            notes=[*notes, *_notes(step, args, device, precision)],
            environment=record.environment(torch.__version__, torch.version.cuda),
            started=started,
        )
        _write_events(staging / "events", timing, result, transfer)
        publish(folder, staging, packed.name, "events", result)
        ranks.wait_for_all()
        progress.report("trace", parts, parts)
    speeds = timing.samples_per_second
    tokens = f"{timing.tokens_per_second.median:.0f} tokens/s, " if timing.tokens_per_second else ""
    say(
        f"  {tokens}{speeds.median:.1f} images/s (windows {min(speeds.windows):.1f} to {max(speeds.windows):.1f}), "
        f"{result.step_ms.median:.1f} ms per step, peak memory {peak.allocated / 1e9:.2f} GB\n"
        f"  the first step took {timing.first_step_seconds:.1f} s and is in none of these figures\n"
        f"  written to {folder}; look at it with: tensorboard --logdir {args.logdir}"
    )
    return result


def _trace_name() -> str:
    """The file name of this process's trace, <host>.<ms>.pt.trace.json.gz; TensorBoard shows each rank as a host."""
    rank = f"_rank{ranks.rank()}" if ranks.world_size() > 1 else ""
    return f"{stamp(rank)}.pt.trace.json.gz"


def _quiet(*_: object, **__: object) -> None:
    """Report nothing."""


def time_training(
    batches: Iterator[Batch],
    train_step: TrainStep,
    device: torch.device,
    plan: Plan,
    queued: int = 0,
    count_tokens: TokenCount | None = None,
    report: Callable[..., None] = _quiet,
    around_windows: AbstractContextManager[Any] | None = None,
) -> Timing:
    """Train on `batches` and time it: the first step, a warm-up that is not timed, then the windows of `plan`.

    queued: batches that a loader's workers have loaded ahead; they are used up first, since they show no loading.
    report(phase, done): called after each part. around_windows: entered while the windows are timed.
    """
    if device.type == "cpu":
        machine.keep_freed_memory()
    report("first step", 0)  # it may take minutes
    first_step_seconds = _time_first_step(next(batches), train_step, device)
    steps = warm_up(batches, train_step, device, plan, queued)
    report("warm-up", 1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    windows = []
    with around_windows or nullcontext():
        for number in range(1, plan.windows + 1):
            windows.append(timed_window(batches, train_step, device, steps, count_tokens))
            report(f"window {number}/{plan.windows}", number + 1, samples_per_second=windows[-1].samples_per_second)
    return Timing(first_step_seconds, windows)


def _time_first_step(batch: Batch, train_step: TrainStep, device: torch.device) -> float:
    synchronize(device)
    begin = time.perf_counter()
    train_step(*batch)
    synchronize(device)
    return time.perf_counter() - begin


def warm_up(batches: Iterator[Batch], train_step: TrainStep, device: torch.device, plan: Plan, queued: int = 0) -> int:
    """Train untimed until caches, clocks and the loader's queue are as they will be; return the steps of a window."""
    begin = time.perf_counter()
    for _ in range(plan.warmup_steps + queued):
        train_step(*next(batches))
    step_ms = []
    while ranks.from_rank_0(not step_ms or time.perf_counter() - begin < plan.warmup_seconds):
        step_ms += timed_window(batches, train_step, device, plan.window_steps).step_ms
    steps = max(plan.window_steps, math.ceil(plan.window_seconds * 1e3 / statistics.fmean(step_ms)))
    return ranks.from_rank_0(steps)


def timed_window(
    batches: Iterator[Batch],
    train_step: TrainStep,
    device: torch.device,
    steps: int,
    count_tokens: TokenCount | None = None,
) -> Window:
    """Train `steps` steps and time them. Only its edges synchronise the device; in between, only `train_step` may."""
    losses, marks, samples = [], [], 0
    tokens = []
    synchronize(device)
    begin = time.perf_counter()
    marks.append(_mark(device))
    for _ in range(steps):
        batch = next(batches)
        losses.append(train_step(*batch).detach())
        marks.append(_mark(device))
        samples += len(batch[0])
        if count_tokens:
            tokens.append(count_tokens(batch))
    synchronize(device)
    seconds = time.perf_counter() - begin
    if device.type == "cuda":
        step_ms = [before.elapsed_time(after) for before, after in pairwise(marks)]
    else:
        step_ms = [(after - before) * 1e3 for before, after in pairwise(marks)]
    speed, token_speed = ranks.summed([samples / seconds, float(sum(tokens)) / seconds])
    loss = torch.stack(losses).float().mean().item()
    return Window(speed, token_speed if count_tokens else None, step_ms, loss)


def _mark(device: torch.device) -> Any:
    """A point in time: on a GPU an event in the device's own queue, which the host does not wait for; else seconds."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def endless(loader: Loader) -> Iterator[Batch]:
    """The batches of a loader, epoch after epoch."""
    while True:
        yield from loader


def queued_batches(loader: Loader) -> int:
    """How many batches the loader's workers load ahead."""
    return loader.num_workers * (loader.prefetch_factor or 0)


def batch_transfer(batch: Batch, loader: Loader) -> BatchTransfer:
    """What a batch of this loader moves to the device."""
    if isinstance(loader, DeviceLoader):
        return BatchTransfer(None, 0)
    return BatchTransfer(batch[0].dtype, sum(part.nbytes for part in batch if isinstance(part, torch.Tensor)))


def _notes(step: str, args: StepOptions, device: torch.device, precision: torch.dtype | None) -> list[str]:
    """How a CPU waits and keeps memory, what could not be done here (mixed precision, this change), a smoke run."""
    notes = [machine.openmp_waiting()] if device.type == "cpu" else []
    notes += [machine.KEEPS_FREED_MEMORY] if device.type == "cpu" and machine.keep_freed_memory() else []
    notes += [] if precision is None else autocast_notes(device, args.precision)
    change = step.partition("_")[2]
    notes += [*without_gpu(change, device), *ranks.without_others(change)]
    return notes + (["smoke run (--quick): few steps, so the figures are rough"] if args.quick else [])


def _write_events(path: Path, timing: Timing, result: record.Result, transfer: BatchTransfer) -> None:
    from common.run.events import write_events  # TensorBoard takes a while to import: not before measuring is over

    scalars: list[tuple[str, int, float]] = [("first_step_seconds", 1, timing.first_step_seconds)]
    steps = len(timing.windows[0].step_ms)
    for number, window in enumerate(timing.windows, start=1):
        at = number * steps
        scalars += [("loss", at, window.loss), ("images_per_second", at, window.samples_per_second)]
        scalars += [("step_ms", at, statistics.median(window.step_ms))]
        if window.tokens_per_second is not None:
            scalars.append(("tokens_per_second", at, window.tokens_per_second))
    peak = result.peak_memory_bytes.allocated
    scalars.append(("peak_memory_bytes", len(timing.windows) * steps, peak))
    settings = {  # what the steps change, and no more: the HParams tab shows five columns unasked
        "batch_size": result.batch_size,
        "precision": result.precision,
        "transfer": str(transfer.dtype).removeprefix("torch."),
        "workers": result.workers,
        "pin_memory": str(result.pin_memory),  # as text: the tab would print 1.0000
    }
    medians = {
        "median/images_per_second": result.samples_per_second.median,
        "median/step_ms": result.step_ms.median,
        "median/peak_memory_bytes": peak,
    }
    write_events(path, scalars, settings, medians)
