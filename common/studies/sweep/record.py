"""What `sweep` found, as `sweep.json` holds it. Needs the standard library only."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.record import Environment, read_as
from common.studies.input.record import ProcessMemory

FILE = "sweep.json"


@dataclass(frozen=True)
class CellRun:
    """One measurement of a cell, in a process of its own: images/s of each of its windows.

    cores: CPU seconds of the training process and its workers, over the seconds of the windows. process_bytes: the
    training process's; worker_bytes: the median worker's, None without workers. None where the system does not tell.
    """

    windows: list[float]
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
    def speeds(self):
        """images/s: of each run the median window; of a single run its windows, since one number has no range."""
        if len(self.runs) == 1:
            return self.runs[0].windows
        return [statistics.median(run.windows) for run in self.runs]

    @property
    def median(self):
        return statistics.median(self.speeds)

    @property
    def low(self):
        return min(self.speeds)

    @property
    def high(self):
        return max(self.speeds)

    @property
    def cores(self):
        """Of the median run; None where one does not tell."""
        return _median([run.cores for run in self.runs])

    def memory(self, pick):
        """Bytes of the median run; `pick` takes them from a `CellRun`. None where one does not tell."""
        return _median([pick(run) for run in self.runs])

    @property
    def worker_pss(self):
        return self.memory(lambda run: run.worker_bytes and run.worker_bytes.pss)

    @property
    def worker_rss(self):
        return self.memory(lambda run: run.worker_bytes and run.worker_bytes.rss)

    @property
    def process_rss(self):
        return self.memory(lambda run: run.process_bytes and run.process_bytes.rss)

    @property
    def total_pss(self):
        """Bytes of the training process and all its workers together, proportional; None where not told."""
        process, worker = self.memory(lambda run: run.process_bytes and run.process_bytes.pss), self.worker_pss
        if process is None or (self.workers and worker is None):
            return None
        return process + self.workers * (worker or 0)

    def faster_than(self, other):
        """True where the ranges lie apart, this one above."""
        return self.low > other.high


@dataclass(frozen=True)
class Sweep:
    """One call of `sweep`: a `Cell` for every setting. cells: by pinning, then batch size, then workers."""

    schema: int
    device: str
    device_type: str
    model: str
    data: str
    image_size: int
    precision: str
    seed: int
    workers: list[int]
    batch_sizes: list[int]
    pin_memory: list[bool]
    cells: list[Cell]
    notes: list[str]
    environment: Environment
    started: str

    def cell(self, workers, batch_size, pin_memory):
        """The cell of a setting. Raises KeyError for one that is not there."""
        for cell in self.cells:
            if (cell.workers, cell.batch_size, cell.pin_memory) == (workers, batch_size, pin_memory):
                return cell
        raise KeyError((workers, batch_size, pin_memory))

    @property
    def measured(self):
        """The cells that were measured in all runs."""
        return [cell for cell in self.cells if cell.failed is None]

    @property
    def best(self):
        """The cell with the most images/s."""
        return max(self.measured, key=lambda cell: cell.median)

    def neighbours(self, cell):
        """The measured cells that differ from one in one setting: the next number of workers or batch size, pinning."""
        found = []
        for names, values, at in (
            ("workers", self.workers, cell.workers),
            ("batch_size", self.batch_sizes, cell.batch_size),
            ("pin_memory", self.pin_memory, cell.pin_memory),
        ):
            index = values.index(at)
            for value in (*values[max(0, index - 1) : index], *values[index + 1 : index + 2]):
                setting = {"workers": cell.workers, "batch_size": cell.batch_size, "pin_memory": cell.pin_memory}
                found.append(self.cell(**(setting | {names: value})))
        return [each for each in found if each.failed is None]


def read_sweep(logdir):
    """The `Sweep` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    found = read_as(Sweep, path)
    settings = [(cell.workers, cell.batch_size, cell.pin_memory) for cell in found.cells]
    wanted = [(w, b, p) for p in found.pin_memory for b in found.batch_sizes for w in found.workers]
    if settings != wanted or not found.measured:
        raise InputError(f"{path} is broken: it must hold a cell for every setting, and one at least that was measured")
    for cell in found.cells:
        speeds = [speed for run in cell.runs for speed in run.windows or [0.0]]
        if min(speeds, default=1.0) <= 0 or not (cell.runs or cell.failed):
            raise InputError(f"{path} is broken: each run of a cell must hold windows, and positive numbers")
    return found


def _median(values):
    return statistics.median(values) if values and None not in values else None
