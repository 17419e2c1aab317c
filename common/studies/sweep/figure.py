"""A sweep as a heat map: a page with plotly's, which needs nothing else, or a drawn one as SVG or PNG."""

import html
from pathlib import Path

from common.errors import InputError
from common.ladder.figures import GREY, check_figure_file, save, styled
from common.record import write_whole
from common.studies.sweep.view import sweep_title, told_setting, verdict

FORMATS = (".html", ".svg", ".png")
SCALE = "cividis"  # as light as it is high, and the same to the colour-blind; plotly and matplotlib both have it
NO_PLOTLY = "needs plotly, which is not installed: pip install plotly, or name a file that ends in .svg or .png"


def check_plot(path):
    """Raise InputError for a file that `plot` would not draw, or could not here."""
    check_figure_file(path, FORMATS)
    if path.suffix.lower() == ".html":
        _plotly(path)


def plot(sweep, path):
    """Draw a `sweep_record.Sweep` into `path`; its ending says how. Raises InputError; see `check_plot`."""
    path = Path(path)
    check_plot(path)
    if path.suffix.lower() == ".html":
        write_whole(path, sweep_page(sweep))
    else:
        save(sweep_figure(sweep), path)


def panels(sweep):
    """For each pinning: its title, the cells [batch size][workers], and their images/s, None for those that failed."""
    for pinned in sweep.pin_memory:
        cells = [[sweep.cell(workers, size, pinned) for workers in sweep.workers] for size in sweep.batch_sizes]
        speeds = [[cell.median if cell.failed is None else None for cell in row] for row in cells]
        yield "pinned memory" if pinned else "pageable memory", cells, speeds


def cell_lines(cell):
    """What is written into a cell: images/s, cores in use, memory of a worker, as far as they are known."""
    if cell.failed is not None:
        return ["failed"]
    lines = [f"{cell.median:.0f}" if cell.median >= 100 else f"{cell.median:.1f}"]
    if cell.cores is not None:
        lines.append(f"{cell.cores:.1f} cores")
    if cell.worker_pss is not None:
        lines.append(f"{cell.worker_pss / 1e6:.0f} MB a worker")
    return lines


def plotly_figure(sweep):
    """plotly's `Figure`: workers across, batch sizes up, images/s as colour and text, a panel a pinning."""
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
                text=[[_in_cell(cell) for cell in row] for row in cells],
                texttemplate="%{text}",
                textfont={"size": 12},
                customdata=[[_on_hover(cell) for cell in row] for row in cells],
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
                        x=x, y=y, text="failed", hovertext=_on_hover(cell),
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


def sweep_page(sweep):
    """One light HTML page with plotly's heat map, the sentence and the numbers; it loads nothing from elsewhere."""
    title = html.escape(f"Workers, batch size, pinned memory: {sweep_title(sweep)}")
    told = html.escape(verdict(sweep))
    div = plotly_figure(sweep).to_html(
        full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True}
    )
    rows = "\n".join(
        f"<tr><td>{cell.workers}<td>{cell.batch_size}<td>{'yes' if cell.pin_memory else 'no'}{_numbers(cell)}"
        for cell in sweep.cells
    )
    heads = "".join(f'<th scope="col">{name}' for name in HEADS)
    notes = "".join(f"<p>{html.escape(note[0].upper() + note[1:])}." for note in sweep.notes)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
<p>{told}
<div role="img" aria-label="Heat map of images per second. {told} The table below holds its numbers.">
{div}
</div>
{notes}
<table><thead><tr>{heads}</thead>
<tbody>
{rows}
</tbody></table>
</html>
"""


def sweep_figure(sweep):
    """A matplotlib `Figure` of the same heat map."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure  # half a second to import

    drawn = list(panels(sweep))
    across, up = len(sweep.workers), len(sweep.batch_sizes)
    figure = Figure(figsize=(max(6, 1.2 + 1.15 * across), 0.8 + (0.6 + 0.75 * up) * len(drawn)), layout="constrained")
    medians = [cell.median for cell in sweep.measured]
    scale = Normalize(min(medians), max(medians) if max(medians) > min(medians) else min(medians) + 1)
    colours = colormaps[SCALE]
    for axes, (title, cells, speeds) in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn, strict=True):
        numbers = [[float("nan") if speed is None else speed for speed in row] for row in speeds]
        axes.pcolormesh(numbers, norm=scale, cmap=colours, edgecolors="white", linewidth=2)
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                ink = GREY if cell.failed is not None else _ink(colours(scale(cell.median)))
                speed, *more = cell_lines(cell)
                bold = "normal" if cell.failed is not None else "bold"
                axes.annotate(speed, (x + 0.5, y + 0.64), ha="center", va="center", color=ink, fontsize=10, weight=bold)
                axes.annotate("\n".join(more), (x + 0.5, y + 0.3), ha="center", va="center", color=ink, fontsize=7)
        styled(axes, f"images/s, {title}")
        axes.set_xticks([x + 0.5 for x in range(across)], [str(workers) for workers in sweep.workers])
        axes.set_yticks([y + 0.5 for y in range(up)], [str(size) for size in sweep.batch_sizes])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_ylabel("batch size", color=GREY)
    figure.axes[-1].set_xlabel("workers", color=GREY)
    figure.suptitle(sweep_title(sweep), fontsize=10, color=GREY)
    return figure


def _ink(colour):
    """Black or white, whichever reads better on a colour (red, green, blue, alpha in 0..1)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def _in_cell(cell):
    if cell.failed is not None:
        return ""
    speed, *more = cell_lines(cell)
    return "<br>".join([f"<b>{speed}</b>", *more])


def _on_hover(cell):
    if cell.failed is not None:
        return html.escape(f"{told_setting(cell)}: failed: {cell.failed}")
    lines = [told_setting(cell), f"{cell.median:.1f} images/s ({cell.low:.1f} to {cell.high:.1f})"]
    if cell.cores is not None:
        lines.append(f"{cell.cores:.2f} cores in use")
    for name, size in (
        ("a worker, PSS", cell.worker_pss),
        ("a worker, RSS", cell.worker_rss),
        ("training process, RSS", cell.process_rss),
        ("all together, PSS", cell.total_pss),
    ):
        if size is not None:
            lines.append(f"{name}: {size / 1e6:.0f} MB")
    return "<br>".join(lines)


def _numbers(cell):
    if cell.failed is not None:
        return f'<td colspan="{len(HEADS) - 3}">failed: {html.escape(cell.failed)}'
    sizes = (cell.worker_pss, cell.worker_rss, cell.process_rss, cell.total_pss)
    told = ["-" if size is None else f"{size / 1e6:.0f}" for size in sizes]
    cores = "-" if cell.cores is None else f"{cell.cores:.2f}"
    return "".join(f"<td>{each}" for each in (f"{cell.median:.1f}", f"{cell.low:.1f} to {cell.high:.1f}", cores, *told))


def _plotly(path):
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise InputError(f"--plot {path} {NO_PLOTLY}") from error


HEADS = (
    "workers", "batch size", "pinned", "images/s", "range", "cores in use", "worker PSS, MB", "worker RSS, MB",
    "training process RSS, MB", "all PSS, MB",
)  # fmt: skip

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #202124; background: #fff }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
h1 { font-size: 1.3rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin-top: 1rem }
td, th { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8884 }
"""
