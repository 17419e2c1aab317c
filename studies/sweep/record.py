"""What `sweep` measured, as `sweep.json` holds it. Needs the standard library only."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from studies import study
from studies.processes import ProcessMemory
from studies.study import Study, workers_text
from walkthrough.compare.statistics import Ratio, ratio
from walkthrough.results.result import Meta, Positive

FILE = "sweep.json"


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

    def memory(self, pick: Callable[[CellRun], float | None]) -> float | None:
        """Bytes of the median run; `pick` takes them from a `CellRun`. None where one is not known."""
        return _median([pick(run) for run in self.runs])

    @property
    def worker_pss(self) -> float | None:
        return self.memory(lambda run: run.worker_bytes and run.worker_bytes.pss)

    @property
    def worker_rss(self) -> float | None:
        return self.memory(lambda run: run.worker_bytes and run.worker_bytes.rss)

    @property
    def process_rss(self) -> float | None:
        return self.memory(lambda run: run.process_bytes and run.process_bytes.rss)

    @property
    def total_pss(self) -> float | None:
        """Bytes of the training process and all its workers together, proportional; None where not known."""
        process, worker = self.memory(lambda run: run.process_bytes and run.process_bytes.pss), self.worker_pss
        if process is None or (self.workers and worker is None):
            return None
        return process + self.workers * (worker or 0)

    def over(self, other: "Cell") -> Ratio:
        """How many times as fast this is as another that was measured in the same runs."""
        return ratio(*({run: measured.windows for run, measured in enumerate(cell.runs)} for cell in (self, other)))

    def faster_than(self, other: "Cell") -> bool:
        """True where this one is measurably faster."""
        over = self.over(other)
        return over.resolved and over.ratio > 1


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

    def neighbours(self, cell: Cell) -> list[Cell]:
        """The measured cells that differ from one in one setting: the next number of workers or batch size, pinning."""
        cells, varied = [], {"workers": self.workers, "batch_size": self.batch_sizes, "pin_memory": self.pin_memory}
        for name, values in varied.items():
            index = values.index(getattr(cell, name))
            for value in (*values[max(0, index - 1) : index], *values[index + 1 : index + 2]):
                cells.append(self.cell(*cell.setting._replace(**{name: value})))
        return [neighbour for neighbour in cells if neighbour.failed is None]

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
