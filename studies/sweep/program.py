"""The program that `sweep` measures in one setting: step 05's, with pinned memory or without.

That is uint8 batches from workers, and autocast where the device has it. Each measurement is a process of its own,
`python -m studies.sweep.program JSON`.
"""

import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, replace

from common.options import StepOptions
from common.timing import Plan
from studies.ablation.plan import Optimisations
from studies.ablation.program import timed
from studies.processes import ProcessMemory, cpu_seconds, process_memory
from studies.sweep.record import CellRun
from walkthrough.compare.isolated import options_from, print_answer
from walkthrough.compare.reader import end_with_reader
from walkthrough.results.errors import InputError, is_out_of_memory, printable

FULL = Plan(warmup_steps=1, warmup_seconds=0.8, windows=3, window_steps=2, window_seconds=0.8)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=3, window_steps=1, window_seconds=0.1)
BASE = Optimisations(amp=True, bigger_batch=True, reduced_h2d_copy=True, multiprocess_loading=True)


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
    use, on = ResourceUse(), replace(BASE, pinned_memory=pin_memory)
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
    """Measure the setting that a line of JSON describes, {"options": {…}, "pin_memory": …}.

    Answers with the fields of a `CellRun`, or {"error": why not, in a line}.
    """
    try:
        values = json.loads(settings)
        answer = asdict(measured_here(options_from(values["options"]), values["pin_memory"]))
    except Exception as error:  # loaders, drivers and allocators fail in any way; the sweep goes on
        answer = {"error": failure(error)}
    print_answer(answer)


if __name__ == "__main__":
    end_with_reader()
    main(sys.argv[1])
