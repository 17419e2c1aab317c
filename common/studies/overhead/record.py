"""The result of `overhead`, as `overhead.json` holds it. Starts without torch."""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from common.ladder.statistics import Ratio, of_pairs
from common.record import Positive, PositiveInt
from common.studies import study

FILE = "overhead.json"
OFF, OFF_AGAIN = "off", "off again"


@dataclass(frozen=True)
class Mode:
    """One way to trace, or not to. Lists hold a number per run, in order, and none where the mode was not measured.

    switches: what is passed to `torch.profiler.profile`, as one would type it. not_measured: why not. step_ms: mean of
    the timed steps. ratios: that over what "off" took in the same run. finish_seconds: from the end of the last step
    until the trace is written; none where nothing is traced. Sizes and events (metadata aside) are the trace's, of one
    run, over its steps; None without a trace.
    """

    name: str
    switches: str
    not_measured: str | None
    step_ms: list[Positive]
    ratios: list[Positive]
    finish_seconds: list[float]
    json_bytes_per_step: int | None
    gzip_bytes_per_step: int | None
    events_per_step: float | None

    @property
    def ratio(self) -> float:
        """How many times as long a step takes as without a profiler, mean of the runs."""
        return statistics.geometric_mean(self.ratios)

    @property
    def cost(self) -> Ratio | None:
        """`ratio` with its interval; above 1 is slower. None where fewer than two runs measured it."""
        return of_pairs(self.ratios) if len(self.ratios) > 1 else None

    @property
    def slower(self) -> bool:
        """True where it is resolved that a step takes longer than without a profiler."""
        return self.cost is not None and self.cost.resolved and self.cost.ratio > 1


@dataclass(frozen=True, kw_only=True)
class Overhead(study.Study):
    """One call of `overhead`. modes: `OFF` and, as a control, `OFF_AGAIN` first. steps: timed in each mode and run.

    batch_size: samples per step. before_ms: of a step before the process used a profiler for the first time.
    """

    FILE: ClassVar[str] = FILE

    precision: str
    batch_size: PositiveInt
    steps: PositiveInt
    runs: PositiveInt
    before_ms: Positive
    modes: list[Mode]

    def problem(self) -> str | None:
        measured = [mode.name for mode in self.modes[:2] if mode.not_measured is None]
        if measured != [OFF, OFF_AGAIN]:
            return f"its modes must begin with {OFF!r} and {OFF_AGAIN!r}, both measured"
        for mode in self.modes:
            runs = 0 if mode.not_measured is not None else self.runs
            if (len(mode.step_ms), len(mode.ratios)) != (runs, runs):
                return f"{mode.name!r} must hold a number for each run"
        return None

    @property
    def off(self) -> Mode:
        return self.modes[0]

    @property
    def control(self) -> Mode:
        """A second "off": nothing differs, so the interval of its cost should hold 1."""
        return self.modes[1]

    @property
    def traced(self) -> list[Mode]:
        """The modes with a profiler that were measured."""
        return [mode for mode in self.modes[2:] if mode.not_measured is None]

    def us_per_event(self, mode: Mode) -> float | None:
        """µs that a step takes longer, over its events; None where there are none, or it is not resolved as slower."""
        if not mode.events_per_step or not mode.slower:
            return None
        more_ms = statistics.median(traced - off for traced, off in zip(mode.step_ms, self.off.step_ms, strict=True))
        return max(more_ms, 0.0) * 1e3 / mode.events_per_step

    def computed(self) -> dict[str, Any]:
        return {"costs": {mode.name: mode.cost and asdict(mode.cost) for mode in (self.control, *self.traced)}}


def read(logdir: str | Path) -> Overhead | None:
    """The `Overhead` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Overhead, logdir, from_schema_1)


def from_schema_1(value: dict[str, Any]) -> dict[str, Any]:
    """Convert schema 1 to schema 2."""
    return value | study.header_from_schema_1(value)
