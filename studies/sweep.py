"""The sweep: training throughput for every number of workers, batch size and pinning.

The program is step 05's, with pinned memory or without: uint8 batches from workers, and autocast where the device has
it. Each setting is measured in a process of its own, and anew in each run: a worker that is killed for lack of memory,
or a GPU that is full, costs that cell only.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from common.options import StepOptions
from studies import study
from studies.input import ProcessMemory, process_memory, worker_numbers
from studies.study import workers_text
from walkthrough.compare.figures import heat_map, in_style
from walkthrough.compare.statistics import Ratio, ratio
from walkthrough.compare.study import Measurements, NotMeasured, Row, Study, interval
from walkthrough.results import progress
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, whole_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH_SIZES = [32, 128, 512]
QUICK_WORKERS, QUICK_BATCH_SIZES = [0, 1], [8, 16]
RUNS, QUICK_RUNS = 5, 1
CELL_SECONDS = 600  # of one measurement, start-up and all: beyond it something hangs

Cell = Mapping[str, Any]  # {"workers", "batch_size", "pin_memory", "runs": what `cell` returned, "failed": why or None}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
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
    study.add_options(parser, ("--batch-size", "--workers"), runs="runs (default: 5; 1 with --quick)")


def run(args: argparse.Namespace) -> int:
    """Measure, write `sweep.json` into `args.logdir`, draw and print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, no cell that could be
    measured.
    """
    options = study.ready(args)
    workers = args.workers_list or (QUICK_WORKERS if options.quick else default_workers(usable_cores()))
    batch_sizes = args.batch_sizes or (QUICK_BATCH_SIZES if options.quick else BATCH_SIZES)
    runs = args.runs or (QUICK_RUNS if options.quick else RUNS)
    return study.run(args, lambda: measure(options, workers, batch_sizes, runs), figure)


def default_workers(cores: int) -> list[int]:
    """0, 1, 2, 4 … up to the cores, and twice as many as there are."""
    return sorted({*worker_numbers(cores), 2 * cores})


def measure(options: StepOptions, workers: list[int], batch_sizes: list[int], runs: int) -> Study:
    """The study of a device. Prints its progress; see `run` for errors."""
    import torch

    from common.data import check_cifar10
    from common.device import autocast_dtype, autocast_notes, device_name, without_gpu
    from common.model import classifier

    device = torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than in every process
    data = "cifar10" if check_cifar10(options.data) else "stand-in"
    notes = [*autocast_notes(device, options.precision), *without_gpu("pinned_memory", device)]
    if device.type == "cpu":
        notes.append("the model trains on the same CPU cores as the workers load on")
    pin_memory = [False, True] if device.type == "cuda" else [False]
    progress.say(
        f"sweep: {options.model}, {data} data, {options.image_size} px, on {device_name(device)}: workers "
        f"{', '.join(map(str, workers))}; batch sizes {', '.join(map(str, batch_sizes))}; a process for each"
    )
    precision = autocast_dtype(device, options.precision)
    do = study.measurements("sweep", options, precision, data, limit_seconds=CELL_SECONDS)
    settings = [
        {"workers": number, "batch_size": size, "pin_memory": pinned}
        for pinned in pin_memory
        for size in batch_sizes
        for number in workers
    ]
    cells = measured_cells(do, settings, runs)
    measured = {"workers": workers, "batch_sizes": batch_sizes, "pin_memory": pin_memory, "cells": cells}
    notes += study.unsteady(one["windows"] for cell in cells for one in cell["runs"])
    return study.finished(do, measured, notes)


def measured_cells(do: Measurements, settings: Sequence[Mapping[str, Any]], runs: int) -> list[Cell]:
    """A `Cell` for each of `settings`, measured in every run; every other run goes through them backwards.

    A setting that failed is not tried again. Raises InputError where none could be measured.
    """
    results: list[list[Any]] = [[] for _ in settings]
    failed: dict[int, str] = {}
    for run in range(runs):
        order = range(len(settings))
        for index in order if run % 2 == 0 else reversed(order):
            if index in failed:
                continue
            try:
                results[index].append(do.measure("cell", run=run + 1, **settings[index]))
            except NotMeasured as error:
                failed[index] = str(error)
    if len(failed) == len(settings):
        raise InputError(f"no setting could be measured; {words(settings[0])}: {failed[0]}")
    return [{**one, "runs": results[index], "failed": failed.get(index)} for index, one in enumerate(settings)]


# One setting in one run: a process of its own


def cell(options: StepOptions, run: int, workers: int, batch_size: int, pin_memory: bool) -> dict[str, Any]:
    """Measure one setting: {"windows": images/s of each, "cores", "process_bytes", "worker_bytes"}.

    cores: CPU seconds of the training process and its workers, over the seconds of the windows. process_bytes: the
    training process's; worker_bytes: the median worker's, None without workers. None where they are not known.
    """
    from common.timing import Plan
    from studies.ablation import Optimisations
    from studies.switches import timed

    if options.quick:
        plan = Plan(warmup_steps=1, warmup_seconds=0.0, windows=3, window_steps=1, window_seconds=0.1)
    else:
        plan = Plan(warmup_steps=1, warmup_seconds=0.8, windows=3, window_steps=2, window_seconds=0.8)
    base = Optimisations(amp=True, bigger_batch=True, reduced_h2d_copy=True, multiprocess_loading=True)
    use, on = ResourceUse(), replace(base, pinned_memory=pin_memory)
    _, timing = timed(on, replace(options, workers=workers, batch_size=batch_size), plan, around_windows=use)
    return {
        "windows": timing.samples_per_second.windows,
        "cores": use.cores,
        "process_bytes": use.process_bytes and asdict(use.process_bytes),
        "worker_bytes": use.worker_bytes and asdict(use.worker_bytes),
    }


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


# What follows


def words(setting: Mapping[str, Any]) -> str:
    """ "2 workers, batch 64, pinned"."""
    pinned = ", pinned" if setting["pin_memory"] else ""
    return f"{workers_text(setting['workers'])}, batch {setting['batch_size']}{pinned}"


def speeds(cell: Cell) -> list[float]:
    """images/s: of each run the median window; of a single run its windows, since one number has no range."""
    runs = cell["runs"]
    return runs[0]["windows"] if len(runs) == 1 else [statistics.median(one["windows"]) for one in runs]


def total_pss(cell: Cell) -> float | None:
    """Bytes of the training process and all its workers together, shared pages once; None where not known."""
    worker = _median([one["worker_bytes"] and one["worker_bytes"]["pss"] for one in cell["runs"]])
    process = _median([one["process_bytes"] and one["process_bytes"]["pss"] for one in cell["runs"]])
    if process is None or (cell["workers"] and worker is None):
        return None
    return process + cell["workers"] * (worker or 0)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def over(cell: Cell, other: Cell) -> Ratio:
    """How many times as fast a cell is as another that was measured in the same runs."""
    return ratio(*({run: one["windows"] for run, one in enumerate(of["runs"])} for of in (cell, other)))


def best_of(cells: Iterable[Cell]) -> Cell:
    """The cell with the most images/s, of those that were measured in all runs."""
    return max((cell for cell in cells if not cell["failed"]), key=lambda cell: statistics.median(speeds(cell)))


def tables(measured: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Every cell's speed, cores and memory, a row each; whether memory is pinned only where both were measured."""
    best, both = best_of(measured["cells"]), len(measured["pin_memory"]) > 1
    rows = []
    for cell in measured["cells"]:
        there, pss = not cell["failed"], total_pss(cell)
        rows.append(
            {
                "workers": cell["workers"],
                "batch": cell["batch_size"],
                **({"pinned": cell["pin_memory"]} if both else {}),
                "images/s": statistics.median(speeds(cell)) if there else None,
                "of best": over(cell, best) if there and cell is not best else None,
                "cores": _median([one["cores"] for one in cell["runs"]]) if there else None,
                "memory MB": pss / 1e6 if there and pss is not None else None,
            }
        )
    return {"sweep": rows}


def conclusions(measured: Mapping[str, Any]) -> dict[str, list[str]]:
    """The best cell, what more workers than it has cost, and which failed."""
    cells = measured["cells"]
    best, failed = best_of(cells), [cell for cell in cells if cell["failed"]]
    middle, ends = statistics.median(speeds(best)), (min(speeds(best)), max(speeds(best)))
    sentence = f"Best: {words(best)}: {middle:.1f} images/s ({ends[0]:.1f} to {ends[1]:.1f})"
    others = [(cell, over(cell, best)) for cell in cells if not cell["failed"] and cell is not best]
    even = [f"{words(cell)}: {times}" for cell, times in others if not times.resolved]
    if even:
        sentence += f"; no measurable difference to {', '.join(even)}"
    failures = [f"Failed: {words(cell)}: {cell['failed']}." for cell in failed]
    return {"sweep": [f"{sentence}. {_more_workers(cells, best)}", *failures]}


def _more_workers(cells: Sequence[Cell], best: Cell) -> str:
    row = [cell for cell in cells if all(cell[name] == best[name] for name in ("batch_size", "pin_memory"))]
    most = max((cell for cell in row if not cell["failed"]), key=lambda cell: cell["workers"])
    if most is best:
        for cell in row:
            if cell["failed"] and cell["workers"] > best["workers"]:
                return f"With {workers_text(cell['workers'])} it failed: {cell['failed']}."
        return f"More than {workers_text(best['workers'])} were not measured with that batch size: --workers-list does."
    sentence = f"With {workers_text(most['workers'])} instead it is {over(most, best)} as fast"
    own, more = total_pss(best), total_pss(most)
    if own is None or more is None:
        return f"{sentence}."
    megabytes = (more - own) / 1e6
    return f"{sentence}, and takes {abs(megabytes):,.0f} MB {'more' if megabytes >= 0 else 'less'} memory in all."


@in_style
def figure(result: Study) -> "Figure":
    """A matplotlib `Figure`: workers across, batch sizes up, images/s as colour and text, a panel per pinning."""
    from matplotlib.figure import Figure  # half a second to import

    rows = [row | {"note": _note(row)} for row in result.tables["sweep"]]
    pinnings = {row.get("pinned", False) for row in rows}
    across, up = len(result.measured["workers"]), len(result.measured["batch_sizes"])
    drawn = Figure(figsize=(max(6, 1.2 + 1.25 * across), 0.8 + (0.6 + 0.8 * up) * len(pinnings)))
    for axes, pinned in zip(drawn.subplots(len(pinnings), 1, squeeze=False)[:, 0], sorted(pinnings), strict=True):
        of_panel = [row for row in rows if row.get("pinned", False) == pinned]
        title = f"images/s, and times those of the best: {'pinned' if pinned else 'pageable'} memory"
        heat_map(axes, of_panel, "workers", "batch", "images/s", "note", title)
    drawn.suptitle(study.title(result))
    return drawn


def _note(row: Row) -> str:
    """What is written into a cell below its images/s: over the best, cores, memory, as far as they are known."""
    if row["images/s"] is None:
        return "failed"
    lines = [str(interval(row["of best"]) or "best")]
    lines += [f"{row['cores']:.1f} cores"] if row["cores"] is not None else []
    lines += [f"{row['memory MB']:.0f} MB"] if row["memory MB"] is not None else []
    return "\n".join(lines)


if __name__ == "__main__":
    study.serve(cell)
