"""How near the limit, and the device's measured peaks, a run is: what `limit` counted and measured, read.

Starts without torch.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from walkthrough.compare import study
from walkthrough.results.result import Amount, Meta, Positive, PositiveInt, Result, Setup, Throughput, typed

FILE = "limit.json"
SIXTEEN_BITS = ("float16", "bfloat16")


@dataclass(frozen=True)
class Peak:
    """One measurement of a peak: what it was measured with, and the rate per second of each timed window."""

    what: str
    median: Positive
    windows: Annotated[list[Positive], Meta(min_length=1)]


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a step in this precision must move at least: fixed + per_image x images; see `flops.least_bytes`."""

    precision: str
    fixed: Amount
    per_image: Amount


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
class Speed(Program):
    """How fast a program trains on one batch that is on the device already."""

    samples_per_second: Throughput


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The measured peaks of a device, the best size first, and what a training step of a model has to do there.

    precision: the dtype that FLOPs ran in while they and their peak were measured. flops_per_image: of a training step,
    forward and backward. step_bytes: by precision. speeds: of the programs that were tried; the fastest is the limit.
    """

    setup: Setup
    precision: str | None
    started: str
    quick: bool
    peak_flops: Annotated[list[Peak], Meta(min_length=1)]
    peak_bytes: Annotated[list[Peak], Meta(min_length=1)]
    flops_per_image: Annotated[int, Meta(gt=0, le=10**18)] | None = None
    step_bytes: list[StepBytes] = field(default_factory=list)
    speeds: Annotated[list[Speed], Meta(min_length=1)]

    @property
    def fastest(self) -> Speed:
        """The limit itself: the fastest of the speeds."""
        return max(self.speeds, key=lambda speed: speed.samples_per_second.median)

    @property
    def batch_size(self) -> int:
        """The fastest program's."""
        return self.fastest.batch_size

    def share_of_limit(self, result: Result) -> float:
        """images/s of a run over those of the limit; of a run on several GPUs, over those of as many limits."""
        return result.samples_per_second.median / (self.devices(result) * self.fastest.samples_per_second.median)

    @property
    def flops_roof(self) -> float:
        """The measured peak, FLOP/s."""
        return self.peak_flops[0].median

    @property
    def bytes_roof(self) -> float:
        """The measured peak, bytes/s."""
        return self.peak_bytes[0].median

    def least_bytes(self, batch_size: int, precision: str | None) -> float | None:
        """Bytes that a step on so many images must move at least; None where they were not counted in `precision`."""
        same = SIXTEEN_BITS if precision in SIXTEEN_BITS else (precision,)
        known = next((one for one in self.step_bytes if one.precision in same), None)
        return known and known.fixed + known.per_image * batch_size

    def memory_share(self, batch_size: int, precision: str | None, images_per_second: float) -> float | None:
        """`least_bytes` per second over the measured peak bytes/s, 0..1. Above 1 where caches served a part."""
        least = self.least_bytes(batch_size, precision)
        return least and least * images_per_second / batch_size / self.bytes_roof

    def devices(self, result: Result) -> int:
        """How many such devices a run had: on a CPU all its processes share one."""
        return result.world_size if self.setup.cores is None else 1

    def shares(self, result: Result) -> dict[str, float | None]:
        """How near a run is to the measured peaks, 0..1, as `compare --json` prints it; see `NO_SHARES`.

        share_of_arithmetic_peak: FLOPs per second over the peak, None in another precision than the peak's.
        share_of_memory_roof: see `memory_share`.
        """
        speed = result.samples_per_second.median / self.devices(result)
        flops = self.flops_per_image if result.precision == self.precision else None
        return {
            "share_of_arithmetic_peak": flops and flops * speed / self.flops_roof,
            "share_of_memory_roof": self.memory_share(result.batch_size, result.precision, speed),
        }


NO_SHARES: dict[str, float | None] = dict.fromkeys(("share_of_arithmetic_peak", "share_of_memory_roof"))


def read(logdir: str | Path, no_links: bool = False) -> Limit | None:
    """The `Limit` in a folder of runs; None where there are none.

    no_links: see `result.read_json`. Raises InputError for a broken file.
    """
    path = Path(logdir) / FILE
    return of_study(study.read(path, no_links), path) if path.exists() else None


def of_study(limit: study.Study, path: Path = Path(FILE)) -> Limit:
    """The `Limit` in the result of `limit`, which was read from `path`. Raises InputError for a broken one."""
    shared = {name: getattr(limit, name) for name in ("setup", "precision", "started", "quick")}
    return typed(Limit, limit.measured | shared, path)
