"""The result of `limit`, as `limit.json` holds it. Starts without torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from studies import study
from walkthrough.compare.roofs import FILE, SCHEMA, Roofs
from walkthrough.results.result import Meta, PositiveInt, Result, StepTime, Throughput

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"  # memory layouts


@dataclass(frozen=True)
class Program:
    """What the search for the limit varies. cudnn_benchmark, cuda_graphs: None where there is no GPU.

    cuda_graphs: of compiled code, as in step 15.
    """

    batch_size: PositiveInt
    layout: str
    cudnn_benchmark: bool | None
    compiled: bool
    cuda_graphs: bool | None = field(default=None, kw_only=True)

    @property
    def kind(self) -> str:
        """All but the batch size, for people: "compiled, channels last"."""
        words = ["compiled" if self.compiled else "uncompiled", self.layout]
        words += ["cudnn.benchmark"] if self.cudnn_benchmark else []
        words += ["CUDA graphs"] if self.cuda_graphs else []
        return ", ".join(words)


@dataclass(frozen=True)
class TrainingSpeed(Program):
    """How fast a `Program` trains on one batch that is on the device already; see `one_batch.TrainStep`.

    flops_per_second: FLOPs of a step over its time. mfu: that over the measured peak, 0..1. bytes_per_second: bytes
    that a step's operators move (see `flops.OperatorCounter`) over its time; of a compiled program by Inductor's own
    count of its kernels' bytes, None where it gave none. share_of_memory_roof: see `Roofs.memory_share`; the same bytes
    for every program of a batch size. None in what an earlier version wrote.
    """

    samples_per_second: Throughput
    step_ms: StepTime
    flops_per_second: float
    mfu: float
    bytes_per_second: float | None
    share_of_memory_roof: float | None = field(default=None, kw_only=True)


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
    def work(self) -> int:
        """FLOPs, or where there is no formula one for each element written: for a place in the roofline only."""
        return self.elements if self.flops is None else self.flops


@dataclass(frozen=True)
class Uncounted:
    """An operator that torch has no FLOP formula for: its calls in a step."""

    name: str
    calls: int


@dataclass(frozen=True)
class WithoutFormula:
    """Operators without a FLOP formula, most calls first, and their share of all operators of a step, 0..1.

    time_share: of the traced time of operators (on a GPU: of the kernels' that they launched); None where they were not
    timed.
    """

    operators: list[Uncounted]
    calls_share: float
    time_share: float | None


@dataclass(frozen=True, kw_only=True)
class Limit(Roofs, study.Study):
    """One call of `limit`. FLOPs are 2 x multiply-adds; peaks are those measured here; see `Roofs`.

    speeds: of all programs that the search tried, in its order. not_compiled: why none of them is compiled. The others
    are of a step of `uncompiled`. groups: empty where operators were not timed. outside_ms: of a traced step, time on
    the CPU in no counted operator (on a GPU: of device work that no counted operator launched).
    """

    FILE: ClassVar[str] = FILE
    SCHEMA: ClassVar[int] = SCHEMA

    precision: str
    forward_flops_per_image: PositiveInt
    flops_per_step: PositiveInt
    bytes_per_step: PositiveInt
    speeds: Annotated[list[TrainingSpeed], Meta(min_length=1)]
    not_compiled: str | None
    groups: list[Group]
    outside_ms: float
    without_formula: WithoutFormula

    def problem(self) -> str | None:
        return (
            "none of its speeds is of an uncompiled program" if all(speed.compiled for speed in self.speeds) else None
        )

    @property
    def fastest(self) -> TrainingSpeed:
        """The limit itself: the fastest of the speeds."""
        return _fastest(self.speeds)

    @property
    def uncompiled(self) -> TrainingSpeed:
        """The fastest uncompiled program: the one whose operators were counted and traced."""
        return _fastest([speed for speed in self.speeds if not speed.compiled])

    @property
    def batch_size(self) -> int:
        """The fastest program's."""
        return self.fastest.batch_size

    def roof_at(self, intensity: float) -> float:
        """FLOP/s that the measured peaks allow at so many FLOPs per byte."""
        return min(self.flops_roof, intensity * self.bytes_roof)

    def share_of_roof(self, group: Group) -> float | None:
        """Speed of a `Group` in the trace over its roof, 0..1 (above 1 where data came from caches), or None.

        Under the sloped roof this is bytes/s over the peak's, whatever counts as a FLOP.
        """
        if not (group.work and group.bytes and group.traced_ms):
            return None
        return group.work / (group.traced_ms / 1e3) / self.roof_at(group.work / group.bytes)

    def share_of_limit(self, result: Result) -> float:
        """images/s of a run over those of the limit; of a run on several GPUs, over those of as many limits."""
        return result.samples_per_second.median / (self.devices(result) * self.fastest.samples_per_second.median)


def read(logdir: str | Path) -> Limit | None:
    """The `Limit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Limit, logdir)


def _fastest(speeds: list[TrainingSpeed]) -> TrainingSpeed:
    return max(speeds, key=lambda speed: speed.samples_per_second.median)
