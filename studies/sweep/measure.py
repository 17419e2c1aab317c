"""Measure training throughput for every number of workers, batch size and pinning.

The program is step 05's: see `sweep.program`. Each setting is measured in a process of its own and anew in each run: a
worker that is killed for lack of memory, or a GPU that is full, costs that cell only.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import torch

from common.data import check_cifar10
from common.device import autocast_dtype, autocast_notes, device_name, without_gpu
from common.model import classifier
from common.options import StepOptions
from studies import study
from studies.input.measure import worker_numbers
from studies.processes import ProcessMemory
from studies.sweep.record import Cell, CellRun, Setting, Sweep, all_settings
from walkthrough.compare import isolated
from walkthrough.compare.kept import Kept
from walkthrough.results import environment, privacy, progress
from walkthrough.results.errors import InputError

PROGRAM = isolated.module("studies.sweep.program")
CELL_SECONDS = 600  # of one measurement, start-up and all: beyond it something hangs


def measure(options: StepOptions, workers: list[int], batch_sizes: list[int], runs: int) -> Sweep:
    """The `Sweep` of a device. Prints its progress; see `sweep.run` for errors."""
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
