"""The sweep: training throughput for every number of workers, batch size and pinning.

The program is step 05's, with pinned memory or without: uint8 batches from workers, and autocast where the device has
it. Each setting is measured in a process of its own, `python -m studies.sweep JSON`, and anew in each run: a worker
that is killed for lack of memory, or a GPU that is full, costs that cell only.

torch is imported where it is used: `--help` and what reads a result do without.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from common.options import StepOptions, add_step_options, options_from
from studies import OPTION_TEXTS, study
from studies.input import ProcessMemory, process_memory, worker_numbers
from studies.study import Study, workers_text
from walkthrough.compare import isolated
from walkthrough.compare.figures import GREY, ink_on, styled
from walkthrough.compare.kept import Kept
from walkthrough.compare.statistics import Ratio, ratio
from walkthrough.results import environment, privacy, progress
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, folder, is_out_of_memory, printable, whole_number, whole_numbers
from walkthrough.results.progress import end_with_reader
from walkthrough.results.result import Meta, Positive, data_label
from walkthrough.terminal import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

FILE = "sweep.json"
BATCH_SIZES = [32, 128, 512]
QUICK_WORKERS, QUICK_BATCH_SIZES = [0, 1], [8, 16]
RUNS, QUICK_RUNS = 5, 1
PROGRAM = isolated.module("studies.sweep")
CELL_SECONDS = 600  # of one measurement, start-up and all: beyond it something hangs
SCALE = "cividis"  # as light as it is high, and the same to the colour-blind
HEADERS = ["images/s", "of best", "cores", "memory\nMB"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
    add_step_options(parser, without=("--batch-size", "--workers", "--stacks"), texts=OPTION_TEXTS)
    parser.add_argument(
        "--workers-list",
        type=whole_numbers(0, 256),
        metavar="N,N",
        help="numbers of workers (default: 0,1,2,4 … up to twice the usable cores; 0,1 with --quick)",
    )
    parser.add_argument(
        "--batch-sizes",
        type=whole_numbers(1, 65536),
        metavar="N,N",
        help="images per step (default: 32,128,512; 8,16 with --quick)",
    )
    parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 5; 1 with --quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the heat map: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Measure, write `sweep.json` into `args.logdir`, draw and print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, no cell that could be
    measured.
    """
    study.check_plot(args.plot)
    options = study.ready(args)
    workers = args.workers_list or (QUICK_WORKERS if options.quick else default_workers(usable_cores()))
    batch_sizes = args.batch_sizes or (QUICK_BATCH_SIZES if options.quick else BATCH_SIZES)
    runs = args.runs or (QUICK_RUNS if options.quick else RUNS)
    return study.report("sweep", args, lambda: measure(options, workers, batch_sizes, runs))


class Setting(NamedTuple):
    """What is varied. As text: "2 workers, batch 64, pinned"."""

    workers: int
    batch_size: int
    pin_memory: bool

    def __str__(self) -> str:
        return f"{workers_text(self.workers)}, batch {self.batch_size}{', pinned' if self.pin_memory else ''}"


@dataclass(frozen=True)
class CellRun:
    """One measurement of a cell, in a process of its own: images/s of each of its windows.

    cores: CPU seconds of the training process and its workers, over the seconds of the windows. process_bytes: the
    training process's; worker_bytes: the median worker's, None without workers. None where they are not known.
    """

    windows: Annotated[list[Positive], Meta(min_length=1)]
    cores: float | None
    process_bytes: ProcessMemory | None
    worker_bytes: ProcessMemory | None


@dataclass(frozen=True)
class Cell:
    """One setting: what was measured in each run, and why it was not, or not in all of them."""

    workers: int
    batch_size: int
    pin_memory: bool
    runs: list[CellRun]
    failed: str | None

    @property
    def setting(self) -> Setting:
        return Setting(self.workers, self.batch_size, self.pin_memory)

    @property
    def speeds(self) -> list[float]:
        """images/s: of each run the median window; of a single run its windows, since one number has no range."""
        if len(self.runs) == 1:
            return self.runs[0].windows
        return [statistics.median(run.windows) for run in self.runs]

    @property
    def median(self) -> float:
        return statistics.median(self.speeds)

    @property
    def low(self) -> float:
        return min(self.speeds)

    @property
    def high(self) -> float:
        return max(self.speeds)

    @property
    def cores(self) -> float | None:
        """Of the median run; None where one is not known."""
        return _median([run.cores for run in self.runs])

    @property
    def total_pss(self) -> float | None:
        """Bytes of the training process and all its workers together, proportional; None where not known."""
        worker = _median([run.worker_bytes and run.worker_bytes.pss for run in self.runs])
        process = _median([run.process_bytes and run.process_bytes.pss for run in self.runs])
        if process is None or (self.workers and worker is None):
            return None
        return process + self.workers * (worker or 0)

    def over(self, other: "Cell") -> Ratio:
        """How many times as fast this is as another that was measured in the same runs."""
        return ratio(*({run: measured.windows for run, measured in enumerate(cell.runs)} for cell in (self, other)))


@dataclass(frozen=True, kw_only=True)
class Sweep(Study):
    """One call of `sweep`: a `Cell` for every setting. cells: by pinning, then batch size, then workers."""

    FILE: ClassVar[str] = FILE

    workers: list[int]
    batch_sizes: list[int]
    pin_memory: list[bool]
    cells: list[Cell]

    def cell(self, workers: int, batch_size: int, pin_memory: bool) -> Cell:
        """The cell of a setting. Raises KeyError for one that is not there."""
        for cell in self.cells:
            if cell.setting == (workers, batch_size, pin_memory):
                return cell
        raise KeyError((workers, batch_size, pin_memory))

    @property
    def measured(self) -> list[Cell]:
        """The cells that were measured in all runs."""
        return [cell for cell in self.cells if cell.failed is None]

    @property
    def best(self) -> Cell:
        """The cell with the most images/s."""
        return max(self.measured, key=lambda cell: cell.median)

    def of_best(self, cell: Cell) -> Ratio | None:
        """A measured cell's images/s over those of the best; None for that one itself."""
        return None if cell is self.best else cell.over(self.best)

    def computed(self) -> dict[str, Any]:
        over_best = [(cell, self.of_best(cell)) for cell in self.measured]
        return {"of_best": [cell.setting._asdict() | asdict(ratio) for cell, ratio in over_best if ratio]}

    def problem(self) -> str | None:
        wanted = all_settings(self.workers, self.batch_sizes, self.pin_memory)
        if [cell.setting for cell in self.cells] != wanted or not self.measured:
            return "it must hold a cell for every setting, and one at least that was measured"
        if not all(cell.runs or cell.failed for cell in self.cells):
            return "a cell must hold runs, or why it failed"
        return None


def all_settings(workers: Sequence[int], batch_sizes: Sequence[int], pin_memory: Sequence[bool]) -> list[Setting]:
    """Every combination, in the order in which the first run measures them."""
    return [Setting(number, size, pinned) for pinned in pin_memory for size in batch_sizes for number in workers]


def read(logdir: str | Path) -> Sweep | None:
    """The `Sweep` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Sweep, logdir)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def measure(options: StepOptions, workers: list[int], batch_sizes: list[int], runs: int) -> Sweep:
    """The `Sweep` of a device. Prints its progress; see `run` for errors."""
    import torch

    from common.data import check_cifar10
    from common.device import autocast_dtype, autocast_notes, device_name, without_gpu
    from common.model import classifier

    started, device = environment.now(), torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than in every process
    data = "cifar10" if check_cifar10(options.data) else "stand-in"
    precision = autocast_dtype(device, options.precision)
    notes = [*autocast_notes(device, options.precision), *without_gpu("pinned_memory", device)]
    if device.type == "cpu":
        notes.append("the model trains on the same CPU cores as the workers load on")
    pin_memory = [False, True] if device.type == "cuda" else [False]
    progress.say(
        f"sweep: {options.model}, {data} data, {options.image_size} px, on {device_name(device)}: workers "
        f"{', '.join(map(str, workers))}; batch sizes {', '.join(map(str, batch_sizes))}; a process for each"
    )
    cells = measured(all_settings(workers, batch_sizes, pin_memory), options, runs, study.kept("sweep", options))
    if all(cell.failed for cell in cells):
        raise InputError(f"no setting could be measured; {cells[0].setting}: {cells[0].failed}")
    return Sweep(
        **study.header(options, precision, notes, started, data),
        workers=workers,
        batch_sizes=batch_sizes,
        pin_memory=pin_memory,
        cells=cells,
    )


def default_workers(cores: int) -> list[int]:
    """0, 1, 2, 4 … up to the cores, and twice as many as there are."""
    return sorted({*worker_numbers(cores), 2 * cores})


def measured(settings: Sequence[Setting], options: StepOptions, runs: int, kept: Kept | None = None) -> list[Cell]:
    """A `Cell` for each of `settings`, measured in every run; every other run goes through them backwards.

    A setting that failed is not tried again. kept: what is there is not measured again.
    """
    kept = kept or Kept()
    results: list[list[CellRun]] = [[] for _ in settings]
    failed: dict[int, str] = {}
    done = 0
    for run in range(runs):
        order = range(len(settings))
        for index in order if run % 2 == 0 else reversed(order):
            done += 1
            if index in failed:
                continue
            setting = settings[index]
            result = kept.measurement(
                f"run {run + 1}, {setting}", CellRun, partial(measured_isolated, setting, options)
            )
            if isinstance(result, str):
                failed[index] = privacy.reason(result)
                progress.say(f"  {setting}: failed: {failed[index]}")
                continue
            results[index].append(result)
            speed = Cell(*setting, runs=[result], failed=None).median
            progress.report(f"run {run + 1}/{runs}, {setting}", done, runs * len(settings), speed)
    return [Cell(*setting, runs=results[index], failed=failed.get(index)) for index, setting in enumerate(settings)]


def measured_isolated(
    setting: Setting, options: StepOptions, limit_seconds: float = CELL_SECONDS, command: Sequence[str] = PROGRAM
) -> CellRun | str:
    """Measure one setting in a process of its own; a text says why it could not be, in a line.

    The process and all that it started are ended after `limit_seconds`.
    """
    options = replace(options, workers=setting.workers, batch_size=setting.batch_size)
    settings = {"options": asdict(options), "pin_memory": setting.pin_memory}
    answer = isolated.answer(command, settings, limit_seconds)
    if isinstance(answer, str):
        return answer
    if "error" in answer:
        return answer["error"]
    process_bytes, worker_bytes = (
        None if answer[name] is None else ProcessMemory(**answer[name]) for name in ("process_bytes", "worker_bytes")
    )
    return CellRun(answer["windows"], answer["cores"], process_bytes, worker_bytes)


class ResourceUse:
    """A context: cores in use within it, by this process and its children at entry, and the memory of both at exit."""

    cores: float | None = None
    process_bytes: ProcessMemory | None = None
    worker_bytes: ProcessMemory | None = None

    def __enter__(self) -> "ResourceUse":
        self._workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        self._cpu_seconds, self._begin = cpu_seconds(self._workers), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds, cpu = time.perf_counter() - self._begin, cpu_seconds(self._workers)
        if cpu is not None and self._cpu_seconds is not None:
            self.cores = (cpu - self._cpu_seconds) / seconds
        self.process_bytes, self.worker_bytes = process_memory([os.getpid()]), process_memory(self._workers)


def measured_here(options: StepOptions, pin_memory: bool) -> CellRun:
    """Measure one setting, that of the options, in this process."""
    from common.timing import Plan
    from studies.ablation import Optimisations
    from studies.switches import timed

    if options.quick:
        plan = Plan(warmup_steps=1, warmup_seconds=0.0, windows=3, window_steps=1, window_seconds=0.1)
    else:
        plan = Plan(warmup_steps=1, warmup_seconds=0.8, windows=3, window_steps=2, window_seconds=0.8)
    base = Optimisations(amp=True, bigger_batch=True, reduced_h2d_copy=True, multiprocess_loading=True)
    use, on = ResourceUse(), replace(base, pinned_memory=pin_memory)
    _, timing = timed(on, options, plan, around_windows=use)
    return CellRun(timing.samples_per_second.windows, use.cores, use.process_bytes, use.worker_bytes)


def failure(error: Exception) -> str:
    """Why a setting could not be measured, in a line."""
    if isinstance(error, InputError):
        return printable(error, 200)
    if is_out_of_memory(error):
        return "out of memory before the first batch"
    return printable(f"{type(error).__name__}: {error}", 160)


def main(settings: str) -> None:
    """Measure the setting that a line of JSON describes, {"options": {…}, "pin_memory": …}.

    Answers with the fields of a `CellRun`, or {"error": why not, in a line}.
    """
    try:
        values = json.loads(settings)
        answer = asdict(measured_here(options_from(values["options"]), values["pin_memory"]))
    except Exception as error:  # loaders, drivers and allocators fail in any way; the sweep goes on
        answer = {"error": failure(error)}
    isolated.print_answer(answer)


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """CPU seconds, user and system, that this process and these took so far; None where one of them is not known."""
    import psutil

    total = sum(os.times()[:2])
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return None
        total += times.user + times.system
    return total


def show(sweep: Sweep, to: "Console") -> None:
    """Print a `Sweep` to the console `to`."""
    from rich.markup import escape
    from rich.text import Text

    to.print(f"\n[bold]{escape(sweep_title(sweep))}[/] ({sweep.environment.cores} CPU cores), torch "
             f"{escape(sweep.environment.torch)}; trained as in step 05\n")  # fmt: skip
    to.print(cells_table(sweep))
    to.print(f"\n[bold]{escape(verdict(sweep))}[/]")
    for cell in sweep.cells:
        if cell.failed is not None:
            to.print(Text(f"Failed: {cell.setting}: {cell.failed}.", "red"))
    study.print_unsteady((run.windows for cell in sweep.measured for run in cell.runs), to)
    study.print_notes(sweep.notes, to)
    runs = len(sweep.best.runs)
    interval = (
        f"mean over {runs} runs and 95 % interval"
        if runs > 1
        else "and the 95 % interval by the windows of one run, which says nothing of how runs differ"
    )
    to.print(
        Text(
            f"of best: over the fastest cell, {interval}; ~, grey: no measurable difference. cores: CPU seconds of the "
            "training process and its workers over the time of the windows. memory: of the training process and "
            "every worker, pages that they share counted once.",
            "dim",
        )
    )


def cells_table(sweep: Sweep) -> "Table":
    """Every cell's speed, cores and memory, a row each; whether memory is pinned only where both were measured."""
    both = len(sweep.pin_memory) > 1
    headers = ["batch", *(["pinned"] if both else []), *HEADERS]
    table = plain_table("\nworkers", [header if "\n" in header else f"\n{header}" for header in headers])
    table.columns[headers.index("of best") + 1].min_width = len("(0.00-0.00)")
    for cell in sweep.cells:
        setting = [str(cell.workers), str(cell.batch_size), *(["yes" if cell.pin_memory else "no"] if both else [])]
        if cell.failed is not None:
            table.add_row(*setting, "failed", *[""] * (len(HEADERS) - 1))
            continue
        table.add_row(
            *setting,
            f"{cell.median:.1f}",
            "best" if cell is sweep.best else study.ratio_cell(sweep.of_best(cell)),
            "-" if cell.cores is None else f"{cell.cores:.1f}",
            study.mb_text(cell.total_pss),
            style="bold" if cell is sweep.best else None,
        )
    return table


def sweep_title(sweep: Sweep) -> str:
    """What was measured: model, data, image size, precision, device."""
    setup = sweep.setup
    return f"{setup.model}, {data_label(setup.data or '')}, {setup.image_size} px, {sweep.precision}, on {setup.device}"


def verdict(sweep: Sweep) -> str:
    """The best cell, and what more workers than it has cost."""
    best = sweep.best
    sentence = f"Best: {best.setting}: {best.median:.1f} images/s ({best.low:.1f} to {best.high:.1f})"
    even = [f"{cell.setting}: {over}" for cell in sweep.measured if (over := sweep.of_best(cell)) and not over.resolved]
    if even:
        sentence += f"; no measurable difference to {', '.join(even)}"
    return f"{sentence}. {_more_workers(sweep, best)}"


def _more_workers(sweep: Sweep, best: Cell) -> str:
    row = [cell for cell in sweep.measured if cell.setting[1:] == best.setting[1:]]
    most = max(row, key=lambda cell: cell.workers)
    if most.workers == best.workers:
        for cell in sweep.cells:
            if cell.failed and cell.batch_size == best.batch_size and cell.workers > best.workers:
                return f"With {workers_text(cell.workers)} it failed: {cell.failed}."
        return f"More than {workers_text(best.workers)} were not measured with that batch size: --workers-list does."
    sentence = f"With {workers_text(most.workers)} instead it is {most.over(best)} as fast"
    if best.total_pss is None or most.total_pss is None:
        return f"{sentence}."
    more = (most.total_pss - best.total_pss) / 1e6
    return f"{sentence}, and takes {abs(more):,.0f} MB {'more' if more >= 0 else 'less'} memory in all."


def panels(sweep: Sweep) -> Iterator[tuple[str, list[list[Cell]], list[list[float | None]]]]:
    """For each pinning: its title, the cells [batch size][workers], and their images/s, None for those that failed."""
    for pinned in sweep.pin_memory:
        cells = [[sweep.cell(workers, size, pinned) for workers in sweep.workers] for size in sweep.batch_sizes]
        speeds = [[cell.median if cell.failed is None else None for cell in row] for row in cells]
        yield "pinned memory" if pinned else "pageable memory", cells, speeds


def cell_lines(sweep: Sweep, cell: Cell) -> list[str]:
    """What is written into a cell: images/s, over the best, cores, memory of a worker, as far as they are known."""
    if cell.failed is not None:
        return ["failed"]
    speed = f"{cell.median:.0f}" if cell.median >= 100 else f"{cell.median:.1f}"
    lines = [speed, str(sweep.of_best(cell) or "best")]
    if cell.cores is not None:
        lines.append(f"{cell.cores:.1f} cores")
    if cell.total_pss is not None:
        lines.append(f"{cell.total_pss / 1e6:.0f} MB")
    return lines


def figure(sweep: Sweep) -> "Figure":
    """A matplotlib `Figure`: workers across, batch sizes up, images/s as colour and text, a panel per pinning."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure  # half a second to import

    parts = list(panels(sweep))
    across, up = len(sweep.workers), len(sweep.batch_sizes)
    drawn = Figure(figsize=(max(6, 1.2 + 1.25 * across), 0.8 + (0.6 + 0.8 * up) * len(parts)), layout="constrained")
    medians = [cell.median for cell in sweep.measured]
    scale = Normalize(min(medians), max(medians) if max(medians) > min(medians) else min(medians) + 1)
    colours = colormaps[SCALE]
    for axes, (title, cells, speeds) in zip(drawn.subplots(len(parts), 1, squeeze=False)[:, 0], parts, strict=True):
        numbers = [[float("nan") if speed is None else speed for speed in row] for row in speeds]
        axes.pcolormesh(numbers, norm=scale, cmap=colours, edgecolors="white", linewidth=2)
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                ink = GREY if cell.failed is not None else ink_on(colours(scale(cell.median)))
                speed, *more = cell_lines(sweep, cell)
                bold = "normal" if cell.failed is not None else "bold"
                axes.annotate(speed, (x + 0.5, y + 0.72), ha="center", va="center", color=ink, fontsize=10, weight=bold)
                axes.annotate("\n".join(more), (x + 0.5, y + 0.34), ha="center", va="center", color=ink, fontsize=7)
        styled(axes, f"images/s, and times those of the best with its 95 % interval: {title}")
        axes.set_xticks([x + 0.5 for x in range(across)], [str(workers) for workers in sweep.workers])
        axes.set_yticks([y + 0.5 for y in range(up)], [str(size) for size in sweep.batch_sizes])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_ylabel("batch size", color=GREY)
    drawn.axes[-1].set_xlabel("workers", color=GREY)
    drawn.suptitle(sweep_title(sweep), fontsize=10, color=GREY)
    return drawn


if __name__ == "__main__":
    end_with_reader()
    main(sys.argv[1])
