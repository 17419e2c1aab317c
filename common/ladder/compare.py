"""Runs side by side: how much faster each step is than the baseline, and what the machine's noise allows to say."""

from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import InputError
from common.record import Result, read_runs
from common.trace.gpus import mean_of_known


@dataclass(frozen=True)
class Ratio:
    """How many times faster one run is than another: ratio of the median windows, and its range.

    low: the lower end of the one's `spread` over the upper end of the other's; high: the other way round. So the
    range is what the windows themselves allow, with no assumption about how they are distributed.
    """

    ratio: float
    low: float
    high: float

    def __str__(self):
        """For people: "1.39x (1.31-1.48)", or "no difference" where the windows do not tell the runs apart."""
        return f"{self.ratio:.2f}x ({self.low:.2f}-{self.high:.2f})" if self.differs else "no difference"

    @property
    def differs(self):
        """False where the range holds 1: then the runs cannot be told apart."""
        return not self.low <= 1 <= self.high


@dataclass(frozen=True)
class GpuUse:
    """What a run's trace tells of its GPUs, the mean over them, as shares 0..1; None where it cannot tell.

    utilization: see `trace.gpus.Gpu`. tensor_cores: of the kernel time. Both from the traced steps, which the profiler
    slows: they say how the time is spent, not how much of it.
    """

    utilization: float | None
    tensor_cores: float | None


@dataclass(frozen=True)
class RunSpread:
    """A recorded step run by run, images/s: the mean of the runs' medians, the slowest and the fastest, how many.

    Windows of one run share that run's luck; runs do not, so this is the spread that another run would meet.
    """

    mean: float
    low: float
    high: float
    count: int

    def __str__(self):
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
    """Runs that may be compared (see `Result.ladder`), in the order of their names; the first is the baseline."""

    rows: list[Row]

    @property
    def baseline(self):
        return self.rows[0].result


def ratio(faster, slower):
    """The `Ratio` of two results' throughputs, `faster` over `slower`."""
    if faster is slower:
        return Ratio(1.0, 1.0, 1.0)
    (low, high), (other_low, other_high) = spread(faster), spread(slower)
    return Ratio(
        faster.samples_per_second.median / slower.samples_per_second.median, low / other_high, high / other_low
    )


def spread(result):
    """Slowest and fastest timed window, images/s, once a tenth of the windows is left out at either end.

    Of the five windows of one run that is all of them; of a recorded step's many, the odd hiccup does not count.
    """
    windows = sorted(result.samples_per_second.windows)
    cut = len(windows) // 10
    return windows[cut], windows[-1 - cut]


def is_first_step(result):
    """True for a run of step 00, the baseline that the course is about."""
    return result.step.startswith("00_")


def ladders(results):
    """Sort results into ladders; the one with the most steps first, among equals the newest.

    Raises InputError where there is nothing to compare.
    """
    if not results:
        raise InputError("no results to compare")
    groups = {}
    for result in sorted(results, key=lambda result: result.step):
        groups.setdefault(result.ladder, []).append(result)
    ordered = sorted(groups.values(), key=lambda group: (len(group), max(r.started for r in group)), reverse=True)
    return [_ladder(group) for group in ordered]


def _ladder(group):
    before = [None, *group]
    return Ladder(
        [
            Row(result, ratio(result, group[0]), None if previous is None else ratio(result, previous))
            for result, previous in zip(group, before, strict=False)
        ]
    )


def recorded_runs(logdir, results):
    """The `RunSpread` of those results that a record keeps run by run, in `<step>/runs/N.json`: {step: …}."""
    found = {}
    for result in results:
        medians = [run.samples_per_second.median for run in read_runs(Path(logdir) / result.step)]
        if medians:
            found[result.step] = RunSpread(sum(medians) / len(medians), min(medians), max(medians), len(medians))
    return found


def gpu_use(logdir, results):
    """The `GpuUse` of the runs on a GPU among `results`, by step, and the problems met: ({step: …}, messages).

    logdir: the folder that the results were read from; each trace lies in its step's folder.
    """
    from common.trace.summary import summarize  # msgspec and numpy: not for those who have no GPU's run to show

    used, problems = {}, []
    for result in results:
        if result.device_type != "cuda":
            continue
        try:
            gpus = summarize(Path(logdir) / result.step / result.trace).gpus
        except InputError as error:
            problems.append(str(error))
            continue
        used[result.step] = GpuUse(
            mean_of_known(gpu.utilization for gpu in gpus), mean_of_known(gpu.tensor_core_share for gpu in gpus)
        )
    return used, problems


def comparison(found):
    """The object that `compare --json` prints, from `ladders`.

    Rows of another ladder than the first have null for `relative`, `relative_low` and `relative_high`: their device,
    data, model or image size is not the baseline's.
    """
    rows = []
    for number, ladder in enumerate(found):
        for row in ladder.rows:
            relative = row.relative if number == 0 else None
            rows.append(
                asdict(row.result)
                | {
                    "relative": relative and relative.ratio,
                    "relative_low": relative and relative.low,
                    "relative_high": relative and relative.high,
                }
            )
    return {"baseline": found[0].baseline.step, "rows": rows}
