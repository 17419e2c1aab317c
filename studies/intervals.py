"""How a `statistics.Ratio` is shown in a study: always with its interval, grey without a measurable difference."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from walkthrough.compare.figures import UNRESOLVED, reach
from walkthrough.compare.statistics import Ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 2.0  # times: an interval that reaches farther from its point leaves the figure


def ratio_cell(ratio: Ratio | None) -> str:
    """A table's cell, in rich's markup: "1.39x (1.31-1.48)", dim without a measurable difference, "-" for None."""
    if ratio is None:
        return "-"
    return str(ratio) if ratio.resolved else f"[dim]{ratio}[/]"


def draw_ratios(
    axes: "Axes", rows: Sequence[tuple[float, Ratio]], *, colour: str, marker: str = "o", label: str
) -> None:
    """Draw points with their intervals, each at its height: in `colour`, in grey without a measurable one."""
    for resolved in (True, False):
        drawn = [(height, ratio) for height, ratio in rows if ratio.resolved == resolved]
        if not drawn:
            continue
        shown = colour if resolved else UNRESOLVED
        axes.errorbar(
            [ratio.ratio for _, ratio in drawn], [height for height, _ in drawn],
            xerr=reach((ratio.low, ratio.ratio, ratio.high) for _, ratio in drawn),
            fmt=marker, color=shown, ecolor=shown, capsize=3, markersize=7,
            label=label if resolved else f"{label}, no measurable difference",
        )  # fmt: skip


def shown_range(ratios: Iterable[Ratio]) -> tuple[float, float]:
    """(low, high) of an axis for ratios and 1: their intervals, as far as these are within `MOST` of their points."""
    ratios = list(ratios)
    low = min([0.9, *(max(ratio.low, ratio.ratio / MOST) for ratio in ratios)])
    return low, max([1.2, *(min(ratio.high, ratio.ratio * MOST) for ratio in ratios)])
