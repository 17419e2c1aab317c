"""The result of `limit --input`, as `input_limit.json` holds it. Starts without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from studies import study
from studies.processes import ProcessMemory
from walkthrough.compare.statistics import Ratio, of_windows
from walkthrough.results.result import Meta, PositiveInt, Throughput

FILE = "input_limit.json"
FASTER, UNRESOLVED, SLOWER = "faster than the model", "no measurable difference", "slower than the model"


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
