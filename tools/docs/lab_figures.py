"""Figures of labs, from their studies' tables by name.

`curves`, every `memory_by_kind_…`, `lengths`, `padding_per_batch`, `memory_by_trick`, `races`, `pareto`, `heat_map`,
`pruned`, `pipelines`.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from labs.shared import heat_map
from walkthrough.compare.figures import GREY, styled
from walkthrough.compare.study import Row, Study

Drawing = tuple[Figure, str]  # and its alternative text
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442")  # Okabe and Ito's
BY_KIND = "memory_by_kind_"
ERRORS = (90, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1)  # in %, at which accuracies are marked
MOST_ACROSS = 3  # panels side by side, beyond which there are two
LEAST_ERROR = 0.05  # in %, that has a place


def figures(study: Study) -> dict[str, Drawing]:
    """{name: drawing} of all that a study's tables allow."""
    drawings: dict[str, Drawing] = {}
    panels = {
        name.removeprefix(BY_KIND): rows for name, rows in study.tables.items() if name.startswith(BY_KIND) and rows
    }
    if panels:
        alt = f"Predicted memory by kind over one training step, operator by operator: {', '.join(panels)}"
        drawings["memory_by_kind"] = memory_by_kind(panels), alt
    if rows := study.tables.get("curves"):
        drawings["curves"] = curves(rows), "Means over seeds with 95 % intervals, epoch by epoch"
    if rows := study.tables.get("lengths"):
        drawings["lengths"] = lengths(rows), "Histogram: how many texts have how many tokens"
    if rows := study.tables.get("padding_per_batch"):
        alt = f"The share of padding in each of many batches, in order of it: {', '.join(_kinds(rows))}"
        drawings["padding_per_batch"] = padding_per_batch(rows), alt
    if rows := study.tables.get("memory_by_trick"):
        peaks = "; ".join(f"{row['trick']} {sum(row[kind] for kind in _kinds(rows)):.2f} GB" for row in rows)
        drawings["memory_by_trick"] = memory_by_trick(rows), f"Stacked bars, predicted peak memory by kind: {peaks}"
    if rows := study.tables.get("races"):
        drawings["races"] = (
            races(rows),
            "Seconds to the target of every race, a row for each program, failures at the edge",
        )
    if rows := study.tables.get("pareto"):
        drawings["pareto"] = pareto(rows), "Accuracy against seconds of training, a line for each program"
    if rows := study.tables.get("heat_map"):
        drawn = heat_map.drawn(heat_map.HeatMap(rows))
        drawings["heat_map"] = drawn, "Accuracy by batch size and learning rate, means over seeds"
    if rows := study.tables.get("pruned"):
        alt = "Accuracy by the share of weights that is pruned, a line for each epoch that the others are reset to"
        drawings["pruned"] = curves(rows, "pruned %"), alt
    if rows := study.tables.get("pipelines"):
        alt = "Images per second that each input pipeline delivers, and what the model consumes"
        drawings["pipelines"] = pipelines(rows), alt
    return drawings


def pipelines(rows: list[Row]) -> Figure:
    """A bar for each "pipeline" that has "images/s"; a line at what the model consumes."""
    rows = [row for row in rows if row["images/s"]]
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(range(len(rows)), [row["images/s"] for row in rows], height=0.62, color=COLOURS[0])
    axes.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize=8, color=GREY)
    axes.set_yticks(range(len(rows)), [row["pipeline"] for row in rows])
    axes.invert_yaxis()
    styled(axes, "images/s delivered, nobody training; the line: what the model consumes")
    consumed = statistics.median(row["images/s"] / row["times what the model consumes"]["ratio"] for row in rows)
    axes.axvline(consumed, color=COLOURS[3], linewidth=1.5)
    return figure


def lengths(rows: list[Row]) -> Figure:
    """Bars: texts by their number of tokens; of each row "tokens", the first number of its bin, and "texts"."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.subplots()
    width = rows[1]["tokens"] - rows[0]["tokens"] if len(rows) > 1 else 1
    axes.bar([row["tokens"] for row in rows], [row["texts"] for row in rows], width, align="edge", color=COLOURS[0])
    styled(axes, "texts by their number of tokens")
    axes.set_xlabel("tokens", color=GREY)
    return figure


def padding_per_batch(rows: list[Row]) -> Figure:
    """A curve for each way to make batches: the share of padding of a batch, in %, by its "% of batches"."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    x = [row["% of batches"] for row in rows]
    for colour, kind in zip(COLOURS, _kinds(rows), strict=False):
        axes.plot(x, [row[kind] for row in rows], color=colour, label=kind, linewidth=1.5)
    styled(axes, "padding, % of a batch's tokens")
    axes.set_ylim(0, 100)
    axes.set_xlabel("% of batches with so much padding or less", color=GREY)
    axes.legend(frameon=False, fontsize=8, labelcolor=GREY)
    return figure


def memory_by_trick(rows: list[Row]) -> Figure:
    """A bar for each row's "trick": GB of each kind at the peak, predicted."""
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(rows)
    for colour, kind in zip(COLOURS, _kinds(rows), strict=False):
        widths = [row[kind] for row in rows]
        axes.barh(range(len(rows)), widths, left=left, height=0.62, color=colour, label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [row["trick"] for row in rows])
    axes.invert_yaxis()
    styled(axes, "GB at the peak of a training step, predicted")
    axes.legend(frameon=False, fontsize=8, labelcolor=GREY, loc="lower right")
    return figure


def _kinds(rows: list[Row]) -> list[str]:
    """The columns that hold what is drawn: all but the one that says what a row is of."""
    return [name for name in rows[0] if name not in ("trick", "% of batches")]


def memory_by_kind(panels: dict[str, list[Row]]) -> Figure:
    """Stacked areas, a panel for each program: MB of each kind over the operators of a step, one scale for all."""
    figure = Figure(figsize=(8, 2.6 * len(panels)), layout="constrained")
    drawn = figure.subplots(len(panels), 1, squeeze=False, sharey=True)[:, 0]
    for axes, (name, rows) in zip(drawn, panels.items(), strict=True):
        x, kinds = [row["operator"] for row in rows], [key for key in rows[0] if key != "operator"]
        areas = [[row[kind] / 1e3 for row in rows] for kind in kinds]
        axes.stackplot(x, areas, labels=kinds, colors=COLOURS, linewidth=0, step="post")
        peak = max(sum(values) for values in zip(*areas, strict=True))
        styled(axes, f"{name}, predicted: peak {peak:.2f} GB")
        axes.set_ylabel("GB", color=GREY)
        axes.set_xlim(x[0], x[-1])
    drawn[-1].set_xlabel("operators of one training step", color=GREY)
    drawn[0].legend(frameon=False, fontsize=8, labelcolor=GREY, ncols=3, loc="upper right")
    return figure


def curves(rows: list[Row], over: str = "epoch") -> Figure:
    """A panel for each column that holds means with intervals, a line for each variant over another column."""
    columns = [name for name, value in rows[0].items() if isinstance(value, dict) and "mean" in value]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    across = len(columns) if len(columns) <= MOST_ACROSS else 2
    down = -(-len(columns) // across)
    figure = Figure(figsize=(max(6, 4 * across), 3.4 * down), layout="constrained")
    for axes, column in zip(figure.subplots(down, across, squeeze=False).flat, columns, strict=False):
        for colour, variant in zip(COLOURS, variants, strict=False):
            own = [row for row in rows if row["variant"] == variant]
            x = [row[over] for row in own]
            axes.plot(x, [row[column]["mean"] for row in own], color=colour, label=variant, linewidth=1.5)
            low, high = _ends(own, column)
            axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        styled(axes, column)
        axes.set_xlabel(over, color=GREY)
        if over == "epoch" and column.endswith("%"):
            axes.set_ylim(0, 100)
    figure.axes[0].legend(frameon=False, fontsize=8, labelcolor=GREY)
    return figure


def races(rows: list[Row]) -> Figure:
    """A row for each program, a dot for each race at its seconds to the target; failures are crosses at the edge."""
    programs = list(dict.fromkeys(row["program"] for row in rows))[::-1]
    figure = Figure(figsize=(8, 0.6 + 0.28 * len(programs)), layout="constrained")
    axes = figure.subplots()
    edge = 2 * max((row["s to target"] for row in rows if row["s to target"]), default=1.0)
    for y, program in enumerate(programs):
        seconds = [row["s to target"] for row in rows if row["program"] == program]
        reached, failed = [value for value in seconds if value], sum(value is None for value in seconds)
        axes.plot(reached, [y] * len(reached), "o", color=COLOURS[0], alpha=0.5, markersize=5, markeredgewidth=0)
        if failed:
            axes.plot([edge], [y], "x", color=COLOURS[3])
            text = f"{failed} of {len(seconds)} failed"
            axes.annotate(text, (edge, y), (6, 0), textcoords="offset points", va="center", fontsize=8, color=GREY)
    axes.set_xscale("log")
    axes.set_yticks(range(len(programs)), programs)
    styled(axes, "seconds of training to the target, every race")
    return figure


def pareto(rows: list[Row]) -> Figure:
    """Accuracy against seconds of training, a line for each program; its last epoch has its number.

    In equal steps of the error's logarithm, since all are near 100 % at the end.
    """
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["program"] for row in rows))
    for number, name in enumerate(names):
        own = [row for row in rows if row["program"] == name]
        colour = COLOURS[number % len(COLOURS)]
        x, errors = [row["s"] for row in own], list(map(_error, own))
        axes.plot(x, errors, color=colour, linewidth=1, alpha=0.5)
        axes.plot(x[-1:], errors[-1:], "o", color=colour, markersize=4)
        short = name.partition("_")[0] + "".join(name.partition(",")[1:])  # "00_naive, …" is another one
        axes.annotate(short, (x[-1], errors[-1]), (4, -3), textcoords="offset points", fontsize=8, color=GREY)
    axes.set_xscale("log")
    axes.set_yscale("log")
    least = min(map(_error, rows))
    most = max(10, 2 * least)
    axes.set_yticks([error for error in ERRORS if least <= error <= most])
    axes.set_ylim(most, 0.8 * least)
    axes.yaxis.set_major_formatter(lambda error, _: f"{100 - error:.4g}")
    axes.yaxis.set_minor_formatter(lambda error, _: "")
    axes.set_xlabel("seconds of training", color=GREY)
    styled(axes, "test accuracy %, means over races")
    return figure


def _error(row: Row) -> float:
    return max(LEAST_ERROR, 100 - row["accuracy %"])


def _ends(rows: Sequence[Row], column: str) -> tuple[list[Any], list[Any]]:
    """The intervals' ends; of one seed there is none, so both are the mean."""
    values = [row[column] for row in rows]
    low, high = ([value["mean"] if value[end] is None else value[end] for value in values] for end in ("low", "high"))
    return low, high
