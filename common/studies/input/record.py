"""What `limit --input` found, as `input_limit.json` holds it. Needs the standard library only."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.record import Environment, Throughput, read_as

FILE = "input_limit.json"


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process: on_device, and proportional (pages shared with others divided among them)."""

    rss: int
    pss: int


@dataclass(frozen=True)
class Delivered:
    """What a DataLoader delivers with so many workers (0: in the main process), images/s of each window.

    start_seconds: from asking for an iterator to its first batch. worker_bytes: None without workers, or where the
    system does not tell.
    """

    workers: int
    samples_per_second: Throughput
    start_seconds: float
    worker_bytes: ProcessMemory | None


@dataclass(frozen=True)
class Consumed:
    """What the model alone trains on, images/s. source: where that is from. kind: see `limit_record.Floor`."""

    samples_per_second: Throughput
    kind: str
    precision: str
    batch_size: int
    source: str


@dataclass(frozen=True)
class InputLimit:
    """One call of `limit --input`. enough_workers: the fewest that outpace the model in every window, None if none."""

    schema: int
    device: str
    device_type: str
    model: str
    data: str
    image_size: int
    batch_size: int
    pin_memory: bool
    delivered: list[Delivered]
    model_alone: Consumed
    enough_workers: int | None
    bottleneck: str
    notes: list[str]
    environment: Environment
    started: str


ENOUGH, EVEN, SHORT = "faster than the model", "as fast as the model", "slower than the model"


def judged(delivered, consumed):
    """`ENOUGH` or `SHORT` where the windows' ranges lie apart, otherwise `EVEN`."""
    input_speeds, model_speeds = delivered.samples_per_second.windows, consumed.samples_per_second.windows
    if min(input_speeds) > max(model_speeds):
        return ENOUGH
    return SHORT if max(input_speeds) < min(model_speeds) else EVEN


def read_input_limit(logdir):
    """The `InputLimit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    found = read_as(InputLimit, path)
    speeds = [each.samples_per_second for each in (*found.delivered, found.model_alone)]
    if not found.delivered or min(min([each.median, *each.windows], default=0.0) for each in speeds) <= 0:
        raise InputError(f"{path} is broken: it must hold what was delivered and consumed, in positive numbers")
    return found
