"""What `overhead` found, as `overhead.json` holds it. Needs the standard library only."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.record import Environment, read_as

FILE = "overhead.json"
OFF, OFF_AGAIN = "off", "off again"


@dataclass(frozen=True)
class Mode:
    """One way to trace, or not to. Lists hold a number a run, in order, and none where the mode was not measured.

    switches: what is handed to `torch.profiler.profile`, as one would type it. not_measured: why not. step_ms: mean of
    the timed steps. ratios: that over what "off" took in the same run. finish_seconds: from the end of the last step
    until the trace is written; none where nothing is traced. Sizes and events (metadata aside) are the trace's, of one
    run, over its steps; None without a trace.
    """

    name: str
    switches: str
    not_measured: str | None
    step_ms: list[float]
    ratios: list[float]
    finish_seconds: list[float]
    json_bytes_per_step: int | None
    gzip_bytes_per_step: int | None
    events_per_step: float | None

    @property
    def ratio(self):
        """The median run's."""
        return statistics.median(self.ratios)


@dataclass(frozen=True)
class Overhead:
    """One call of `overhead`. modes: `OFF` and, as a control, `OFF_AGAIN` first. steps: timed in each mode and run.

    before_ms: of a step before the process used a profiler for the first time.
    """

    schema: int
    device: str
    device_type: str
    model: str
    image_size: int
    batch_size: int
    precision: str
    seed: int
    steps: int
    runs: int
    before_ms: float
    modes: list[Mode]
    notes: list[str]
    environment: Environment
    started: str

    @property
    def off(self):
        return self.modes[0]

    @property
    def noise(self):
        """(low, high): what the ratio of nothing to nothing was over the runs."""
        return min(self.modes[1].ratios), max(self.modes[1].ratios)

    def slower(self, mode):
        """True where a mode was slower in every run than the control was in any."""
        return min(mode.ratios) > max(1.0, self.noise[1])

    def event_us(self, mode):
        """Microseconds that a step takes longer, over its events; None where there are none, or it is no slower."""
        if not mode.events_per_step or not self.slower(mode):
            return None
        more_ms = statistics.median(traced - off for traced, off in zip(mode.step_ms, self.off.step_ms, strict=True))
        return max(more_ms, 0.0) * 1e3 / mode.events_per_step


def read_overhead(logdir):
    """The `Overhead` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    found = read_as(Overhead, path)
    if [mode.name for mode in found.modes[:2]] != [OFF, OFF_AGAIN] or found.runs < 1:
        raise InputError(f"{path} is broken: its modes must begin with {OFF!r} and {OFF_AGAIN!r}, of a run at least")
    for mode in found.modes:
        whole = [found.runs] * 2 if mode.not_measured is None else [0] * 2
        if [len(mode.step_ms), len(mode.ratios)] != whole or min([*mode.step_ms, *mode.ratios, 1.0]) <= 0:
            raise InputError(f"{path} is broken: {mode.name!r} must hold a positive number for each run")
    return found
