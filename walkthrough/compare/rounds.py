"""Runs side by side: how much faster each step is than the baseline and than the step before."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from walkthrough.compare.statistics import Ratio, Rounds, ratio
from walkthrough.results.errors import InputError, printable
from walkthrough.results.result import (
    FILE,
    NO_KERNELS,
    GpuClocks,
    NotRun,
    PeakMemory,
    Result,
    Setup,
    StepTime,
    Throughput,
    read_result,
    read_results,
    run_files,
    steps_not_run,
)

Runs = Mapping[str, Rounds]  # {step: its windows, round by round}
PAUSE = 3600.0  # seconds between the starts of two steps: after a longer one they are not of one tour


@dataclass(frozen=True)
class GpuUse:
    """What a run's trace shows of its GPUs, the mean over them, as shares 0..1; None where it does not show it.

    utilization: see `kernels.Gpu`. tensor_cores: of the kernel time. Both from the traced steps, which the profiler
    slows: they show how the time is spent, not how much of it. matrix_units: what the GPU's maker calls Tensor Cores.
    """

    utilization: float | None
    tensor_cores: float | None
    matrix_units: str = "Tensor Cores"


@dataclass(frozen=True)
class Row:
    """One step in a ladder: how fast it is against the baseline, and against the last row before it that acts.

    rounds: its windows, round by round, that both ratios are from. gain: None for the first row and for one that does
    not act: it is the program of the row before it, so that a ratio would be noise.
    """

    result: Result
    rounds: Rounds
    relative: Ratio
    gain: Ratio | None

    @property
    def acts(self) -> bool:
        """Whether the step's change has an effect on this device."""
        return self.result.acts

    @property
    def needs(self) -> str:
        """The text in place of ratios: "needs a GPU"; "" for a row that acts."""
        return "" if self.acts else f"needs {printable(self.result.needs, 40)}"


@dataclass(frozen=True)
class Comparison:
    """Runs of one `Result.setup`, in the order of their names; the first is the baseline.

    missing: steps that were not run, and why.
    """

    rows: list[Row]
    missing: Sequence[NotRun] = ()

    @property
    def baseline(self) -> Result:
        return self.rows[0].result

    @property
    def acting(self) -> list[Row]:
        """The rows whose ratios say something: the baseline, and those that act."""
        return [row for row in self.rows if row.acts or row is self.rows[0]]

    def before(self, row: Row) -> Row | None:
        """The row that `row.gain` is against: the last one before it that acts. None for the first row."""
        earlier = Comparison(list(takewhile(lambda other: other is not row, self.rows)))
        return earlier.acting[-1] if earlier.rows else None


def spread(result: Result) -> tuple[float, float]:
    """Slowest and fastest timed window, images/s, without a tenth of the windows at either end.

    Of fewer than ten that is all of them; of the ten of a run, without the slowest and the fastest.
    """
    windows = sorted(result.samples_per_second.windows)
    left_out = len(windows) // 10
    return windows[left_out], windows[-1 - left_out]


def half_spread(result: Result) -> float:
    """Half the `spread`'s length over the median: 0.1 for "±10%"."""
    low, high = spread(result)
    return (high - low) / 2 / result.samples_per_second.median


def is_first_step(result: Result) -> bool:
    """True for a run of step 00, the baseline that the course is about."""
    return result.step.startswith("00_")


def comparisons(logdir: str | Path, steps: Collection[str] | None = None) -> tuple[list[Comparison], list[str]]:
    """(What the runs of a folder give, see `ladders`; the problems met: a message for what is broken and left out).

    steps: only of these. The first has the steps that were not run. Raises InputError where nothing can be compared.
    """
    logdir = Path(logdir)
    results, problems = read_results(logdir)
    if problems and not results:
        raise InputError(problems[0] + (f" ({len(problems) - 1} more are broken)" if problems[1:] else ""))
    if not results:
        below = sorted({file.parent.parent.name for file in logdir.glob(f"*/*/{FILE}")})
        fix = f"its folders have: {', '.join(below[:6])}" if below else "run `make tour`"
        raise InputError(f"no results in {logdir}: it should have a folder per step with {FILE} in it; {fix}")
    results = [result for result in results if steps is None or result.step in steps]
    runs: dict[str, Rounds] = {}
    for result in results:
        try:
            runs[result.step] = rounds_in(run_files(logdir / result.step))
        except InputError as error:
            problems.append(f"the rounds of {result.step}, so it is compared by the windows of its {FILE}: {error}")
    first, *others = ladders(results, runs)
    try:
        first = replace(first, missing=steps_not_run(logdir))
    except InputError as error:
        problems.append(str(error))
    return [first, *others], problems


def whole_comparison(folder: str | Path) -> Comparison:
    """The first of `comparisons`, of a folder in which nothing may be broken. Raises InputError."""
    compared, problems = comparisons(folder)
    if problems:
        raise InputError(problems[0])
    return compared[0]


def ladders(results: Iterable[Result], runs: Runs | None = None) -> list[Comparison]:
    """Results sorted into comparisons by their setups; the one with the most steps first, among equals the newest.

    runs: see `rounds_of`. Raises InputError where there is nothing to compare.
    """
    groups = by_setup(results)
    if not groups:
        raise InputError("no results to compare")
    return [ladder(group, runs or {}) for group in groups]


def by_setup(results: Iterable[Result]) -> list[list[Result]]:
    """The results of each ladder, in the order of `ladders`."""
    groups: dict[Setup, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.step):
        groups.setdefault(result.setup, []).append(result)
    return sorted(groups.values(), key=lambda group: (len(group), max(r.started for r in group)), reverse=True)


def ladder(group: list[Result], runs: Runs) -> Comparison:
    """The ladder of one of the groups of `by_setup`. runs: see `rounds_of`."""
    windows = [rounds_of(result, runs.get(result.step, {})) for result in group]
    rows: list[Row] = []
    for result, rounds in zip(group, windows, strict=True):
        row = Row(result, rounds, ratio(rounds, windows[0]), None)
        before = Comparison([*rows, row]).before(row) if row.acts else None
        rows.append(row if before is None else replace(row, gain=ratio(rounds, before.rounds)))
    return Comparison(rows)


def rounds_compared(ladder: Comparison) -> tuple[int, int]:
    """The fewest and the most rounds that a ratio of the ladder is from: 1 for one from the windows of two runs.

    Without the rows that do not act, whose ratios are not shown.
    """
    rounds = [ratio.rounds for row in ladder.acting[1:] for ratio in (row.relative, row.gain) if ratio]
    return min(rounds, default=1), max(rounds, default=1)


def ran_apart(ladder: Comparison) -> list[Row]:
    """The rows of one run that is of another time than its neighbours': out of the ladder's order, or after a `PAUSE`.

    Of those that act. So is a step that was run again by itself since the tour, unless it is the last. In order are as
    many steps as possible.
    """
    starts = [_seconds(row.result.started) for row in ladder.rows]
    in_order: list[list[int]] = []  # the longest that ends with each row
    for at, start in enumerate(starts):
        before = [rows for rows in in_order if not starts[rows[-1]] > start]
        in_order.append([*max(before, key=len, default=[]), at])
    most, apart = max(in_order, key=len), []
    for at, row in enumerate(ladder.rows):
        is_paused = at > 0 and starts[at] - starts[at - 1] > PAUSE
        if row.acts and len(row.rounds) == 1 and (is_paused or at not in most):
            apart.append(row)
    return apart


def _seconds(started: str) -> float:
    """A `Result.started` in seconds; not a number for a text that is no time, which is before and after nothing."""
    try:
        return datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def rounds_of(result: Result, kept: Rounds) -> Rounds:
    """The windows of a result, round by round: those kept in its folder, if it is from them, else its own as round 0.

    It is not where its step was run again since, by itself.
    """
    windows = result.samples_per_second.windows
    known = {speed for speeds in kept.values() for speed in speeds}
    return kept if known.issuperset(windows) else {0: windows}


def rounds_in(files: Iterable[Path], no_links: bool = False) -> Rounds:
    """The windows in the files `runs/N.json` of a step's folder, by N. Raises InputError for a broken one.

    no_links: see `result.read_json`.
    """
    return {int(file.stem): read_result(file, no_links).samples_per_second.windows for file in files}


def gpu_use(logdir: str | Path, compared: Iterable[Comparison]) -> tuple[dict[str, GpuUse], list[str]]:
    """({step: its `GpuUse`} of those runs that are of a GPU, the problems met: a message each).

    logdir: the folder that they were read from; each trace is in its step's folder.
    """
    results = (row.result for comparison in compared for row in comparison.rows)
    on_gpu = [result for result in results if result.device_type == "cuda"]
    if not on_gpu:
        return {}, []
    from walkthrough.trace.analysis import analyze
    from walkthrough.trace.kernels import mean_of_known, unit_name

    used, problems = {}, []
    for result in on_gpu:
        try:
            analysis = analyze(Path(logdir) / result.step / result.trace)
        except InputError as error:
            problems.append(str(error))
            continue
        used[result.step] = GpuUse(
            mean_of_known(gpu.utilization for gpu in analysis.gpus),
            mean_of_known(gpu.tensor_core_share for gpu in analysis.gpus),
            unit_name(analysis.trace),
        )
    return used, problems


def traced(results: Sequence[Result]) -> Result:
    """The one of a step's runs, in order, whose trace and TensorBoard events are kept.

    The first whose trace holds what it should; the first of all where none does.
    """
    return next((result for result in results if not result.lacks_kernels), results[0])


def merged(results: Sequence[Result]) -> Result:
    """One result out of several runs of the same step: how a recorded step is summed up.

    All windows of all runs, in order, and their median; of times, peaks and bytes the median over the runs; a GPU's
    clocks as `merged_clocks` combines them; every note once, of a trace only that of the `traced` run. The rest
    is the first run's.
    """
    first, untrue = results[0], () if traced(results).lacks_kernels else (NO_KERNELS,)

    def median(pick: Callable[[Result], float | None]) -> float | None:
        values = [value for value in map(pick, results) if value is not None]
        return statistics.median(values) if values else None

    def whole(pick: Callable[[Result], int | None]) -> Any:
        value = median(pick)
        return None if value is None else int(value)

    windows = [speed for result in results for speed in result.samples_per_second.windows]
    tokens = [speed for result in results if result.tokens_per_second for speed in result.tokens_per_second.windows]
    return replace(
        first,
        samples_per_second=Throughput(statistics.median(windows), windows),
        tokens_per_second=Throughput(statistics.median(tokens), tokens) if tokens else None,
        first_step_seconds=median(lambda r: r.first_step_seconds),
        step_ms=StepTime(*(statistics.median(getattr(r.step_ms, f.name) for r in results) for f in fields(StepTime))),
        peak_memory_bytes=PeakMemory(
            whole(lambda r: r.peak_memory_bytes.allocated), whole(lambda r: r.peak_memory_bytes.reserved)
        ),
        batch_bytes=whole(lambda r: r.batch_bytes),
        gpu_clocks=merged_clocks([result.gpu_clocks for result in results]),
        notes=list(dict.fromkeys(note for result in results for note in result.notes if note not in untrue)),
    )


def merged_clocks(runs: Sequence[GpuClocks | None]) -> GpuClocks | None:
    """The `GpuClocks` of several runs: medians over the runs, of clocks the lowest and the limit's highest.

    The highest temperature, every reason once, all samples. None where any run lacks them, and so for each value.
    """
    known = [clocks for clocks in runs if clocks]
    if not known or len(known) < len(runs):
        return None

    def over(summary: Callable[[Sequence[float]], float], pick: Callable[[GpuClocks], float | None]) -> float | None:
        values = [value for value in map(pick, known) if value is not None]
        return summary(values) if len(values) == len(known) else None

    return GpuClocks(
        samples=sum(clocks.samples for clocks in known),
        sm_mhz=over(statistics.median, lambda c: c.sm_mhz),
        sm_mhz_lowest=over(min, lambda c: c.sm_mhz_lowest),
        sm_mhz_limit=over(max, lambda c: c.sm_mhz_limit),
        power_watts=over(statistics.median, lambda c: c.power_watts),
        power_limit_watts=over(statistics.median, lambda c: c.power_limit_watts),
        temperature=over(max, lambda c: c.temperature),
        slowed_by=list(dict.fromkeys(reason for clocks in known for reason in clocks.slowed_by)),
    )
