"""`python -m common limit --input`: how many images/s the input pipeline alone delivers, for each number of workers.

The data, the transform and the DataLoader are those of step 05. Nothing trains meanwhile: each batch is taken and
dropped. Beside it stands the floor, what the model alone consumes; the smaller of the two is the bottleneck.
"""

import math
import multiprocessing
import re
import statistics
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from common import machine, record
from common.data import cifar10, resized_uint8
from common.device import autocast_dtype, device_name
from common.errors import InputError, is_out_of_memory, printable
from common.model import classifier
from common.run import privacy, progress
from common.session import endless
from common.studies import one_batch
from common.studies.input.record import ENOUGH, EVEN, Consumed, Delivered, InputLimit, ProcessMemory, judged
from common.studies.limit.record import SMOKE, read_limit

WORKER_FAILURES = r"DataLoader worker .*(killed by signal|exited unexpectedly)|shared memory|Too many open files"
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 1.0, 0.1


def input_limit(args, device):
    """The `InputLimit` of a device. Prints its progress. Raises InputError."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    classifier(args.model, args.image_size)  # refused now rather than once the data was measured
    data = cifar10(args.data, transform=resized_uint8(args.image_size), download=args.download)
    if args.batch_size > len(data):
        raise InputError(f"--batch-size {args.batch_size} is larger than the data ({len(data)} images)")
    numbers = worker_numbers(machine.usable_cores())
    progress.say(f"limit --input: {data.source} data, {args.image_size} px, batch {args.batch_size}")
    consumed, notes = model_alone(args, device)
    progress.report("model alone", 1, len(numbers) + 1, consumed.samples_per_second.median)
    found = []
    for number in numbers:
        seconds = QUICK_WINDOW_SECONDS if args.quick else WINDOW_SECONDS
        with told_of_workers(number):
            found.append(deliver(data, args.batch_size, number, device.type == "cuda", args.seed, seconds))
        progress.report(_workers(number), len(found) + 1, len(numbers) + 1, found[-1].samples_per_second.median)
    if device.type == "cpu":
        notes.append("the workers had all cores to themselves here; on a CPU the model trains on the same ones")
    if args.quick:
        notes.append(SMOKE)
    enough = next((each.workers for each in found if judged(each, consumed) == ENOUGH), None)
    return InputLimit(
        schema=record.SCHEMA,
        device=device_name(device),
        device_type=device.type,
        model=args.model,
        data=data.source,
        image_size=args.image_size,
        batch_size=args.batch_size,
        pin_memory=device.type == "cuda",
        delivered=found,
        model_alone=consumed,
        enough_workers=enough,
        bottleneck=verdict(found, consumed, machine.usable_cores()),
        notes=notes,
        environment=record.environment(torch.__version__, torch.version.cuda),
        started=started,
    )


def worker_numbers(cores):
    """0, 1, 2, 4 … up to the cores, and the cores themselves; 0, 1, 2 at least."""
    doubling = [1 << power for power in range(1, 20) if 1 << power <= cores]
    return sorted({0, 1, 2, *doubling, cores})


def deliver(data, batch_size, workers, pin_memory, seed, window_seconds):
    """Take batches from a DataLoader for `WINDOWS` windows of about that many seconds; returns `Delivered`."""
    loader = DataLoader(
        data, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pin_memory,
        persistent_workers=workers > 0, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    others = {child.pid for child in multiprocessing.active_children()}
    begin = time.perf_counter()
    batches = endless(loader)
    next(batches)
    start = time.perf_counter() - begin
    for _ in range(workers * (loader.prefetch_factor or 0)):  # queued while the workers started: not their pace
        next(batches)
    speeds = [images_per_second(batches, batch_size, window_seconds) for _ in range(WINDOWS)]
    own = [child.pid for child in multiprocessing.active_children() if child.pid not in others]
    memory = worker_memory(own)
    batches.close()
    return Delivered(workers, record.Throughput(statistics.median(speeds), speeds), start, memory)


@contextmanager
def told_of_workers(workers):
    """Turn what the system says against so many loader processes into InputError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        text = str(error)
        if not (is_out_of_memory(error) or isinstance(error, OSError) or re.search(WORKER_FAILURES, text)):
            raise
        shm = "; in a container, give it a larger --shm-size" if re.search("shared memory|Bus error", text) else ""
        raise InputError(
            f"the input pipeline failed with {_workers(workers)} ({printable(text, 160)}): try a smaller "
            f"--batch-size or --image-size{shm}"
        ) from error


def images_per_second(batches, batch_size, seconds):
    """images/s over one window: at least one batch, and about so many seconds."""
    begin, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - begin < seconds:
        next(batches)
        taken += batch_size
    return taken / (time.perf_counter() - begin)


def worker_memory(pids, proc=Path("/proc")):
    """The `ProcessMemory` of processes from Linux's smaps_rollup; None where there are none, or it is not there."""
    found = []
    for pid in pids:
        try:
            text = (proc / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        sizes = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE))
        if len(sizes) == 2:
            found.append((int(sizes["Rss"]) * 1024, int(sizes["Pss"]) * 1024))
    if not found:
        return None
    rss, pss = zip(*found, strict=True)
    return ProcessMemory(int(statistics.median(rss)), int(statistics.median(pss)))


def model_alone(args, device):
    """What the model consumes, and notes: from a `limit.json` that matches, otherwise measured briefly, uncompiled."""
    precision, notes = autocast_dtype(device)
    name, why = str(precision).removeprefix("torch."), "no limit.json here"
    try:
        kept = read_limit(args.logdir)
    except InputError as error:
        kept, why = None, privacy.redacted(str(error))
    wanted = (device_name(device), args.model, args.image_size, name)
    if kept is not None:
        same_cores = device.type != "cpu" or kept.environment.cores == machine.usable_cores()
        if same_cores and (kept.device, kept.model, kept.image_size, kept.precision) == wanted:
            best = kept.floor
            where = f"limit.json of {kept.started[:10]}{', a smoke run' if kept.smoke else ''}"
            return Consumed(best.samples_per_second, best.kind, kept.precision, kept.batch_size, where), notes
        why = "limit.json is of another device, model, image size or precision"
    torch.manual_seed(args.seed)
    train_step = one_batch.TrainStep(classifier(args.model, args.image_size), device, precision)
    batch, halved = one_batch.fitting_batch(train_step, args.batch_size, args.image_size)
    speeds, _ = one_batch.speeds_of(one_batch.windows_of(train_step, batch, device, one_batch.QUICK))
    told = record.Throughput(statistics.median(speeds), speeds)
    source = f"measured briefly: {why}; limit without --input does it properly"
    notes = [*notes, *(f"the model alone: {note}" for note in halved)]
    return Consumed(told, one_batch.PLAIN, name, len(batch[1]), source), notes


def verdict(delivered, consumed, cores):
    """Which side is the bottleneck and how many workers change that, in a sentence."""
    first = next((each for each in delivered if judged(each, consumed) == ENOUGH), None)
    if first is not None and first.workers == 0:
        return "the model is the bottleneck with any number of workers, even none"
    even = next((each for each in delivered if judged(each, consumed) == EVEN), None)
    if first is not None and even is not None and even.workers < first.workers:
        slower = "" if even is delivered[0] else f"the input is the bottleneck below {_workers(even.workers)}; "
        return (
            f"{slower}with {_workers(even.workers)} it is as fast as the model, as far as the windows tell, and from "
            f"{_workers(first.workers)} on the model is the bottleneck"
        )
    if first is not None:
        return f"the input is the bottleneck below {_workers(first.workers)}, the model from there on"
    if even is not None:
        return (
            f"the input is the bottleneck below {_workers(even.workers)}; there it is as fast as the model, as far as "
            "the windows tell, and no number of workers tried here is clearly faster"
        )
    best = max(delivered, key=lambda each: each.samples_per_second.median)
    each_one = best.samples_per_second.median / max(1, best.workers)
    needed = math.ceil(consumed.samples_per_second.median / each_one)
    return (
        f"the input is the bottleneck with every number of workers tried, and this machine has {cores} cores: at "
        f"{each_one:.0f} images/s a worker the model would need about {needed} of them, each with a core of its own"
    )


def _workers(number):
    return f"{number} worker{'' if number == 1 else 's'}"
