"""`limit --input`: how many images/s the input pipeline delivers per number of workers, next to the model alone.

torch is imported where it is used: `--help` and what reads a result do without.
"""

import argparse
import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from common.options import StepOptions
from studies import study
from studies.study import workers_text
from walkthrough.compare.figures import GREY, MEMORY, SPEED, reach, styled
from walkthrough.compare.statistics import Ratio, of_windows
from walkthrough.results import environment, privacy, progress, result
from walkthrough.results.errors import InputError, is_out_of_memory, printable
from walkthrough.results.result import Meta, PositiveInt, Throughput, data_label
from walkthrough.terminal import plain_table

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table
    from torch.utils.data import Dataset

    from common.loaders import Batch

FILE = "input_limit.json"
FASTER, UNRESOLVED, SLOWER = "faster than the model", "no measurable difference", "slower than the model"
HELP = "measure the input pipeline alone, per number of workers"
WORKER_FAILURES = r"DataLoader worker .*(killed by signal|exited unexpectedly)|shared memory|Too many open files"
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 1.0, 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this study adds to the command `limit`."""
    parser.add_argument("--input", action="store_true", help=HELP)


def run(args: argparse.Namespace) -> int:
    """Measure, write `input_limit.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, data that is broken.
    """
    study.check_plot(args.plot)
    options = study.ready(args)
    return study.report("input", args, lambda: measure(options))


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process: rss is all that it has in memory; pss divides pages shared with others among their users."""

    rss: int
    pss: int


@dataclass(frozen=True)
class Delivered:
    """What a DataLoader delivers with so many workers (0: in the main process), images/s of each window.

    start_seconds: from asking for an iterator to its first batch. worker_bytes: of the median worker; None without
    workers, and where the system does not report it.
    """

    workers: int
    samples_per_second: Throughput
    start_seconds: float
    worker_bytes: ProcessMemory | None


@dataclass(frozen=True)
class Consumed:
    """What the model alone trains on, images/s. kind: see `limit.record.TrainingSpeed`. source: where that is from."""

    samples_per_second: Throughput
    kind: str
    precision: str
    batch_size: int
    source: str


@dataclass(frozen=True, kw_only=True)
class InputLimit(study.Study):
    """One call of `limit --input`.

    batch_size: images per batch. delivered: by number of workers. enough_workers: the fewest that are
    measurably faster than the model, None if none are. bottleneck: which side it is, in a sentence without its full
    stop.
    """

    FILE: ClassVar[str] = FILE

    batch_size: PositiveInt
    pin_memory: bool
    delivered: Annotated[list[Delivered], Meta(min_length=1)]
    model_alone: Consumed
    enough_workers: int | None
    bottleneck: str


def over_model(delivered: Delivered, consumed: Consumed) -> Ratio:
    """What is delivered over what the model consumes, each measured in one run."""
    return of_windows(delivered.samples_per_second.windows, consumed.samples_per_second.windows)


def compared(delivered: Delivered, consumed: Consumed) -> str:
    """`FASTER` or `SLOWER` where that is resolved, otherwise `UNRESOLVED`."""
    ratio = over_model(delivered, consumed)
    if not ratio.resolved:
        return UNRESOLVED
    return FASTER if ratio.ratio > 1 else SLOWER


def read(logdir: str | Path) -> InputLimit | None:
    """The `InputLimit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(InputLimit, logdir)


def measure(options: StepOptions) -> InputLimit:
    """The `InputLimit` of a device. Prints its progress. Raises InputError."""
    import torch

    from common.data import cifar10, resized_uint8
    from common.device import autocast_dtype, autocast_notes
    from common.model import classifier

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


def deliver(data: "Dataset", options: StepOptions, workers: int, window_seconds: float) -> Delivered:
    """Take batches from a DataLoader for `WINDOWS` windows of about that many seconds."""
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
    return Delivered(workers, result.Throughput(statistics.median(speeds), speeds), start_seconds, process_memory(own))


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


def model_alone(options: StepOptions, precision: "torch.dtype") -> tuple[Consumed, list[str]]:
    """What the model consumes, and notes: from a `limit.json` that matches, otherwise measured briefly, uncompiled."""
    import torch

    from common.device import dtype_name
    from common.model import classifier
    from common.program import QUICK
    from studies import limit as limit_study
    from studies import one_batch

    name, why, resizing = dtype_name(precision), "no limit.json here", "resizing on the device included"
    try:
        limit = limit_study.read(options.logdir)
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
    timing = one_batch.time_one_batch(train_step, batch, device, QUICK)
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


def show(result: InputLimit, to: "Console") -> None:
    """Print an `InputLimit` on a console."""
    from rich.markup import escape
    from rich.text import Text

    setup, environment = result.setup, result.environment
    to.print(
        f"\n[bold]{escape(data_label(str(setup.data)))}[/], batch {result.batch_size}, {setup.image_size} px, uint8"
        f"{', pinned' if result.pin_memory else ''}, on [bold]{escape(environment.cpu)}[/] "
        f"({environment.cores} CPU cores), torch {escape(environment.torch)}; nothing trains meanwhile\n"
    )
    to.print(delivered_table(result))
    model = result.model_alone
    speed = model.samples_per_second
    to.print(
        f"\nThe model alone, {escape(setup.model)} on {escape(setup.device)}: "
        f"[bold]{speed.median:.1f} images/s[/] (windows {min(speed.windows):.1f} to {max(speed.windows):.1f}; "
        f"{model.kind}, {model.precision}, batch {model.batch_size}; {escape(model.source)})."
    )
    without_workers = next((delivered for delivered in result.delivered if delivered.workers == 0), None)
    if without_workers is not None and result.device_type == "cpu":
        both = 1 / (1 / without_workers.samples_per_second.median + 1 / speed.median)
        to.print(f"Without workers the two take turns: {both:.1f} images/s, by arithmetic.")
    to.print(f"[bold]{escape(result.bottleneck[0].upper() + result.bottleneck[1:])}.[/]")
    rates = [model.samples_per_second, *(delivered.samples_per_second for delivered in result.delivered)]
    study.print_unsteady((rate.windows for rate in rates), to)
    study.print_notes(result.notes, to)
    to.print(
        Text(
            "of the model: over the images/s of the model alone; 95 % interval by the windows of one run each, which "
            "says nothing of how runs differ; ~, grey: no measurable difference. start-up: until the first batch. RSS: "
            "a worker's resident memory; PSS: the same, shared pages divided among their users.",
            "dim",
        )
    )


def delivered_table(result: InputLimit) -> "Table":
    """What the input alone delivers, a row for each number of workers."""
    table = plain_table(
        "workers", ["images/s", "windows", "of the model", "start-up s", "worker RSS MB", "worker PSS MB", "input is"]
    )
    for delivered in result.delivered:
        speed, memory = delivered.samples_per_second, delivered.worker_bytes
        table.add_row(
            str(delivered.workers),
            f"{speed.median:.1f}",
            f"{min(speed.windows):.1f} to {max(speed.windows):.1f}",
            study.ratio_cell(over_model(delivered, result.model_alone)),
            f"{delivered.start_seconds:.2f}",
            study.mb_text(memory and memory.rss),
            study.mb_text(memory and memory.pss),
            compared(delivered, result.model_alone),
        )
    return table


def figure(result: InputLimit) -> "Figure":
    """A matplotlib `Figure`: a point per number of workers, a line for the model; each with its windows' range."""
    from matplotlib.figure import Figure  # half a second to import

    drawn = Figure(figsize=(9, 4), layout="constrained")
    axes = drawn.subplots()
    speeds = [delivered.samples_per_second for delivered in result.delivered]
    positions = range(len(speeds))
    axes.errorbar(
        positions, [speed.median for speed in speeds],
        yerr=reach((min(speed.windows), speed.median, max(speed.windows)) for speed in speeds),
        fmt="o", color=SPEED, ecolor=SPEED, capsize=3, markersize=7, label="input pipeline alone",
    )  # fmt: skip
    model = result.model_alone.samples_per_second
    axes.axhspan(min(model.windows), max(model.windows), color=MEMORY, alpha=0.25, linewidth=0)
    axes.axhline(model.median, color=MEMORY, linewidth=1.5, label=f"model alone, {result.model_alone.kind}")
    axes.set_xlim(-0.5, len(speeds) - 0.5)
    axes.set_xticks(positions, [str(delivered.workers) for delivered in result.delivered])
    axes.set_ylim(0, max(*model.windows, *(window for speed in speeds for window in speed.windows)) * 1.08)
    axes.set_xlabel("workers", color=GREY, fontsize=9)
    axes.set_ylabel("images/s, median and range of the windows", color=GREY, fontsize=9)
    setup = result.setup
    title = f"{data_label(str(setup.data))}, batch {result.batch_size}, {setup.image_size} px; {setup.model}"
    styled(axes, f"{title} on {setup.device}")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return drawn
