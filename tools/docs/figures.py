"""The figures of the pages, from recorded runs and from tables: what draws each, and its alternative text.

Colours are Okabe and Ito's, which the colour-blind can distinguish; what is not data follows the reader's light or dark
theme.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from studies import ablation, limit, sweep
from tools.docs.gpu_memory import Fit
from tools.docs.recorded import Recorded
from walkthrough.compare.figures import (
    GREY,
    SPEED,
    UNRESOLVED,
    heat_map_figure,
    in_style,
    ink_on,
    interval_label,
    ladder_figure,
    ladder_title,
    reach,
    short,
    step_label,
)
from walkthrough.compare.study import Row
from walkthrough.compare.table import text as cell_text
from walkthrough.memory.tracker import KINDS

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#999999")
ROLES = {
    "kernel": "#009e73",
    "memcpy": "#e69f00",
    "memset": "#f0e442",
    "communication": "#cc79a7",
    "runtime": "#56b4e9",
    "dataloader": "#d55e00",
    "cpu_exec": "#0072b2",
    "other": "#999999",
}
MEMORY = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#cc79a7", "#009e73", "#e69f00", "#999999"), strict=True))
BOUND = "#d55e00"

Drawing = tuple[Callable[[], Figure], str]  # draws a figure, and its alternative text
Parts = Mapping[str, Mapping[str, float]]  # {bar: {part: value}}


def ladder(recorded: Recorded) -> Drawing:
    """What each step gains: times the baseline's images/s, and times those of the step before, with the intervals."""
    rows = recorded.ladder.rows
    base = rows[0].result.samples_per_second.median
    steps = "; ".join(
        f"{step_label(row.result.step)} "
        + (f"{row.relative} the baseline" if row.gain else row.needs)
        + (f", {short(row.gain)} the step before" if row.gain and row.gain.resolved else "")
        for row in rows[1:]
    )
    return partial(ladder_figure, recorded.ladder), (
        f"Two bar charts of times the images/s of the baseline ({base:.0f}) and of the step before, with the "
        f"{interval_label(recorded.ladder)}; grey where it includes 1. {steps}."
    )


def breakdown(recorded: Recorded) -> Drawing:
    """The parts of each traced step, ms per image; see `per_image_ms`."""
    parts, title = per_image_ms(recorded), f"ms per image, traced: {ladder_title(recorded.ladder)}"
    alt = f"Stacked bars: ms per image in each step's trace. {_largest(parts)}."
    return partial(stack, _labelled(parts), title, ROLES), alt


def predicted(recorded: Recorded) -> Drawing:
    """What each step gained over the one before, and the upper bound that the trace before it gave."""
    steps = "; ".join(f"{step_label(row.step)} {row.gain}, {row.outcome}" for row in recorded.predictions)
    return partial(_predicted, recorded), (
        f"Points: what each step gained over the one before, with the {interval_label(recorded.ladder)}, and the "
        f"predicted bound. {steps}."
    )


@in_style
def _predicted(recorded: Recorded) -> Figure:
    rows = recorded.predictions
    figure = Figure(figsize=(9, 1.4 + 0.5 * len(rows)))
    axes = figure.subplots()
    for resolved, colour, label in (
        (True, SPEED, f"measured, with the {interval_label(recorded.ladder)}"),
        (False, UNRESOLVED, "~: no measurable difference, the interval includes 1"),
    ):
        gains = {y: row.gain for y, row in enumerate(rows) if row.gain.resolved is resolved}
        if gains:
            errors = reach((gain.low, gain.ratio, gain.high) for gain in gains.values())
            x = [gain.ratio for gain in gains.values()]
            axes.errorbar(x, list(gains), xerr=errors, fmt="o", color=colour, ecolor=colour, capsize=3, label=label)
    bounds = [(row.predicted_gain, y) for y, row in enumerate(rows) if row.predicted_gain]
    if bounds:
        axes.scatter(
            *zip(*bounds, strict=True), marker="|", s=300, linewidths=3, color=BOUND, label="predicted, at most"
        )
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    for y, row in enumerate(rows):
        at, offset = (row.gain.ratio, y), (0, 7)
        axes.annotate(short(row.gain), at, offset, textcoords="offset points", ha="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [step_label(row.step) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(f"times as fast as the step before: {ladder_title(recorded.ladder)}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    return figure


STUDIES = {  # {figure: (the study, what draws it, what it is, the table and its columns that a screen reader says)}
    "roofline": (
        "limit",
        limit.figure,
        "FLOP/s over FLOPs per byte on logarithmic axes, with the measured roofs",
        "operators",
        ("operators of a step", "% of its roof"),
    ),
    "ablation": (
        "ablation",
        ablation.figure,
        "Points with intervals on a logarithmic axis: times as fast",
        "effects",
        ("optimisation", "alone", "in the full ladder"),
    ),
    "sweep": ("sweep", sweep.figure, "Heat map", "sweep", ("workers", "batch", "images/s")),
}


def of_study(name: str, recorded: Recorded) -> Drawing | None:
    """One of `STUDIES`; None where that was not recorded."""
    study, draw, what, table, columns = STUDIES[name]
    result = recorded.study(study)
    if result is None:
        return None
    rows = [[row.get(column) for column in columns] for row in result.tables[table]]
    said = "; ".join(", ".join(map(cell_text, cells)) for cells in rows if any(cell is not None for cell in cells[1:]))
    return partial(draw, result), f"{what}. {', '.join(columns)}: {said}."


FIGURES: dict[str, Callable[[Recorded], Drawing | None]] = {
    **{figure.__name__: figure for figure in (ladder, breakdown, predicted)},
    **{name: partial(of_study, name) for name in STUDIES},
}


def gpu_memory(fit: Fit) -> Drawing:
    """The memory predicted for every program, with its own settings: GB at the peak, by what holds it."""
    rows = {one.program or "": one for one in fit.predictions if not one.words}
    parts = {
        f"{step_label(name.rpartition('/')[2])}, {one.model}, {one.batch_size}": {
            kind: one.by_kind[kind] / 1e9 for kind in KINDS
        }
        for name, one in rows.items()
    }
    alt = "; ".join(
        f"{name} {one.peak_bytes / 1e9:.2f} GB, activations {one.by_kind['activations'] / 1e9:.2f}"
        for name, one in rows.items()
    )
    draw = partial(stack, parts, "GB on a GPU, predicted", MEMORY)
    return draw, f"Bars: GB predicted on a GPU, by what holds it. {alt}."


def per_image_ms(recorded: Recorded) -> dict[str, dict[str, float]]:
    """{step: {role: ms of a mean traced step over its batch size}}."""
    return {
        step: {
            role: us / recorded.row(step).result.batch_size / 1e3
            for role, us in analysis.steps.mean_breakdown_us.items()
        }
        for step, analysis in recorded.analyses.items()
    }


def _labelled(parts: Parts) -> Parts:
    return {step_label(step): values for step, values in parts.items()}


def _largest(parts: Parts) -> str:
    """The two largest parts of each bar, in words."""
    bars = []
    for step, values in parts.items():
        two = sorted(values.items(), key=lambda part: -part[1])[:2]
        bars.append(f"{step_label(step)}: {', '.join(f'{name} {value:.2f}' for name, value in two)}")
    return "; ".join(bars)


@in_style
def stack(parts: Parts, title: str, colours: Mapping[str, str] | None = None) -> Figure:
    """Stacked bars, one below the other; a value is in its part where there is room."""
    names = list(next(iter(parts.values())))
    colours = colours or dict(zip(names, COLOURS, strict=False))
    figure = Figure(figsize=(9, 1.4 + 0.36 * len(parts)))
    axes, left = figure.subplots(), np.zeros(len(parts))
    widest = max(sum(values.values()) for values in parts.values())
    for name in (name for name in colours if any(values.get(name, 0) > 0 for values in parts.values())):
        widths = np.array([values[name] for values in parts.values()])
        axes.barh(range(len(parts)), widths, left=left, height=0.62, color=colours[name], label=name)
        for y, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width > 0.07 * widest:
                ink = ink_on(colours[name])
                axes.text(start + width / 2, y, f"{width:.2f}", ha="center", va="center", fontsize=8, color=ink)
        left += widths
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


# Plots of any table, by the form that a page names. Its first column of texts names what is drawn; of the other
# columns one may be named. `value` of a cell: of an interval its middle.
def _middle(cell: Any) -> Any:
    return cell.get("mean", cell.get("ratio")) if isinstance(cell, dict) else cell


def _ends(cell: Any) -> tuple[float, float]:
    """The interval of a cell; of one measurement there is none, so both are its middle."""
    middle = _middle(cell)
    return (middle, middle) if cell.get("low") is None else (cell["low"], cell["high"])


def _texts(rows: Sequence[Row]) -> str:
    """The first column of texts; "" where there is none."""
    return next((name for name, cell in rows[0].items() if isinstance(cell, str)), "")


def _numbers(rows: Sequence[Row]) -> list[str]:
    """The columns of plain numbers."""
    return [name for name, cell in rows[0].items() if isinstance(cell, int | float) and not isinstance(cell, bool)]


@in_style
def bars(rows: Sequence[Row], column: str = "") -> Figure:
    """A bar for each row, with its interval where it has one; of ratios a line at 1."""
    label, column = _texts(rows), column or _numbers(rows)[0]
    rows = [row for row in rows if row[column] is not None]
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(rows)))
    axes, values = figure.subplots(), [_middle(row[column]) for row in rows]
    errors = None
    if isinstance(rows[0][column], dict):
        errors = reach((_ends(row[column])[0], _middle(row[column]), _ends(row[column])[1]) for row in rows)
    drawn = axes.barh(range(len(rows)), values, xerr=errors, height=0.62, color=COLOURS[0], ecolor=GREY)
    axes.bar_label(drawn, [cell_text(value) for value in values], padding=4, fontsize=8)
    if errors and "ratio" in rows[0][column]:
        axes.axvline(1, color=BOUND, linewidth=1.5)
    axes.set_yticks(range(len(rows)), [row[label] for row in rows])
    axes.invert_yaxis()
    axes.set_title(column)
    return figure


@in_style
def lines(rows: Sequence[Row], over: str = "") -> Figure:
    """Lines over a column, by default the first of numbers: with a band for each interval, a panel for each column of
    intervals, a line for each text; or, where a table has none of these, a line for each column of numbers."""
    label, over = _texts(rows), over or _numbers(rows)[0]
    columns = [name for name, cell in rows[0].items() if isinstance(cell, dict)]
    if not columns:  # a column for each line
        columns, label = [""], "line"
        rows = [
            {over: row[over], label: name, "": row[name]} for name in _numbers(rows) if name != over for row in rows
        ]
    across = len(columns) if len(columns) <= 3 else 2
    down = -(-len(columns) // across)
    figure = Figure(figsize=(max(6, 4 * across), 3.4 * down))
    for axes, column in zip(figure.subplots(down, across, squeeze=False).flat, columns, strict=False):
        for colour, name in zip(COLOURS, dict.fromkeys(row[label] for row in rows), strict=False):
            own = [row for row in rows if row[label] == name and row[column] is not None]
            x = [row[over] for row in own]
            axes.plot(x, [_middle(row[column]) for row in own], color=colour, label=name, linewidth=1.5)
            if column:
                low, high = zip(*(_ends(row[column]) for row in own), strict=True)
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set_title(column)
        axes.set_xlabel(over)
        if (column or over).endswith("%") or not column:
            axes.set_ylim(0, 100)
    figure.axes[0].legend(fontsize=8)
    return figure


@in_style
def scatter(rows: Sequence[Row], column: str) -> Figure:
    """A row for each text, a dot for each of its values on a logarithmic axis; those without one are counted."""
    label = _texts(rows)
    names = list(dict.fromkeys(row[label] for row in rows))[::-1]
    figure = Figure(figsize=(8, 0.6 + 0.28 * len(names)))
    axes, edge = figure.subplots(), 2 * max((row[column] for row in rows if row[column]), default=1.0)
    for y, name in enumerate(names):
        values = [row[column] for row in rows if row[label] == name]
        reached = [value for value in values if value is not None]
        axes.plot(reached, [y] * len(reached), "o", color=COLOURS[0], alpha=0.5, markersize=5, markeredgewidth=0)
        if failed := len(values) - len(reached):
            text = f"{failed} of {len(values)} failed"
            axes.plot([edge], [y], "x", color=COLOURS[3])
            axes.annotate(text, (edge, y), (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(names)), names)
    axes.set_title(f"each {column}")
    return figure


def heat(rows: Sequence[Row]) -> Figure:
    """A cell for each row, by its batch size and learning rate."""
    return heat_map_figure(rows, "learning rate", "batch size", "accuracy %", "failures")


@in_style
def areas(panels: Mapping[str, Sequence[Row]], unit: str) -> Figure:
    """A panel for each table, on one scale: over its first column of numbers, the others in steps above each other."""
    figure = Figure(figsize=(8, 0.4 + 2.4 * len(panels)))
    drawn = figure.subplots(len(panels), 1, squeeze=False, sharey=True)[:, 0]
    over, *kinds = _numbers(next(iter(panels.values())))
    for axes, (name, rows) in zip(drawn, panels.items(), strict=True):
        x = [row[over] for row in rows]
        x.append(2 * x[-1] - x[-2])  # where the last step ends
        values = [[row[kind] for row in (*rows, rows[-1])] for kind in kinds]
        axes.stackplot(x, values, labels=kinds, colors=COLOURS, linewidth=0, step="post")
        axes.set_title(f"{name.replace('_', ' ')}, at most {_most(rows):,.0f} {unit}")
        axes.set_ylabel(unit)
        axes.set_xlim(x[0], x[-1])
    drawn[-1].set_xlabel(over)
    if len(kinds) > 1:
        drawn[0].legend(fontsize=8, ncols=3, loc="upper right")
    return figure


def _most(rows: Sequence[Row]) -> float:
    _, *kinds = _numbers(rows)
    return max(sum(row[kind] for kind in kinds) for row in rows)


FORMS: dict[str, Callable[..., Figure]] = {form.__name__: form for form in (bars, lines, scatter, heat, areas)}


WORDS = {  # of the alternative text
    "bars": "Bars: {of}",
    "lines": "Lines over {over}: {of}, with 95 % intervals where they were measured",
    "scatter": "A dot for each measurement of {of} on a logarithmic axis",
    "heat": "Heat map, a number in each cell, of {of}",
}


def of_tables(tables: Mapping[str, Sequence[Row]], name: str, form: str, word: str) -> Drawing:
    """A table drawn in one of `FORMS`, and what it shows in words. tables: those whose names begin with that one.

    word: a column, or the unit of areas and stacks.
    """
    if form == "areas":
        panels = {key.removeprefix(name).strip("_") or name: rows for key, rows in tables.items()}
        peaks = ", ".join(f"{key} at most {_most(rows):,.0f} {word}" for key, rows in panels.items())
        over, *kinds = _numbers(next(iter(panels.values())))
        return partial(areas, panels, word), f"Areas above each other over {over}: {', '.join(kinds)}; {peaks}"
    rows = tables[name]
    label, columns = _texts(rows), [key for key, cell in rows[0].items() if isinstance(cell, dict)]
    of = word if word and form != "lines" else ", ".join(columns or _numbers(rows))
    names = ", ".join(dict.fromkeys(str(row[label]) for row in rows if row[label])) if label else ""
    alt = WORDS[form].format(of=of, over=word or _numbers(rows)[0]) + (f"; {names}" if names else "")
    return partial(FORMS[form], rows, *filter(None, [word])), alt
