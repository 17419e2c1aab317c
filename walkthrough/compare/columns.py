"""The columns of a ladder as plain text: `ladder` prints them in the terminal, `markdown` puts them on pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from walkthrough.compare import published
from walkthrough.compare.roofs import Roofs as Limit
from walkthrough.compare.rounds import GpuUse, Ladder, Row, half_spread, is_first_step, spread
from walkthrough.results.result import NotRun
from walkthrough.terminal import share_text

# By name, see `columns`. A terminal that is too narrow for all groups prints a table for each group, or several.
GAINS = ("vs step before", "vs baseline")
SPEED = ("images/s", *GAINS)
LIMIT = ("% of limit",)
ROOFS = ("% of arithmetic peak", "% of memory roof")
COST = ("batch", "step ms", "window ±", "memory MB", "batch MB")
TRACED = ("GPU busy", "Tensor Cores")
ORIGINAL = ("original",)
# A narrow page cuts off what is last.
PAGE = ("batch", *SPEED, "windows", "rounds", "step ms", "memory MB", *LIMIT)


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


def beside_original(ladder: Ladder) -> bool:
    """True for a ladder that is shown next to the published one: of its model, from its baseline on."""
    return is_first_step(ladder.baseline) and ladder.baseline.model == published.MODEL


def columns(
    ladder: Ladder,
    used: Mapping[str, GpuUse] | None = None,
    limit: Limit | None = None,
    missing: Sequence[NotRun] = (),
) -> dict[str, Column]:
    """The columns by name, "% of limit" only with a limit, `ROOFS` where it counted what they need.

    Their cells are in the order of `rows_of`.

    used: {step: `GpuUse`} from `rounds.gpu_use`; steps without have "-". limit: the result of `limit` for this
    ladder's setup. missing: steps that were not run.
    """
    rows, base, used = rows_of(ladder, missing), ladder.baseline, used or {}

    def column(header: str, cell: Callable[[Row], str], not_run: str = "-") -> Column:
        return Column(header, [not_run if isinstance(row, NotRun) else cell(row) for row in rows])

    table = {
        "batch": column("batch", lambda row: str(row.result.batch_size)),
        "batch MB": column("batch\nMB", lambda row: f"{row.result.batch_bytes / 1e6:.1f}"),
        "memory MB": column("memory\nMB", lambda row: f"{row.result.peak_memory_bytes.allocated / 1e6:.0f}"),
        "step ms": column("step\nms", lambda row: f"{row.result.step_ms.median:.1f}"),
        "images/s": column("images/s", lambda row: f"{row.result.samples_per_second.median:.1f}", "not run"),
        "window ±": column("window\n±", lambda row: f"{half_spread(row.result):.0%}"),
        "windows": column("windows", _windows),
        "rounds": column("rounds", lambda row: str(len(row.rounds))),
        "GPU busy": column("GPU\nbusy", lambda row: _share(used.get(step_of(row)), "utilization")),
        "Tensor Cores": column(
            matrix_units(used).replace(" ", "\n"), lambda row: _share(used.get(step_of(row)), "tensor_cores")
        ),
        "vs step before": column("vs step\nbefore", lambda row: row.needs if row.gain is None else str(row.gain)),
        "vs baseline": column("vs\nbaseline", lambda row: _relative(row, row.result is base)),
        "original": column("original", _published),
    }
    if limit:
        table["% of limit"] = column("% of\nlimit", lambda row: f"{limit.share_of_limit(row.result):.0%}")
        shares = {row.result.step: [*limit.shares(row.result).values()] for row in ladder.rows}
        if any(share is not None for both in shares.values() for share in both):
            for at, name in enumerate(ROOFS):
                words = name.rsplit(" ", 1)
                table[name] = column("\n".join(words), lambda row, at=at: share_text(shares[step_of(row)][at]))
    return table


def _relative(row: Row, is_base: bool) -> str:
    return "1.00x" if is_base else str(row.relative) if row.acts else ""


def matrix_units(used: Mapping[str, GpuUse]) -> str:
    """What the GPU's maker calls Tensor Cores."""
    return next((use.matrix_units for use in used.values()), "Tensor Cores")


def _windows(row: Row) -> str:
    low, high = spread(row.result)
    return f"{low:.1f} to {high:.1f}"


def _published(row: Row) -> str:
    """As published, relative to the original's own baseline."""
    known = published.RELATIVE.get(row.result.step)
    return f"{known:.2f}x" if known else ""


def _share(use: GpuUse | None, name: str) -> str:
    return share_text(use and getattr(use, name), 0)
