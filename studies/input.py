"""`limit --input`: how many images/s the input pipeline delivers per number of workers, next to the model alone.

torch is imported where it is used: `--help` and what reads a result do without.
"""

import argparse
import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from common.options import StepOptions
from studies import study
from studies.study import workers_text
from walkthrough.compare import roofs
from walkthrough.compare.figures import MEMORY, SPEED, in_style, reach
from walkthrough.compare.statistics import Ratio, of_windows
from walkthrough.compare.study import Row, Study
from walkthrough.results import privacy, progress
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, is_out_of_memory, printable

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch.utils.data import Dataset

    from common.loaders import Batch

FASTER, UNRESOLVED, SLOWER = "faster than the model", "no measurable difference", "slower than the model"
WORKER_FAILURES = r"DataLoader worker .*(killed by signal|exited unexpectedly)|shared memory|Too many open files"
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 1.0, 0.1


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process: rss is all that it has in memory; pss divides pages shared with others among their users."""

    rss: int
    pss: int


def run(args: argparse.Namespace) -> int:
    """Measure, write `input.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, data that is broken.
    """
    options = study.ready(args)
    return study.run(args, lambda: measure(options), figure)


def measure(options: StepOptions) -> Study:
    """The study of a device. Prints its progress. Raises InputError."""
    import torch

    from common.data import cifar10, resized_uint8
    from common.device import autocast_dtype, autocast_notes
    from common.model import classifier

    device = torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than once the data was measured
    data = cifar10(options.data, transform=resized_uint8(options.image_size))
    if options.batch_size > len(data):
        raise InputError(f"--batch-size {options.batch_size} is larger than the data ({len(data)} images)")
    numbers = worker_numbers(usable_cores())
    progress.say(f"limit --input: {data.source} data, {options.image_size} px, batch {options.batch_size}")
    precision = autocast_dtype(device, options.precision)
    do = study.measurements("input", options, precision, data.source)
    consumed, notes = model_alone(options, precision)
    progress.report("model alone", 1, len(numbers) + 1, consumed["samples_per_second"]["median"])
    window_seconds = QUICK_WINDOW_SECONDS if options.quick else WINDOW_SECONDS
    delivered = []
    for number in numbers:
        try:
            with worker_failures_as_input_error(number):
                delivered.append(deliver(data, options, number, window_seconds))
        except InputError as error:
            if not any(row["workers"] for row in delivered):
                raise
            notes.append(privacy.reason(str(error)))  # what was measured with fewer is kept
            progress.say(f"  {error}")
            break
        speed = delivered[-1]["samples_per_second"]["median"]
        progress.report(workers_text(number), len(delivered) + 1, len(numbers) + 1, speed)
    if device.type == "cpu":
        notes.append("the workers had all cores to themselves here; on a CPU the model trains on the same ones")
    measured = {
        "batch_size": options.batch_size,
        "pin_memory": device.type == "cuda",
        "cores": usable_cores(),
        "delivered": delivered,
        "model_alone": consumed,
    }
    notes += study.unsteady(one["samples_per_second"]["windows"] for one in (consumed, *delivered))
    return study.finished(do, measured, [*autocast_notes(device, options.precision), *notes])


def worker_numbers(cores: int) -> list[int]:
    """0, 1, 2, 4 … up to the cores, and the cores themselves; 0, 1, 2 at least."""
    doubling = [1 << power for power in range(1, 20) if 1 << power <= cores]
    return sorted({0, 1, 2, *doubling, cores})


def deliver(data: "Dataset", options: StepOptions, workers: int, window_seconds: float) -> dict[str, Any]:
    """What a DataLoader delivers with so many workers (0: in the main process), images/s of `WINDOWS` windows.

    start_seconds: from asking for an iterator to its first batch. worker_bytes: of the median worker; None without
    workers, and where the system does not report it.
    """
    import torch
    from torch.utils.data import DataLoader

    from common.loaders import Epochs

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
    memory = process_memory(own)
    return {
        "workers": workers,
        "samples_per_second": {"median": statistics.median(speeds), "windows": speeds},
        "start_seconds": start_seconds,
        "worker_bytes": memory and asdict(memory),
    }


def process_memory(pids: Iterable[int]) -> ProcessMemory | None:
    """The medians over these processes; those that have ended are left out.

    None where there are none, and where the system does not report pss (only Linux does).
    """
    import psutil

    sizes = []
    for pid in pids:
        try:
            memory = psutil.Process(pid).memory_full_info()
        except psutil.Error:
            continue
        if hasattr(memory, "pss"):
            sizes.append((memory.rss, memory.pss))
    if not sizes:
        return None
    rss, pss = zip(*sizes, strict=True)
    return ProcessMemory(int(statistics.median(rss)), int(statistics.median(pss)))


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


def images_per_second(batches: "Iterator[Batch]", batch_size: int, seconds: float) -> float:
    """images/s over one window: at least one batch, and about so many seconds."""
    begin, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() - begin < seconds:
        next(batches)
        taken += batch_size
    return taken / (time.perf_counter() - begin)


def model_alone(options: StepOptions, precision: "torch.dtype") -> tuple[dict[str, Any], list[str]]:
    """What the model consumes, images/s, and notes: from a `limit.json` that matches, else measured briefly.

    kind: see `roofs.Program`. source: where it is from.
    """
    import torch

    from common.device import dtype_name
    from common.model import classifier
    from common.program import QUICK
    from studies import one_batch

    name, why, resizing = dtype_name(precision), "no limit.json here", "resizing on the device included"
    try:
        limit = roofs.read(options.logdir)
    except InputError as error:
        limit, why = None, privacy.reason(str(error), 150)
    if limit is not None:
        if limit.setup.matches(study.setup(options)) and limit.precision == name:
            source = f"limit.json of {limit.started[:10]}{', a smoke run' if limit.quick else ''}, {resizing}"
            values = {"samples_per_second": asdict(limit.fastest.samples_per_second), "kind": limit.fastest.kind}
            return {**values, "precision": limit.precision, "batch_size": limit.batch_size, "source": source}, []
        why = "limit.json is of another device, model, image size or precision"
    torch.manual_seed(options.seed)
    model, device = classifier(options.model, options.image_size), torch.device(options.device)
    train_step = one_batch.TrainStep(model, device, precision, options.image_size)
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, one_batch.STORED_SIZE)
    timing = one_batch.time_one_batch(train_step, batch, device, QUICK)
    source = f"measured briefly, {resizing}: {why}; limit without --input does it properly"
    values = {"samples_per_second": asdict(timing.samples_per_second), "kind": one_batch.PLAIN}
    consumed = {**values, "precision": name, "batch_size": len(batch[1]), "source": source}
    return consumed, [f"the model alone: {note}" for note in notes]


# What follows


def over_model(delivered: Mapping[str, Any], consumed: Mapping[str, Any]) -> Ratio:
    """What is delivered over what the model consumes, each measured in one run."""
    return of_windows(*(one["samples_per_second"]["windows"] for one in (delivered, consumed)))


def compared(delivered: Mapping[str, Any], consumed: Mapping[str, Any]) -> str:
    """`FASTER` or `SLOWER` where that is resolved, otherwise `UNRESOLVED`."""
    ratio = over_model(delivered, consumed)
    if not ratio.resolved:
        return UNRESOLVED
    return FASTER if ratio.ratio > 1 else SLOWER


def bottleneck(delivered: Sequence[Mapping[str, Any]], consumed: Mapping[str, Any], cores: int) -> str:
    """Which side is the bottleneck and how many workers change that, in a sentence without its full stop."""
    faster = next((row for row in delivered if compared(row, consumed) == FASTER), None)
    if faster is not None and faster["workers"] == 0:
        return "the model is the bottleneck with any number of workers, even none"
    unresolved = next((row for row in delivered if compared(row, consumed) == UNRESOLVED), None)
    if unresolved is not None and (faster is None or unresolved["workers"] < faster["workers"]):
        number = workers_text(unresolved["workers"])
        below = "" if unresolved is delivered[0] else f"the input is the bottleneck below {number}; "
        above = "no number of workers tried here is measurably faster than the model"
        if faster is not None:
            above = f"from {workers_text(faster['workers'])} on it is the model"
        return f"{below}with {number} there is no measurable difference between both, and {above}"
    if faster is not None:
        return f"the input is the bottleneck below {workers_text(faster['workers'])}, the model from there on"
    best = max(delivered, key=lambda row: row["samples_per_second"]["median"])
    per_worker = best["samples_per_second"]["median"] / max(1, best["workers"])
    needed = math.ceil(consumed["samples_per_second"]["median"] / per_worker)
    return (
        f"the input is the bottleneck with every number of workers tried, and this machine has {cores} cores: at "
        f"{per_worker:.0f} images/s per worker the model would need about {needed} of them, each with a core of its own"
    )


def tables(measured: Mapping[str, Any]) -> dict[str, list[Row]]:
    """What the input alone delivers, a row for each number of workers."""
    consumed = measured["model_alone"]
    return {
        "input": [
            {
                "workers": one["workers"],
                "images/s": one["samples_per_second"]["median"],
                "slowest": min(one["samples_per_second"]["windows"]),
                "fastest": max(one["samples_per_second"]["windows"]),
                "of the model": over_model(one, consumed),
                "start-up s": one["start_seconds"],
                **{
                    f"worker {name.upper()} MB": one["worker_bytes"] and one["worker_bytes"][name] / 1e6
                    for name in ("rss", "pss")
                },
                "input is": compared(one, consumed),
            }
            for one in measured["delivered"]
        ]
    }


def conclusions(measured: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which side is the bottleneck, and what the model alone consumes."""
    delivered, model = measured["delivered"], measured["model_alone"]
    speed, which = model["samples_per_second"], bottleneck(delivered, model, measured["cores"])
    sentences = [
        f"{which[0].upper()}{which[1:]}.",
        f"The model alone: {speed['median']:.1f} images/s (windows {min(speed['windows']):.1f} to "
        f"{max(speed['windows']):.1f}; {model['kind']}, {model['precision']}, batch {model['batch_size']}; "
        f"{model['source']}).",
    ]
    alone = [one["samples_per_second"]["median"] for one in delivered if one["workers"] == 0]
    if alone and not measured["pin_memory"]:  # on a CPU
        both = 1 / (1 / alone[0] + 1 / speed["median"])
        sentences.append(f"Without workers the two take turns: {both:.1f} images/s, by arithmetic.")
    return {"input": sentences}


@in_style
def figure(result: Study) -> "Figure":
    """A matplotlib `Figure`: a point per number of workers, a line for the model; each with its windows' range."""
    from matplotlib.figure import Figure  # half a second to import

    drawn = Figure(figsize=(9, 4))
    axes = drawn.subplots()
    rows, model = result.tables["input"], result.measured["model_alone"]
    axes.errorbar(
        range(len(rows)), [row["images/s"] for row in rows],
        yerr=reach((row["slowest"], row["images/s"], row["fastest"]) for row in rows),
        fmt="o", color=SPEED, ecolor=SPEED, capsize=3, markersize=7, label="input pipeline alone",
    )  # fmt: skip
    speed = model["samples_per_second"]
    axes.axhspan(min(speed["windows"]), max(speed["windows"]), color=MEMORY, alpha=0.25, linewidth=0)
    axes.axhline(speed["median"], color=MEMORY, linewidth=1.5, label=f"model alone, {model['kind']}")
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_xticks(range(len(rows)), [str(row["workers"]) for row in rows])
    axes.set_ylim(0, max(*speed["windows"], *(row["fastest"] for row in rows)) * 1.08)
    axes.set_xlabel("workers")
    axes.set_ylabel("images/s, median and range of the windows")
    axes.set_title(study.title(result))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawn
