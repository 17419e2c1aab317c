"""A sweep as a heat map: drawn as SVG or PNG, or plotly's for a notebook."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from studies.sweep.record import Cell, Sweep
from studies.sweep.view import sweep_title
from walkthrough.compare.figures import GREY, check_figure_file, ink_on, save, styled

if TYPE_CHECKING:
    import plotly.graph_objects
    from matplotlib.figure import Figure

SCALE = "cividis"  # as light as it is high, and the same to the colour-blind; plotly and matplotlib both have it


def draw(sweep: Sweep, path: str | Path) -> None:
    """Draw a `Sweep` into `path`, .svg or .png. Raises InputError for another ending."""
    path = Path(path)
    check_figure_file(path)
    save(sweep_figure(sweep), path)


def panels(sweep: Sweep) -> Iterator[tuple[str, list[list[Cell]], list[list[float | None]]]]:
    """For each pinning: its title, the cells [batch size][workers], and their images/s, None for those that failed."""
    for pinned in sweep.pin_memory:
        cells = [[sweep.cell(workers, size, pinned) for workers in sweep.workers] for size in sweep.batch_sizes]
        speeds = [[cell.median if cell.failed is None else None for cell in row] for row in cells]
        yield "pinned memory" if pinned else "pageable memory", cells, speeds


def cell_lines(sweep: Sweep, cell: Cell) -> list[str]:
    """What is written into a cell: images/s, over the best, cores, memory of a worker, as far as they are known."""
    if cell.failed is not None:
        return ["failed"]
    speed = f"{cell.median:.0f}" if cell.median >= 100 else f"{cell.median:.1f}"
    lines = [speed, str(sweep.of_best(cell) or "best")]
    if cell.cores is not None:
        lines.append(f"{cell.cores:.1f} cores")
    if cell.worker_pss is not None:
        lines.append(f"{cell.worker_pss / 1e6:.0f} MB per worker")
    return lines


def plotly_figure(sweep: Sweep) -> "plotly.graph_objects.Figure":
    """plotly's `Figure`: workers across, batch sizes up, images/s as colour and text, a panel per pinning."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    drawn = list(panels(sweep))
    height = 70 + 90 * len(sweep.batch_sizes)
    titles, gap = [title for title, _, _ in drawn], 70 / height / len(drawn)
    figure = make_subplots(len(drawn), 1, subplot_titles=titles, vertical_spacing=gap)
    for panel, (_, cells, speeds) in enumerate(drawn, start=1):
        figure.add_trace(
            go.Heatmap(
                x=[str(workers) for workers in sweep.workers],
                y=[str(size) for size in sweep.batch_sizes],
                z=speeds,
                text=[[_in_cell(sweep, cell) for cell in row] for row in cells],
                texttemplate="%{text}",
                textfont={"size": 12},
                customdata=[[_on_hover(sweep, cell) for cell in row] for row in cells],
                hovertemplate="%{customdata}<extra></extra>",
                hoverongaps=True,
                coloraxis="coloraxis",
                xgap=2,
                ygap=2,
            ),
            panel,
            1,
        )
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell.failed is not None:  # a gap has no text of its own; "4" would be the fifth place, not the name
                    figure.add_annotation(
                        x=x, y=y, text="failed", hovertext=_on_hover(sweep, cell),
                        showarrow=False, row=panel, col=1,
                    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_xaxes(title="workers", row=len(drawn))
    figure.update_yaxes(type="category", title="batch size", showgrid=False)
    return figure.update_layout(
        template="plotly_white",
        coloraxis={"colorscale": SCALE, "colorbar": {"title": "images/s"}},
        height=80 + height * len(drawn),
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
    )


def sweep_figure(sweep: Sweep) -> "Figure":
    """A matplotlib `Figure` of the same heat map."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure  # half a second to import

    drawn = list(panels(sweep))
    across, up = len(sweep.workers), len(sweep.batch_sizes)
    figure = Figure(figsize=(max(6, 1.2 + 1.25 * across), 0.8 + (0.6 + 0.8 * up) * len(drawn)), layout="constrained")
    medians = [cell.median for cell in sweep.measured]
    scale = Normalize(min(medians), max(medians) if max(medians) > min(medians) else min(medians) + 1)
    colours = colormaps[SCALE]
    for axes, (title, cells, speeds) in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn, strict=True):
        numbers = [[float("nan") if speed is None else speed for speed in row] for row in speeds]
        axes.pcolormesh(numbers, norm=scale, cmap=colours, edgecolors="white", linewidth=2)
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                ink = GREY if cell.failed is not None else ink_on(colours(scale(cell.median)))
                speed, *more = cell_lines(sweep, cell)
                bold = "normal" if cell.failed is not None else "bold"
                axes.annotate(speed, (x + 0.5, y + 0.72), ha="center", va="center", color=ink, fontsize=10, weight=bold)
                axes.annotate("\n".join(more), (x + 0.5, y + 0.34), ha="center", va="center", color=ink, fontsize=7)
        styled(axes, f"images/s, and times those of the best with its 95 % interval: {title}")
        axes.set_xticks([x + 0.5 for x in range(across)], [str(workers) for workers in sweep.workers])
        axes.set_yticks([y + 0.5 for y in range(up)], [str(size) for size in sweep.batch_sizes])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_ylabel("batch size", color=GREY)
    figure.axes[-1].set_xlabel("workers", color=GREY)
    figure.suptitle(sweep_title(sweep), fontsize=10, color=GREY)
    return figure


def _in_cell(sweep: Sweep, cell: Cell) -> str:
    if cell.failed is not None:
        return ""
    speed, *more = cell_lines(sweep, cell)
    return "<br>".join([f"<b>{speed}</b>", *more])


def _on_hover(sweep: Sweep, cell: Cell) -> str:
    if cell.failed is not None:
        return html.escape(f"{cell.setting}: failed: {cell.failed}")
    over_best = sweep.of_best(cell)
    lines = [str(cell.setting), f"{cell.median:.1f} images/s ({cell.low:.1f} to {cell.high:.1f})"]
    lines.append(f"{over_best} of the best" if over_best else "the best")
    if cell.cores is not None:
        lines.append(f"{cell.cores:.2f} cores in use")
    for name, size in (
        ("per worker, PSS", cell.worker_pss),
        ("per worker, RSS", cell.worker_rss),
        ("training process, RSS", cell.process_rss),
        ("all together, PSS", cell.total_pss),
    ):
        if size is not None:
            lines.append(f"{name}: {size / 1e6:.0f} MB")
    return "<br>".join(lines)
