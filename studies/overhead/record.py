"""The result of `overhead`, as `overhead.json` holds it. Starts without torch."""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from studies import study
from walkthrough.compare.statistics import Ratio, of_pairs
from walkthrough.results.result import Positive, PositiveInt

FILE = "overhead.json"
SCHEMA = 3
OFF, OFF_AGAIN = "off", "off again"


@dataclass(frozen=True)
class Mode:
    """One way to trace, or not to. Lists hold a number per run, in order, and none where the mode was not measured.

    switches: what is passed to `torch.profiler.profile`, as one would type it. not_measured: why not. steps: timed in
    the mode. off_ms: of a step in the same process before it used a profiler; step_ms: of one in the mode, both means.
    finish_seconds: from the end of the last step until the trace is written; none where nothing is traced. Sizes and
    events (metadata aside) are those of one trace, over its steps; None without a trace.
    """

    name: str
    switches: str
    not_measured: str | None
    steps: list[PositiveInt]
    off_ms: list[Positive]
    step_ms: list[Positive]
    finish_seconds: list[float]
    json_bytes_per_step: int | None
    gzip_bytes_per_step: int | None
    events_per_step: float | None

    @property
    def ratios(self) -> list[float]:
        """How many times as long a step took as without a profiler, by run."""
        return [step / off for step, off in zip(self.step_ms, self.off_ms, strict=True)]

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
        """True where a step takes measurably longer than without a profiler."""
        return self.cost is not None and self.cost.resolved and self.cost.ratio > 1

    @property
    def us_per_event(self) -> float | None:
        """µs that a step takes longer, over its events; None where there are none, or it is not measurably slower."""
        if not self.events_per_step or not self.slower:
            return None
        more_ms = statistics.median(step - off for step, off in zip(self.step_ms, self.off_ms, strict=True))
        return max(more_ms, 0.0) * 1e3 / self.events_per_step


@dataclass(frozen=True, kw_only=True)
class Overhead(study.Study):
    """One call of `overhead`. modes: first the control, `OFF_AGAIN`. batch_size: samples per step."""

    FILE: ClassVar[str] = FILE
    SCHEMA: ClassVar[int] = SCHEMA

    precision: str
    batch_size: PositiveInt
    runs: PositiveInt
    modes: list[Mode]

    def problem(self) -> str | None:
        if [mode.name for mode in self.modes[:1] if mode.not_measured is None] != [OFF_AGAIN]:
            return f"its modes must begin with {OFF_AGAIN!r}, measured"
        for mode in self.modes:
            runs = 0 if mode.not_measured is not None else self.runs
            if {len(mode.steps), len(mode.off_ms), len(mode.step_ms)} != {runs}:
                return f"{mode.name!r} must hold a number for each run"
        return None

    @property
    def control(self) -> Mode:
        """A second "off" in place of a mode: nothing differs, so the interval of its cost should include 1."""
        return self.modes[0]

    @property
    def traced(self) -> list[Mode]:
        """The modes with a profiler that were measured."""
        return [mode for mode in self.modes[1:] if mode.not_measured is None]

    @property
    def off_ms(self) -> float:
        """Of a step without a profiler, the median of all processes."""
        return statistics.median(off for mode in self.modes for off in mode.off_ms)

    @property
    def steps(self) -> str:
        """How many steps a timed window has, in words: "25 steps", "28 to 92 steps"."""
        steps = {number for mode in self.modes for number in mode.steps}
        low, high = min(steps), max(steps)
        return f"{low} step{'' if high == 1 else 's'}" if low == high else f"{low} to {high} steps"

    def computed(self) -> dict[str, Any]:
        return {"costs": {mode.name: mode.cost and asdict(mode.cost) for mode in (self.control, *self.traced)}}


def read(logdir: str | Path) -> Overhead | None:
    """The `Overhead` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Overhead, logdir)
