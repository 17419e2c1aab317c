"""Rows of a lab's table as a heat map: drawn as SVG, or plotly's as an HTML file of its own."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.compare.figures import GREY, ink_on, save, styled
from walkthrough.compare.study import Row
from walkthrough.compare.table import text as cell_text
from walkthrough.results import result

if TYPE_CHECKING:
    import plotly.graph_objects
    from matplotlib.figure import Figure

SCALE = "cividis"  # as light as it is high, and the same to the colour-blind; plotly and matplotlib both have it


@dataclass(frozen=True)
class HeatMap:
    """A row for each cell; as they are, the columns are those of a study's table `heat_map`.

    x, y: columns whose values are its place. value: its column of means with intervals, or None. note: a column of
    texts that are written below the value.
    """

    rows: Sequence[Row]
    x: str = "learning rate"
    y: str = "batch size"
    value: str = "accuracy %"
    note: str = "failures"

    def places(self, axis: str) -> list[Any]:
        """The values along an axis, in order."""
        return sorted({row[axis] for row in self.rows})

    def cell(self, x: Any, y: Any) -> Row:
        """The row of that place; {} where there is none."""
        return next((row for row in self.rows if (row[self.x], row[self.y]) == (x, y)), {})

    def mean(self, cell: Row) -> float | None:
        """The mean of a cell; None where it has none."""
        value = cell.get(self.value)
        return value["mean"] if value else None

    def grid(self) -> list[list[Row]]:
        """Cells [y][x]."""
        return [[self.cell(x, y) for x in self.places(self.x)] for y in self.places(self.y)]


def drawn(of: HeatMap) -> "Figure":
    """A matplotlib `Figure`."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    across, up, grid = of.places(of.x), of.places(of.y), of.grid()
    means = [mean for row in grid for cell in row if (mean := of.mean(cell)) is not None]
    low = sorted(means)[len(means) // 4]  # where nothing is learned colours need not differ
    scale, colours = Normalize(low, max(max(means), low + 1e-9), clip=True), colormaps[SCALE]
    figure = Figure(figsize=(max(6, 1.2 + 1.0 * len(across)), 1.2 + 0.6 * len(up)), layout="constrained")
    axes = figure.subplots()
    numbers = [[float("nan") if (mean := of.mean(cell)) is None else mean for cell in row] for row in grid]
    axes.pcolormesh(numbers, norm=scale, cmap=colours, edgecolors="white", linewidth=2)
    for y, row in enumerate(grid):
        for x, cell in enumerate(row):
            mean = of.mean(cell)
            ink = GREY if mean is None else ink_on(colours(scale(mean)))
            text = "-" if mean is None else f"{mean:.1f}"
            axes.annotate(text, (x + 0.5, y + 0.6), ha="center", va="center", color=ink, fontsize=10)
            axes.annotate(cell.get(of.note, ""), (x + 0.5, y + 0.27), ha="center", va="center", color=ink, fontsize=7)
    styled(axes, of.value)
    axes.set_xticks([place + 0.5 for place in range(len(across))], [cell_text(value) for value in across])
    axes.set_yticks([place + 0.5 for place in range(len(up))], [cell_text(value) for value in up])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(of.x, color=GREY)
    axes.set_ylabel(of.y, color=GREY)
    return figure


def interactive(of: HeatMap) -> "plotly.graph_objects.Figure":
    """plotly's `Figure` of the same, with each cell's interval on hover."""
    import plotly.graph_objects as go

    grid = of.grid()
    texts = [[_hover(of, cell) for cell in row] for row in grid]
    figure = go.Figure(
        go.Heatmap(
            x=[cell_text(value) for value in of.places(of.x)],
            y=[cell_text(value) for value in of.places(of.y)],
            z=[[of.mean(cell) for cell in row] for row in grid],
            customdata=texts,
            texttemplate="%{z:.1f}",
            hovertemplate="%{customdata}<extra></extra>",
            colorscale=SCALE,
            colorbar={"title": of.value},
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(type="category", title=of.x)
    figure.update_yaxes(type="category", title=of.y)
    return figure.update_layout(template="plotly_white")


def _hover(of: HeatMap, cell: Row) -> str:
    lines = [f"{name}: {cell_text(value)}" for name, value in cell.items() if value != ""]
    return "<br>".join(html.escape(line) for line in lines)


def write(of: HeatMap, folder: Path) -> None:
    """Write heat_map.html and heat_map.svg; a line of text where plotly or matplotlib is not installed."""
    try:
        write_html(of, folder / "heat_map.html")
        save(drawn(of), folder / "heat_map.svg")
    except ModuleNotFoundError as error:
        print(f"  no figure of the heat map: {error.name} is not installed")


def write_html(of: HeatMap, path: Path) -> None:
    """Write plotly's figure as a file that needs no network. Raises InputError where it cannot be written."""
    result.write_whole(path, interactive(of).to_html(include_plotlyjs=True, full_html=True))
