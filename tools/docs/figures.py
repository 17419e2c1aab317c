"""The figures of the docs, drawn from recorded runs: each a matplotlib figure with its alternative text.

Colours are Okabe and Ito's, which the colour-blind can distinguish; what is not data follows the reader's light or dark
theme.
"""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from studies.ablation import figure as ablation_figure
from studies.limit import figure as roofline_figure
from studies.sweep import figure as sweep_figure
from tools.docs.recorded import Recorded
from walkthrough.compare.figures import (
    GREY,
    SPEED,
    UNRESOLVED,
    ink_on,
    interval_label,
    ladder_figure,
    ladder_title,
    reach,
    short,
    step_label,
    styled,
)
from walkthrough.compare.table import text
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.memory import Memory, thinned

COLOURS = {
    "kernel": "#009e73",
    "memcpy": "#e69f00",
    "memset": "#f0e442",
    "communication": "#cc79a7",
    "runtime": "#56b4e9",
    "dataloader": "#d55e00",
    "cpu_exec": "#0072b2",
    "other": "#999999",
}
CAUSE_COLOURS = dict(
    zip(CAUSES, ("#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#0072b2", "#999999"), strict=True)
)
BOUND = "#d55e00"
POINTS = 142  # of a memory curve: two for each of 70 stretches of time, and its ends; a panel shows no more

Drawing = tuple[Figure, str]  # a figure and its alternative text
Parts = dict[str, dict[str, float]]  # {step: {part: ms per image}}


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
    return ladder_figure(recorded.ladder), (
        f"Two bar charts of times the images/s of the baseline ({base:.0f}) and of the step before, with the "
        f"{interval_label(recorded.ladder)}; grey where it includes 1. {steps}."
    )


def breakdown(recorded: Recorded) -> Drawing:
    """The parts of each traced step, ms per image; see `per_image_ms`."""
    parts = per_image_ms(recorded)
    figure = _stacked(parts, COLOURS, f"ms per image, traced: {ladder_title(recorded.ladder)}")
    return figure, f"Stacked bars: ms per image in each step's trace. {_largest(parts)}."


def idle(recorded: Recorded) -> Drawing | None:
    """Why the GPU runs no kernel, ms per image; see `idle_per_image_ms`. None where there is no GPU."""
    parts = idle_per_image_ms(recorded)
    if not parts:
        return None
    title = f"ms per image without a kernel, by what the CPU did meanwhile: {recorded.ladder.baseline.device}"
    figure = _stacked(parts, CAUSE_COLOURS, title)
    return figure, f"Stacked bars: ms per image in which the GPU runs no kernel. {_largest(parts)}."


def memory(recorded: Recorded) -> Drawing | None:
    """Memory allocated over the traced steps, one panel per step, all on one scale. None without memory events."""
    curves = {step: analysis.memory[0] for step, analysis in recorded.analyses.items() if analysis.memory}
    if not curves:
        return None
    columns = min(3, len(curves))
    lines = -(-len(curves) // columns)
    figure = Figure(figsize=(9, 0.6 + 2.2 * lines), layout=ConstrainedLayoutEngine(hspace=0.08))
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (step, curve) in zip(panels.flat, curves.items(), strict=False):
        time, allocated = memory_curve(curve)
        axes.fill_between(time, allocated, color=SPEED, linewidth=0)
        styled(axes, step_label(step))
    panels.flat[0].set_ylim(0, 1.05 * max(curve.peak_allocated or curve.growth for curve in curves.values()) / 1e6)
    figure.supxlabel("ms since tracing began", fontsize=9, color=GREY)
    figure.supylabel("allocated, MB", fontsize=9, color=GREY)
    peaks = ", ".join(f"{step_label(step)} {curve.growth / 1e6:.0f} MB" for step, curve in curves.items())
    return figure, f"A curve for each step: memory allocated over the traced steps. It grew by at most: {peaks}."


def predicted(recorded: Recorded) -> Drawing:
    """What each step gained over the one before, and the upper bound that the trace before it gave."""
    rows = recorded.predictions
    figure = Figure(figsize=(9, 1.4 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    interval = interval_label(recorded.ladder)
    for resolved, colour, label in (
        (True, SPEED, f"measured, with the {interval}"),
        (False, UNRESOLVED, "~: no measurable difference, the interval includes 1"),
    ):
        gains = {y: row.gain for y, row in enumerate(rows) if row.gain.resolved is resolved}
        if gains:
            errors = reach((gain.low, gain.ratio, gain.high) for gain in gains.values())
            ratios = [gain.ratio for gain in gains.values()]
            axes.errorbar(
                ratios, list(gains), xerr=errors, fmt="o", color=colour, ecolor=colour, capsize=3, label=label
            )
    bounds = [(y, row.predicted_gain) for y, row in enumerate(rows) if row.predicted_gain]
    if bounds:
        heights, values = zip(*bounds, strict=True)
        axes.scatter(values, heights, marker="|", s=300, linewidths=3, color=BOUND, label="predicted, at most")
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    for y, row in enumerate(rows):
        at, offset = (row.gain.ratio, y), (0, 7)
        axes.annotate(short(row.gain), at, offset, textcoords="offset points", ha="center", color=GREY, fontsize=8)
    axes.set_yticks(range(len(rows)), [step_label(row.step) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    styled(axes, f"times as fast as the step before: {ladder_title(recorded.ladder)}")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    steps = "; ".join(f"{step_label(row.step)} {row.gain}, {row.outcome}" for row in rows)
    return figure, (
        f"Points: what each step gained over the one before, with the {interval}, and the predicted bound. {steps}."
    )


def roofline(recorded: Recorded) -> Drawing | None:
    """How near its roof each kind of operator is. None where `limit` was not recorded."""
    limit = recorded.study("limit")
    if limit is None:
        return None
    rows = sorted(limit.tables["operators"], key=lambda row: -(row.get("% of its roof") or 0))
    shares = [f"{row['operators of a step']} {row['% of its roof']:.0f}%" for row in rows if row.get("% of its roof")]
    groups = f"of its roof: {'; '.join(shares)}"
    return roofline_figure(limit), f"FLOP/s over FLOPs per byte on logarithmic axes, with the measured roofs; {groups}."


def ablation(recorded: Recorded) -> Drawing | None:
    """The effect of each optimisation alone and in the full ladder. None where `ablate` was not recorded."""
    result = recorded.study("ablation")
    if result is None:
        return None
    rows = "; ".join(
        f"{step_label(row['optimisation'])} {text(row['alone'])} alone, {text(row['in the full ladder'])} in the full "
        "ladder"
        for row in result.tables["effects"]
        if not row["no effect"]
    )
    return ablation_figure(result), f"Points with intervals on a logarithmic axis: times as fast. {rows}."


def sweep(recorded: Recorded) -> Drawing | None:
    """images/s for each number of workers and batch size. None where `sweep` was not recorded."""
    result = recorded.study("sweep")
    if result is None:
        return None
    measured = [row for row in result.tables["sweep"] if row["images/s"] is not None]
    cells = "; ".join(f"{row['workers']} workers, batch {row['batch']} {row['images/s']:.0f}" for row in measured)
    return sweep_figure(result), f"Heat map of images/s. {cells}."


FIGURES: dict[str, Callable[[Recorded], Drawing | None]] = {
    figure.__name__: figure for figure in (ladder, breakdown, memory, idle, predicted, roofline, ablation, sweep)
}
NOT_DRAWN = {  # where a record lacks what a figure shows
    "memory": "No figure of memory: the traces have no memory events.",
    "roofline": "No roofline: `python -m walkthrough limit` has not been recorded.",
    "ablation": "No figure of effects: `python -m walkthrough ablate` has not been recorded.",
    "sweep": "No heat map: `python -m walkthrough sweep` has not been recorded.",
}


def per_image_ms(recorded: Recorded) -> Parts:
    """{step: {role: ms of a mean traced step over its batch size}}."""
    return {
        step: {
            role: us / recorded.row(step).result.batch_size / 1e3
            for role, us in analysis.steps.mean_breakdown_us.items()
        }
        for step, analysis in recorded.analyses.items()
    }


def idle_per_image_ms(recorded: Recorded) -> Parts:
    """{step: {cause: ms of a mean traced step without a kernel, over its batch size}}, for steps with a GPU."""
    return {
        step: {
            cause: us / len(analysis.steps.names) / recorded.row(step).result.batch_size / 1e3
            for cause, us in analysis.idle[0].causes_us.items()
        }
        for step, analysis in recorded.analyses.items()
        if analysis.idle
    }


def memory_curve(curve: Memory) -> tuple[np.ndarray, np.ndarray]:
    """A curve for a narrow panel: ms since its begin and MB allocated, float64 [points], its extremes included."""
    known = ~np.isnan(curve.allocated)
    time, allocated = curve.time[known], curve.allocated[known]
    points = thinned(allocated, POINTS)
    return (time[points] - curve.time[0]) / 1e3, allocated[points] / 1e6


def _stacked(parts: Parts, colours: Mapping[str, str], title: str) -> Figure:
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(parts)), layout="constrained")
    axes = figure.subplots()
    used = [name for name in colours if any(values[name] > 0 for values in parts.values())]
    left = np.zeros(len(parts))
    widest = max(sum(values.values()) for values in parts.values())
    for name in used:
        widths = np.array([values[name] for values in parts.values()])
        axes.barh(range(len(parts)), widths, left=left, height=0.62, color=colours[name], label=name)
        for y, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width > 0.07 * widest:
                ink = ink_on(colours[name])
                axes.text(start + width / 2, y, f"{width:.2f}", ha="center", va="center", fontsize=8, color=ink)
        left += widths
    axes.set_yticks(range(len(parts)), [step_label(step) for step in parts])
    axes.invert_yaxis()
    styled(axes, title)
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _largest(parts: Parts) -> str:
    """The two largest parts of each bar, in words."""
    bars = []
    for step, values in parts.items():
        two = sorted(values.items(), key=lambda part: -part[1])[:2]
        bars.append(f"{step_label(step)}: {', '.join(f'{name} {value:.2f}' for name, value in two)}")
    return "; ".join(bars)
