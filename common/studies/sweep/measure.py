"""`python -m common sweep`: training throughput for every number of workers, batch size and pinning.

The program is step 07's: uint8 batches, autocast where the device has it, channels last, no hidden synchronisation,
not compiled. Each setting is measured by this module as a program, `python -m common.studies.sweep.measure`, in a
process of its own and anew in each run: a worker that is killed for lack of memory, or a GPU that is full, costs that
cell only.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from common import machine
from common.data import check_cifar10
from common.device import autocast_dtype, autocast_notes, device_name, without_gpu
from common.errors import InputError, is_out_of_memory, printable
from common.ladder.figures import check_figure_file
from common.model import classifier
from common.options import StepOptions
from common.run import privacy, progress
from common.session import Plan
from common.studies import isolated, study
from common.studies.ablation.plan import Optimisations
from common.studies.ablation.program import timed
from common.studies.input.measure import worker_numbers
from common.studies.processes import ProcessMemory, cpu_seconds, process_memory
from common.studies.sweep.figure import draw
from common.studies.sweep.record import Cell, CellRun, Setting, Sweep, all_settings
from common.studies.sweep.view import print_sweep

PROGRAM = isolated.module("common.studies.sweep.measure")
FULL = Plan(warmup_steps=1, warmup_seconds=1.0, windows=3, window_steps=2, window_seconds=1.0)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=3, window_steps=1, window_seconds=0.1)
STEP_07 = Optimisations(
    amp=True, bigger_batch=True, reduced_h2d_copy=True, multiprocess_loading=True, channels_last=True,
    no_hidden_syncs=True,
)  # fmt: skip
BATCH_SIZES = {"cuda": [32, 128, 512], "cpu": [32, 64, 128]}
QUICK_WORKERS, QUICK_BATCH_SIZES = [0, 1], [8, 16]
RUNS, QUICK_RUNS = 3, 1
CELL_SECONDS = 600  # of one measurement, start-up and all: beyond it something hangs


def sweep(args: argparse.Namespace) -> int:
    """Measure, write `sweep.json` into `args.logdir`, draw and print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, no cell that could be
    measured.
    """
    if args.plot:
        check_figure_file(args.plot)
    options = study.ready(args)
    kind, quick = torch.device(options.device).type, options.quick
    workers = args.workers_list or (QUICK_WORKERS if quick else default_workers(machine.usable_cores()))
    batch_sizes = args.batch_sizes or (QUICK_BATCH_SIZES if quick else BATCH_SIZES[kind])
    runs = args.runs or (QUICK_RUNS if quick else RUNS)
    return study.report(args, lambda: measure(options, workers, batch_sizes, runs), print_sweep, draw)


def measure(options: StepOptions, workers: list[int], batch_sizes: list[int], runs: int) -> Sweep:
    """The `Sweep` of a device. Prints its progress; see `sweep` for errors."""
    started, device = study.now(), torch.device(options.device)
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
    cells = measured(all_settings(workers, batch_sizes, pin_memory), options, runs)
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


def measured(settings: Sequence[Setting], options: StepOptions, runs: int) -> list[Cell]:
    """A `Cell` for each of `settings`, measured in every run; every other run goes through them backwards.

    A setting that failed is not tried again.
    """
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
            result = measured_isolated(setting, options)
            if isinstance(result, str):
                failed[index] = privacy.redacted(result)
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
    with isolated.isolated_process(command, settings, limit_seconds) as program:
        printed = program.lines.read()
        code = program.process.wait()
    if program.timed_out.is_set():
        return f"not done after {limit_seconds} s"
    lines = [line for line in printed.splitlines() if line.startswith('{"cell": ')]
    answer = json.loads(lines[-1])["cell"] if lines else {}
    if "windows" in answer:
        process_bytes, worker_bytes = (
            None if answer[name] is None else ProcessMemory(**answer[name])
            for name in ("process_bytes", "worker_bytes")
        )
        return CellRun(answer["windows"], answer["cores"], process_bytes, worker_bytes)
    killed = f"its process was killed by signal {-code}, most likely for lack of memory"
    return answer.get("error") or (killed if code < 0 else f"its process ended with code {code}")


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
    use, on = ResourceUse(), replace(STEP_07, pinned_memory=pin_memory)
    _, timing = timed(on, options, QUICK if options.quick else FULL, around_windows=use)
    return CellRun(timing.samples_per_second.windows, use.cores, use.process_bytes, use.worker_bytes)


def failure(error: Exception) -> str:
    """Why a setting could not be measured, in a line."""
    if isinstance(error, InputError):
        return printable(error, 200)
    if is_out_of_memory(error):
        return "out of memory before the first batch"
    return printable(f"{type(error).__name__}: {error}", 160)


def main(settings: str) -> None:
    """Measure the setting that a line of JSON describes, {"options": {…}, "pin_memory": …}; print a line of JSON.

    That is {"cell": the fields of a `CellRun`}, or {"cell": {"error": why not, in a line}}.
    """
    try:
        values = json.loads(settings)
        answer = asdict(measured_here(isolated.options_from(values["options"]), values["pin_memory"]))
    except Exception as error:  # loaders, drivers and allocators fail in any way; the sweep goes on
        answer = {"error": failure(error)}
    print(json.dumps({"cell": answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
