"""A ladder as a figure: throughput and memory per step, as SVG, PNG, or a page that needs nothing else."""

import html
import io
from pathlib import Path

from common.errors import InputError
from common.ladder.compare import spread
from common.record import write_whole

FORMATS = (".svg", ".png", ".html")
SPEED, MEMORY = "#0072b2", "#e69f00"  # Okabe and Ito's, told apart by the colour-blind
GREY = "#767676"  # readable on white and on black; in an SVG it becomes the reader's own text colour
ERROR_BARS = {"ecolor": GREY, "capsize": 3}
THEME = "<style>:root{color:#3c4043}@media(prefers-color-scheme:dark){:root{color:#c4c7cc}}</style>"


def plot(ladder, path):
    """Draw a `compare.Ladder` into `path`; its ending says which format. Raises InputError for another ending."""
    path = Path(path)
    kind = path.suffix.lower()
    check_figure_file(path, FORMATS)
    figure = ladder_figure(ladder, titled=kind != ".html")
    if kind == ".html":
        write_whole(path, _page(ladder, svg_text(figure, alone=False)))
    else:
        save(figure, path)


def check_figure_file(path, formats=(".svg", ".png")):
    """Raise InputError for a file that cannot be drawn: its ending is none of `formats`, or there is no such folder."""
    if path.suffix.lower() not in formats:
        raise InputError(f"--plot {path}: the name must end in {', '.join(formats[:-1])} or {formats[-1]}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")


def save(figure, path):
    """Write a matplotlib figure to `path`, whole or not at all: as PNG, or by any other ending as SVG."""
    if path.suffix.lower() == ".png":
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150)
        write_whole(path, image.getvalue())
    else:
        write_whole(path, svg_text(figure))


def svg_text(figure, alone=True):
    """A matplotlib figure as SVG, the same each time; its grey follows the reader's light or dark theme.

    alone: as a file of its own. Otherwise for a page, whose text colour it takes.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "walkthrough", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue().replace(GREY, "currentColor")
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    return svg.replace("<defs>", f"{THEME}\n <defs>", 1) if alone else svg[svg.index("<svg") :]


def styled(axes, title):
    """Give axes their title, and the look of all figures: no box, grey where it is not data."""
    axes.set_title(title, fontsize=10, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def step_label(step):
    """A step's name as figures print it: "04 multiprocess loading"."""
    return step.replace("_", " ")


def relative_labels(ladder):
    """What to write at each step's bar: times the baseline, or "no difference"."""
    told = [f"{row.relative.ratio:.2f}x" if row.relative.differs else "no difference" for row in ladder.rows]
    return ["1.00x", *told[1:]]


def labelled(axes, ends, labels):
    """Write a label behind the end of each horizontal bar."""
    for y, (end, label) in enumerate(zip(ends, labels, strict=True)):
        axes.annotate(label, (end, y), (5, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)


def reach(ranges):
    """How far error bars reach below and above: [below, above], from (low, middle, high) of each."""
    return [list(each) for each in zip(*((middle - low, high - middle) for low, middle, high in ranges), strict=True)]


def ladder_figure(ladder, titled=True):
    """A matplotlib `Figure` of a `compare.Ladder`: images/s with the range of the windows, and peak memory."""
    from matplotlib.figure import Figure  # half a second to import

    results = [row.result for row in ladder.rows]
    names = [step_label(result.step) for result in results]
    at = range(len(results))
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(results)), layout="constrained")
    speed, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])

    medians = [result.samples_per_second.median for result in results]
    low, high = zip(*(spread(result) for result in results), strict=True)
    errors = reach(zip(low, medians, high, strict=True))
    speed.barh(at, medians, color=SPEED, height=0.62, xerr=errors, error_kw=ERROR_BARS)
    labelled(speed, high, relative_labels(ladder))
    styled(speed, "images/s, with the range of the windows")
    speed.set_xlim(0, max(high) * 1.3)
    speed.set_yticks(at, names)
    speed.invert_yaxis()

    sizes = [result.peak_memory_bytes.allocated / 1e6 for result in results]
    memory.barh(at, sizes, color=MEMORY, height=0.62)
    labelled(memory, sizes, [f"{size:,.0f}" for size in sizes])
    styled(memory, "peak memory, MB")
    memory.set_xlim(0, max([*sizes, 1]) * 1.22)
    if titled:
        figure.suptitle(ladder_title(ladder), fontsize=11, color=GREY)
    return figure


def ladder_title(ladder):
    """What a ladder was run with: model, data, image size, device."""
    base = ladder.baseline
    return f"{base.model}, {base.data_label}, {base.image_size} px, on {base.device}"


def _page(ladder, svg):
    """One HTML page with the figure and its numbers as a table."""
    rows = "\n".join(
        f"<tr><td>{html.escape(row.result.step)}<td>{row.result.batch_size}"
        f"<td>{row.result.samples_per_second.median:.1f}<td>{spread(row.result)[0]:.1f} to {spread(row.result)[1]:.1f}"
        f"<td>{row.relative if row.result is not ladder.baseline else '1.00x'}"
        f"<td>{row.result.step_ms.median:.1f}<td>{row.result.peak_memory_bytes.allocated / 1e6:.0f}"
        f"<td>{html.escape('; '.join(row.result.notes))}"
        for row in ladder.rows
    )
    title = html.escape(ladder_title(ladder))
    heads = "".join(
        f"<th>{name}"
        for name in ("step", "batch", "images/s", "windows", "vs baseline (range)", "step ms", "memory MB", "notes")
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
{svg}
<table><thead><tr>{heads}</thead>
<tbody>
{rows}
</tbody></table>
</html>
"""


STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
svg { width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
td, th { padding: .3rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #8884 }
td:nth-child(-n+7) { white-space: nowrap }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
"""
