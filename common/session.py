"""How every program is measured: warm-up, timed windows without a profiler, then one traced window.

The two measurements are never mixed: tracing slows the training, so throughput comes from the timed windows alone.
"""

import ast
import gzip
import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from common import ranks
from common.device import autocast_notes, cpu_notes, device_name, dtype_name, gpu_peak_bytes, without_gpu
from common.failures import as_input_error
from common.gpu_clocks import GpuWatch
from common.loaders import Batch, DeviceLoader, Epochs, Loader
from common.options import StepOptions
from common.timing import FULL, QUICK, Timing, TokenCount, TrainStep, quiet, time_training
from common.tracing import cpu_peak_bytes, new_pages, traced_window, without_kernels
from walkthrough.results import capture, progress
from walkthrough.results import result as record
from walkthrough.results.environment import current_environment, now
from walkthrough.results.errors import InputError
from walkthrough.results.folder import add_trace, own_folder, publish, stamp
from walkthrough.results.progress import end_with_reader


@dataclass(frozen=True)
class BatchTransfer:
    """What one batch moves to the device: the dtype of its first tensor, None where nothing is moved, and bytes."""

    dtype: torch.dtype | None
    batch_bytes: int


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
    notes: what this device could not do, besides those noted here. count_tokens(batch): tokens in a batch; a tensor is
    read only at a window's end.

    An earlier run in that folder is replaced once this one is whole. Under torch.distributed, samples of all processes
    count, and rank 0 writes; the others add their traces and return None. Raises InputError for what the user can fix:
    a batch larger than the data, no memory, a loader worker killed, a folder that cannot be written, another run of
    the same program in it.
    """
    if capture.current.get():
        raise capture.Captured(capture.Program(file, args, loader, train_step, precision, count_tokens))
    if progress.is_followed():
        end_with_reader()
    step, device = Path(file).stem, torch.device(args.device)
    source = getattr(loader.dataset, "source", type(loader.dataset).__name__)
    batch_size, unit = loader.batch_size or 1, getattr(loader.dataset, "unit", "images")
    if len(loader) == 0:
        raise InputError(f"--batch-size {batch_size} is larger than the data ({len(loader.dataset)} {unit})")
    if no_effect := without_effect(args, loader, precision):
        print(*(f"{step}: {flag} has no effect in this step" for flag in no_effect), sep="\n")
    plan = QUICK if args.quick else FULL
    needs = unmet_need(file, device, precision)
    started, environment = now(), current_environment(torch.__version__, torch.version.cuda)
    leads = ranks.rank() == 0
    say = progress.say if leads else quiet
    say(
        f"{step}: {args.model}, {source} data, {record.size_label(args.image_size)}, batch {batch_size}, "
        f"{loader.num_workers} workers, on {device_name(device)}"
    )
    own_name = step if leads else f"{step}.rank{ranks.rank()}"
    with own_folder(args.logdir, own_name) as (folder, staging), as_input_error(args, loader, device, file):
        parts, batches = plan.windows + 2, Epochs(loader)
        transfer = batch_transfer(batches.peek(), loader)
        report = partial(progress.report, of=parts, unit=unit) if leads else quiet
        watch = GpuWatch(device)
        timing = time_training(batches, train_step, device, plan, count_tokens, report, around_windows=watch)
        if device.type == "cuda":
            peak = record.PeakMemory(*gpu_peak_bytes(device))

        trace, packed = staging / "trace.json", staging / "trace.json.gz"  # names that TensorBoard would not load
        page_faults: list[int] = []
        trace_events = traced_window(batches, train_step, device, trace, args.stacks, page_faults)
        distorted = without_kernels(trace_events, device)
        if distorted and leads:  # also where `record` follows this run and shows no notes
            print(distorted[0], flush=True)
        if device.type == "cpu":
            peak = record.PeakMemory(cpu_peak_bytes(trace_events), None)
            distorted += new_pages(page_faults, timing.page_faults)
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
            gpu_clocks=watch.clocks,
            trace=_trace_name(),
            needs=needs,
            notes=[*notes, *_notes(step, args, device, precision), *watch.notes, *distorted],
            environment=environment,
            started=started,
        )
        _write_events(staging / "events", timing, result, transfer)
        publish(folder, staging, packed.name, "events", result)
        ranks.wait_for_all()
        progress.report("trace", parts, parts)
    speeds = timing.samples_per_second
    tokens = f"{timing.tokens_per_second.median:.0f} tokens/s, " if timing.tokens_per_second else ""
    say(
        f"  {tokens}{speeds.median:.1f} {unit}/s (windows {min(speeds.windows):.1f} to {max(speeds.windows):.1f}), "
        f"{result.ms_per_step:.1f} ms per step, {_peak_in_words(peak.allocated, device)}\n"
        f"  the first step took {timing.first_step_seconds:.1f} s and is in none of these figures\n"
        f"  written to {folder}; look at it with: tensorboard --logdir {args.logdir}"
    )
    return result


def _peak_in_words(size: int, device: torch.device) -> str:
    """The peak in bytes, and what is counted: "peak memory 2.51 GB (allocated on the GPU)"."""
    text = f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    what = "what the traced steps allocate, without weights" if device.type == "cpu" else "allocated on the GPU"
    return f"peak memory {text} ({what})"


def without_effect(args: StepOptions, loader: Loader, precision: torch.dtype | None) -> list[str]:
    """Flags of the command line that a program does not follow: its loader has other values, or it has no autocast."""
    follows = {
        "batch_size": args.batch_size == (loader.batch_size or 1),
        "workers": args.workers == loader.num_workers,
        "precision": precision is not None,
    }
    return [f"--{name.replace('_', '-')}" for name in args.given if not follows[name]]


def unmet_need(file: str, device: torch.device, precision: torch.dtype | None) -> str | None:
    """What the program's change needs, by the line `Needs` of its docstring, and this run lacks; None where it acts.

    "a GPU"; "bf16 units", which are there where autocast is on; "a second process". A program without that line acts
    everywhere, as does one that is no file. Raises InputError for another need.
    """
    if not Path(file).is_file():
        return None
    docstring = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or ""
    line = re.search(r"^Needs\s+(.*)", docstring, re.MULTILINE)
    if line is None:
        return None
    met = {
        "a GPU": device.type == "cuda",
        "bf16 units": precision not in (None, torch.float32),
        "a second process": ranks.world_size() > 1,
    }
    need = next((need for need in met if line[1].startswith(need)), None)
    if need is None:
        raise InputError(f"{file}: the line Needs of its docstring says {line[1]!r}; known are: {', '.join(met)}")
    return None if met[need] else need


def _trace_name() -> str:
    """The file name of this process's trace, <host>.<ms>.pt.trace.json.gz; TensorBoard shows each rank as a host."""
    rank = f"_rank{ranks.rank()}" if ranks.world_size() > 1 else ""
    return f"{stamp(rank)}.pt.trace.json.gz"


def batch_transfer(batch: Batch, loader: Loader) -> BatchTransfer:
    """What a batch of this loader moves to the device."""
    if isinstance(loader, DeviceLoader):
        return BatchTransfer(None, 0)
    return BatchTransfer(batch[0].dtype, sum(part.nbytes for part in batch if isinstance(part, torch.Tensor)))


def _notes(step: str, args: StepOptions, device: torch.device, precision: torch.dtype | None) -> list[str]:
    """How a CPU waits and keeps memory, what could not be done here (mixed precision, this change), a smoke run."""
    notes = cpu_notes() if device.type == "cpu" else []
    notes += [] if precision is None else autocast_notes(device, args.precision)
    change = step.partition("_")[2]
    notes += [*without_gpu(change, device), *ranks.without_others(change)]
    return notes + (["smoke run (--quick): few steps, so the figures are rough"] if args.quick else [])


def _write_events(path: Path, timing: Timing, result: record.Result, transfer: BatchTransfer) -> None:
    from walkthrough.results.events import (
        write_events,  # TensorBoard takes a while to import: not before measuring is over
    )

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
