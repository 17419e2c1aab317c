"""Runs side by side: how much faster each step is than the baseline and than the step before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.record import Result, Setup, read_runs


@dataclass(frozen=True)
class Ratio:
    """How many times faster one run is than another: ratio of the median windows, and its range.

    low: the lower end of the one's `spread` over the upper end of the other's; high: the other way round. So the
    range is what the windows themselves allow, with no assumption about how they are distributed.
    """

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """For people: "1.39x (1.31-1.48)", or "no difference" where the range contains 1."""
        return f"{self.ratio:.2f}x ({self.low:.2f}-{self.high:.2f})" if self.differs else "no difference"

    @property
    def differs(self) -> bool:
        """False where the range contains 1: then the runs are not resolved from each other."""
        return not self.low <= 1 <= self.high


@dataclass(frozen=True)
class GpuUse:
    """What a run's trace shows of its GPUs, the mean over them, as shares 0..1; None where it does not show it.

    utilization: see `trace.gpus.Gpu`. tensor_cores: of the kernel time. Both from the traced steps, which the profiler
    slows: they show how the time is spent, not how much of it.
    """

    utilization: float | None
    tensor_cores: float | None


@dataclass(frozen=True)
class RunSpread:
    """A recorded step run by run, images/s: the mean of the runs' medians, the slowest and the fastest, how many.

    Windows of one run share what the machine did during that run; so this is the spread that another run would have.
    """

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        """For people: the mean, and half the range over it."""
        return f"{self.mean:.1f} ±{(self.high - self.low) / 2 / self.mean:.0%}"


@dataclass(frozen=True)
class Row:
    """One run in a ladder: against the ladder's baseline and against the row before (None for the first)."""

    result: Result
    relative: Ratio
    gain: Ratio | None


@dataclass(frozen=True)
class Ladder:
    """Runs of one `Result.setup`, in the order of their names; the first is the baseline."""

    rows: list[Row]

    @property
    def baseline(self) -> Result:
        return self.rows[0].result


def ratio(faster: Result, slower: Result) -> Ratio:
    """The `Ratio` of two results' throughputs, `faster` over `slower`."""
    if faster is slower:
        return Ratio(1.0, 1.0, 1.0)
    (low, high), (other_low, other_high) = spread(faster), spread(slower)
    return Ratio(
        faster.samples_per_second.median / slower.samples_per_second.median, low / other_high, high / other_low
    )


def spread(result: Result) -> tuple[float, float]:
    """Slowest and fastest timed window, images/s, without a tenth of the windows at either end.

    Of the five windows of one run that is all of them; of a recorded step's many, single outliers do not count.
    """
    windows = sorted(result.samples_per_second.windows)
    left_out = len(windows) // 10
    return windows[left_out], windows[-1 - left_out]


def half_spread(result: Result) -> float:
    """Half the `spread` over the median: 0.1 for "±10%"."""
    low, high = spread(result)
    return (high - low) / 2 / result.samples_per_second.median


def is_first_step(result: Result) -> bool:
    """True for a run of step 00, the baseline that the course is about."""
    return result.step.startswith("00_")


def ladders(results: Iterable[Result]) -> list[Ladder]:
    """Sort results into ladders by their setups; the one with the most steps first, among equals the newest.

    Raises InputError where there is nothing to compare.
    """
    groups: dict[Setup, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.step):
        groups.setdefault(result.setup, []).append(result)
    if not groups:
        raise InputError("no results to compare")
    ordered = sorted(groups.values(), key=lambda group: (len(group), max(r.started for r in group)), reverse=True)
    return [_ladder(group) for group in ordered]


def _ladder(group: list[Result]) -> Ladder:
    before = [None, *group]
    return Ladder(
        [
            Row(result, ratio(result, group[0]), None if previous is None else ratio(result, previous))
            for result, previous in zip(group, before, strict=False)
        ]
    )


def recorded_runs(logdir: str | Path, results: Iterable[Result]) -> dict[str, RunSpread]:
    """{step: its `RunSpread`} of those results that a record keeps run by run, in `<step>/runs/N.json`."""
    spreads = {}
    for result in results:
        medians = [run.samples_per_second.median for run in read_runs(Path(logdir) / result.step)]
        if medians:
            spreads[result.step] = RunSpread(sum(medians) / len(medians), min(medians), max(medians), len(medians))
    return spreads


def gpu_use(logdir: str | Path, results: Iterable[Result]) -> tuple[dict[str, GpuUse], list[str]]:
    """({step: its `GpuUse`} of those results that are of a GPU, the problems met: a message each).

    logdir: the folder that the results were read from; each trace is in its step's folder.
    """
    on_gpu = [result for result in results if result.device_type == "cuda"]
    if not on_gpu:
        return {}, []
    from common.trace.gpus import mean_of_known  # msgspec and numpy: only where there is a GPU's run
    from common.trace.summary import summarize

    used, problems = {}, []
    for result in on_gpu:
        try:
            gpus = summarize(Path(logdir) / result.step / result.trace).gpus
        except InputError as error:
            problems.append(str(error))
            continue
        used[result.step] = GpuUse(
            mean_of_known(gpu.utilization for gpu in gpus), mean_of_known(gpu.tensor_core_share for gpu in gpus)
        )
    return used, problems


def comparison(compared: Sequence[Ladder]) -> dict[str, Any]:
    """The object that `compare --json` prints, from `ladders`.

    Rows of another ladder than the first have null for `relative`, `relative_low` and `relative_high`: their setup is
    not the baseline's.
    """
    rows = []
    for number, ladder in enumerate(compared):
        for row in ladder.rows:
            relative = row.relative if number == 0 else None
            rows.append(
                row.result.as_json()
                | {
                    "relative": relative and relative.ratio,
                    "relative_low": relative and relative.low,
                    "relative_high": relative and relative.high,
                }
            )
    return {"baseline": compared[0].baseline.step, "rows": rows}
