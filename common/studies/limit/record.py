"""What `limit` found, as `limit.json` holds it, and whether it speaks of a run. Needs the standard library only."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.record import Environment, StepTime, Throughput, read_as

FILE = "limit.json"
SMOKE = "smoke run (--quick): few and short windows, so the figures are rough"


@dataclass(frozen=True)
class Peak:
    """One measurement of a peak: what it was measured with, and the rate per second of each timed window."""

    what: str
    median: float
    windows: list[float]


@dataclass(frozen=True)
class Floor:
    """The model trained on one batch that lies on the device already.

    kind: "uncompiled", "channels last" or "compiled"; see `floor`. flops_per_second: FLOPs of a step over its time.
    mfu: that over the measured peak, 0..1. bytes_per_second: bytes of a step's operators over its time; None where they
    are compiled into others, since nobody counted what those move.
    """

    kind: str
    samples_per_second: Throughput
    step_ms: StepTime
    flops_per_second: float
    mfu: float
    bytes_per_second: float | None


@dataclass(frozen=True)
class Group:
    """Operators of one kind in one step: see `flops.OperatorCounter`; ms of a traced, uncompiled step.

    flops: None where torch has no formula for them. elements: written.
    """

    name: str
    calls: int
    flops: int | None
    bytes: int
    elements: int
    traced_ms: float

    @property
    def work(self):
        """FLOPs, or where there is no formula one for each element written: for a place in the roofline only."""
        return self.elements if self.flops is None else self.flops


@dataclass(frozen=True)
class Uncounted:
    """An operator that torch has no FLOP formula for: its calls in a step."""

    name: str
    calls: int


@dataclass(frozen=True)
class WithoutFormula:
    """Operators without a FLOP formula, most calls first, and what they are of all operators of a step, 0..1.

    time_share: of the traced time of operators (on a GPU: of the kernels' that they launched).
    """

    operators: list[Uncounted]
    calls_share: float
    time_share: float


@dataclass(frozen=True)
class Limit:
    """One call of `limit`. FLOPs are 2 x multiply-adds; peaks are those measured here, the best size first.

    floors: uncompiled first. not_compiled: why there is no compiled one. outside_ms: of a traced step, time on the CPU
    in no counted operator (on a GPU: of device work that no counted operator launched).
    """

    schema: int
    device: str
    device_type: str
    model: str
    image_size: int
    batch_size: int
    precision: str
    seed: int
    forward_flops_per_image: int
    flops_per_step: int
    bytes_per_step: int
    peak_flops: list[Peak]
    peak_bytes: list[Peak]
    floors: list[Floor]
    not_compiled: str | None
    groups: list[Group]
    outside_ms: float
    without_formula: WithoutFormula
    notes: list[str]
    environment: Environment
    started: str

    @property
    def smoke(self):
        """True for a run with --quick, whose figures are rough."""
        return any(note.startswith("smoke run") for note in self.notes)

    @property
    def floor(self):
        """The faster of the floors."""
        return max(self.floors, key=lambda floor: floor.samples_per_second.median)

    @property
    def flops_roof(self):
        return self.peak_flops[0].median

    @property
    def bytes_roof(self):
        return self.peak_bytes[0].median

    def of_the_floor(self, result):
        """images/s of a `record.Result` over the floor's."""
        return result.samples_per_second.median / self.floor.samples_per_second.median

    def matches(self, result):
        """True where a `record.Result`, or another limit, is of the same device, model and image size."""

        def key(each):
            cores = each.environment.cores if each.device_type == "cpu" else None  # a CPU's name tells not its size
            return each.device, cores, each.model, each.image_size

        return key(self) == key(result)


def read_limit(logdir):
    """The `Limit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    limit = read_as(Limit, path)
    every = [*limit.peak_flops, *limit.peak_bytes, *(floor.samples_per_second for floor in limit.floors)]
    empty = not (limit.peak_flops and limit.peak_bytes and limit.floors) or not all(each.windows for each in every)
    if empty or min(value for each in every for value in (each.median, *each.windows)) <= 0:
        raise InputError(f"{path} is broken: peaks and floors must be there, hold windows, and be positive")
    if min(limit.batch_size, limit.flops_per_step, limit.bytes_per_step, limit.forward_flops_per_image) <= 0:
        raise InputError(f"{path} is broken: the batch, its FLOPs and its bytes must be positive")
    return limit
