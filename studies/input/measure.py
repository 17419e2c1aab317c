"""Measure how many images/s the input pipeline alone delivers, for each number of workers.

The data, the transform and the DataLoader are those of step 05. Nothing trains meanwhile: each batch is taken and
dropped. The other side is the limit, what the model alone consumes, with the resizing of stored images on the device;
the slower of the two is the bottleneck.
"""

import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, Dataset

from common.data import cifar10, resized_uint8
from common.device import autocast_dtype, autocast_notes, dtype_name
from common.loaders import Batch, Epochs
from common.model import classifier
from common.options import StepOptions
from studies import one_batch, study
from studies.input.record import FASTER, UNRESOLVED, Consumed, Delivered, InputLimit, compared
from studies.limit import record as limit_record
from studies.processes import process_memory
from studies.study import workers_text
from walkthrough.results import environment, privacy, progress, result
from walkthrough.results.errors import InputError, is_out_of_memory, printable

WORKER_FAILURES = r"DataLoader worker .*(killed by signal|exited unexpectedly)|shared memory|Too many open files"
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 1.0, 0.1


def measure(options: StepOptions) -> InputLimit:
    """The `InputLimit` of a device. Prints its progress. Raises InputError."""
    started, device, cores = environment.now(), torch.device(options.device), environment.usable_cores()
    classifier(options.model, options.image_size)  # refused now rather than once the data was measured
    data = cifar10(options.data, transform=resized_uint8(options.image_size))
    if options.batch_size > len(data):
        raise InputError(f"--batch-size {options.batch_size} is larger than the data ({len(data)} images)")
    numbers = worker_numbers(cores)
    progress.say(f"limit --input: {data.source} data, {options.image_size} px, batch {options.batch_size}")
    precision = autocast_dtype(device, options.precision)
    consumed, notes = model_alone(options, precision)
    progress.report("model alone", 1, len(numbers) + 1, consumed.samples_per_second.median)
    window_seconds = QUICK_WINDOW_SECONDS if options.quick else WINDOW_SECONDS
    delivered = []
    for number in numbers:
        try:
            with worker_failures_as_input_error(number):
                delivered.append(deliver(data, options, number, window_seconds))
        except InputError as error:
            if not any(row.workers for row in delivered):
                raise
            notes.append(privacy.reason(str(error)))  # what was measured with fewer is kept
            progress.say(f"  {error}")
            break
        speed = delivered[-1].samples_per_second.median
        progress.report(workers_text(number), len(delivered) + 1, len(numbers) + 1, speed)
    if device.type == "cpu":
        notes.append("the workers had all cores to themselves here; on a CPU the model trains on the same ones")
    return InputLimit(
        **study.header(
            options, precision, [*autocast_notes(device, options.precision), *notes], started, data=data.source
        ),
        batch_size=options.batch_size,
        pin_memory=device.type == "cuda",
        delivered=delivered,
        model_alone=consumed,
        enough_workers=next((row.workers for row in delivered if compared(row, consumed) == FASTER), None),
        bottleneck=bottleneck(delivered, consumed, cores),
    )


def worker_numbers(cores: int) -> list[int]:
    """0, 1, 2, 4 … up to the cores, and the cores themselves; 0, 1, 2 at least."""
    doubling = [1 << power for power in range(1, 20) if 1 << power <= cores]
    return sorted({0, 1, 2, *doubling, cores})


def deliver(data: Dataset, options: StepOptions, workers: int, window_seconds: float) -> Delivered:
    """Take batches from a DataLoader for `WINDOWS` windows of about that many seconds."""
    loader = DataLoader(
        data, batch_size=options.batch_size, shuffle=True, drop_last=True, num_workers=workers,
        pin_memory=options.device != "cpu", persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(options.seed),
    )  # fmt: skip
    others = {child.pid for child in multiprocessing.active_children()}
    begin = time.perf_counter()
    batches = Epochs(loader)
    next(batches)
    start_seconds = time.perf_counter() - begin
    for _ in range(batches.queued):  # queued while the workers started: not their pace
        next(batches)
    speeds = [images_per_second(batches, options.batch_size, window_seconds) for _ in range(WINDOWS)]
    own = [child.pid for child in multiprocessing.active_children() if child.pid and child.pid not in others]
    return Delivered(workers, result.Throughput(statistics.median(speeds), speeds), start_seconds, process_memory(own))


@contextmanager
def worker_failures_as_input_error(workers: int) -> Iterator[None]:
    """Turn what the system reports against so many loader processes into InputError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        text = str(error)
        if not (is_out_of_memory(error) or isinstance(error, OSError) or re.search(WORKER_FAILURES, text)):
            raise
        shm = "; in a container, give it a larger --shm-size" if re.search("shared memory|Bus error", text) else ""
        raise InputError(
            f"the input pipeline failed with {workers_text(workers)} ({printable(text, 160)}): try a smaller "
            f"--batch-size or --image-size{shm}"
        ) from error


def images_per_second(batches: Iterator[Batch], batch_size: int, seconds: float) -> float:
    """images/s over one window: at least one batch, and about so many seconds."""
    begin, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - begin < seconds:
        next(batches)
        taken += batch_size
    return taken / (time.perf_counter() - begin)


def model_alone(options: StepOptions, precision: torch.dtype) -> tuple[Consumed, list[str]]:
    """What the model consumes, and notes: from a `limit.json` that matches, otherwise measured briefly, uncompiled."""
    name, why, resizing = dtype_name(precision), "no limit.json here", "resizing on the device included"
    try:
        limit = limit_record.read(options.logdir)
    except InputError as error:
        limit, why = None, privacy.reason(str(error), 150)
    if limit is not None:
        if limit.setup.matches(study.setup(options)) and limit.precision == name:
            source = f"limit.json of {limit.started[:10]}{', a smoke run' if limit.quick else ''}, {resizing}"
            speed = limit.fastest
            return Consumed(speed.samples_per_second, speed.kind, limit.precision, limit.batch_size, source), []
        why = "limit.json is of another device, model, image size or precision"
    torch.manual_seed(options.seed)
    model, device = classifier(options.model, options.image_size), torch.device(options.device)
    train_step = one_batch.TrainStep(model, device, precision, options.image_size)
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, one_batch.STORED_SIZE)
    timing = one_batch.time_one_batch(train_step, batch, device, one_batch.QUICK)
    source = f"measured briefly, {resizing}: {why}; limit without --input does it properly"
    consumed = Consumed(timing.samples_per_second, one_batch.PLAIN, name, len(batch[1]), source)
    return consumed, [f"the model alone: {note}" for note in notes]


def bottleneck(delivered: Sequence[Delivered], consumed: Consumed, cores: int) -> str:
    """Which side is the bottleneck and how many workers change that, in a sentence without its full stop."""
    faster = next((row for row in delivered if compared(row, consumed) == FASTER), None)
    if faster is not None and faster.workers == 0:
        return "the model is the bottleneck with any number of workers, even none"
    unresolved = next((row for row in delivered if compared(row, consumed) == UNRESOLVED), None)
    if unresolved is not None and (faster is None or unresolved.workers < faster.workers):
        number = workers_text(unresolved.workers)
        below = "" if unresolved is delivered[0] else f"the input is the bottleneck below {number}; "
        above = "no number of workers tried here is measurably faster than the model"
        if faster is not None:
            above = f"from {workers_text(faster.workers)} on it is the model"
        return f"{below}with {number} there is no measurable difference between both, and {above}"
    if faster is not None:
        return f"the input is the bottleneck below {workers_text(faster.workers)}, the model from there on"
    best = max(delivered, key=lambda row: row.samples_per_second.median)
    per_worker = best.samples_per_second.median / max(1, best.workers)
    needed = math.ceil(consumed.samples_per_second.median / per_worker)
    return (
        f"the input is the bottleneck with every number of workers tried, and this machine has {cores} cores: at "
        f"{per_worker:.0f} images/s per worker the model would need about {needed} of them, each with a core of its own"
    )
