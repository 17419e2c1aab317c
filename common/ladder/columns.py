"""The columns of a ladder's table as plain text: `table` prints them in the terminal, `markdown` puts them on pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.ladder import published
from common.ladder.compare import GpuUse, Ladder, Row, RunSpread, half_spread, is_first_step, spread
from common.record import Result, Setup
from common.run.not_run import NotRun

# By name, see `columns`. A terminal that is too narrow for all groups prints a table for each group, or several.
MEASURED = ("batch", "batch MB", "memory MB", "step ms", "images/s")
RUNS = ("mean of runs", "n")
TRACED = ("GPU busy", "Tensor Cores")
COMPARED = ("vs step before", "vs baseline", "original")
LIMIT = ("% of limit",)
GAINS = ("vs step before", "vs baseline")
# A narrow page cuts off what is last.
PAGE = ("batch", "median images/s", *GAINS, "windows", *RUNS, "step ms", "memory MB", *LIMIT)


class Speed(Protocol):
    """How the model was trained: `kind` is "compiled", say."""

    @property
    def kind(self) -> str: ...


class Limit(Protocol):
    """What this room needs of a `studies.limit` result; see there."""

    @property
    def setup(self) -> Setup: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def started(self) -> str: ...
    @property
    def quick(self) -> bool: ...
    @property
    def fastest(self) -> Speed: ...

    def share_of_limit(self, result: Result, /) -> float: ...


@dataclass(frozen=True)
class Column:
    """header: one or two lines. cells: one per row."""

    header: str
    cells: list[str]


def rows_of(ladder: Ladder, missing: Sequence[NotRun] = ()) -> list[Row | NotRun]:
    """The rows of a ladder with the steps that were not run in their places among them."""
    return sorted([*ladder.rows, *missing], key=step_of)


def step_of(row: Row | NotRun) -> str:
    return row.step if isinstance(row, NotRun) else row.result.step


def columns(
    ladder: Ladder,
    runs: Mapping[str, RunSpread] | None = None,
    used: Mapping[str, GpuUse] | None = None,
    limit: Limit | None = None,
    missing: Sequence[NotRun] = (),
) -> dict[str, Column]:
    """The columns by name, "% of limit" only with a limit; their cells are in the order of `rows_of`.

    runs: {step: `RunSpread`} from `compare.recorded_runs`. used: {step: `GpuUse`} from `compare.gpu_use`. Steps
    without have "-". limit: the result of `limit` for this ladder's setup. missing: steps that were not run.
    """
    rows, base, runs, used = rows_of(ladder, missing), ladder.baseline, runs or {}, used or {}

    def column(header: str, cell: Callable[[Row], str], not_run: str = "-") -> Column:
        return Column(header, [not_run if isinstance(row, NotRun) else cell(row) for row in rows])

    table = {
        "batch": column("batch", lambda row: str(row.result.batch_size)),
        "batch MB": column("batch\nMB", lambda row: f"{row.result.batch_bytes / 1e6:.1f}"),
        "memory MB": column("memory\nMB", lambda row: f"{row.result.peak_memory_bytes.allocated / 1e6:.0f}"),
        "step ms": column("step\nms", lambda row: f"{row.result.step_ms.median:.1f}"),
        "images/s": column("images/s", lambda row: f"{_median(row)} ±{half_spread(row.result):.0%}", "not run"),
        "median images/s": column("images/s", _median, "not run"),
        "windows": column("windows", _windows),
        "mean of runs": column("mean of\nruns", lambda row: str(runs.get(step_of(row), "-"))),
        "n": column("n", lambda row: str(runs[step_of(row)].count) if step_of(row) in runs else "-"),
        "GPU busy": column("GPU\nbusy", lambda row: _share(used.get(step_of(row)), "utilization")),
        "Tensor Cores": column("Tensor\nCores", lambda row: _share(used.get(step_of(row)), "tensor_cores")),
        "vs step before": column("vs step\nbefore", lambda row: "" if row.gain is None else str(row.gain)),
        "vs baseline": column("vs\nbaseline", lambda row: "1.00x" if row.result is base else str(row.relative)),
        "original": column("original", lambda row: _published(row, base)),
    }
    if limit:
        table["% of limit"] = column("% of\nlimit", lambda row: f"{limit.share_of_limit(row.result):.0%}")
    return table


def _median(row: Row) -> str:
    return f"{row.result.samples_per_second.median:.1f}"


def _windows(row: Row) -> str:
    low, high = spread(row.result)
    return f"{low:.1f} to {high:.1f}"


def _published(row: Row, base: Result) -> str:
    """As published, relative to the original's own baseline: beside our step 00 only."""
    known = row.result.step in published.RELATIVE and is_first_step(base)
    return f"{published.RELATIVE[row.result.step]:.2f}x" if known else ""


def _share(use: GpuUse | None, name: str) -> str:
    share = use and getattr(use, name)
    return "-" if share is None else f"{share:.0%}"
