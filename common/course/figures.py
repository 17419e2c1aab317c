"""The figures of the docs, drawn from recorded runs: each a matplotlib figure with its alternative text.

Colours are Okabe and Ito's, which the colour-blind tell apart; what is not data follows the reader's light or dark
theme.
"""

import numpy as np
from matplotlib.figure import Figure

from common.ladder import published
from common.ladder.figures import (
    ERROR_BARS,
    GREY,
    MEMORY,
    SPEED,
    labelled,
    ladder_figure,
    ladder_title,
    reach,
    relative_labels,
    step_label,
    styled,
)
from common.studies.ablation.figure import ablation_figure
from common.studies.ablation.record import effects, noise_of
from common.studies.ablation.view import effect_text
from common.studies.limit.figure import of_roof, roofline_figure
from common.studies.sweep.figure import sweep_figure
from common.studies.sweep.view import told_setting
from common.trace.digest import thinned
from common.trace.idle import CAUSES

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
CAUSE_COLOURS = dict(zip(CAUSES, ("#e69f00", "#d55e00", "#56b4e9", "#cc79a7", "#0072b2", "#999999"), strict=True))
PROMISE = "#d55e00"
POINTS = 142  # of a memory curve: two for each of 70 stretches of time, and its ends; a panel shows no more


def ladder(recorded):
    """Images/s of each step with the range of its windows, and its peak memory."""
    rows = recorded.ladder.rows
    told = "; ".join(
        f"{step_label(row.result.step)} {row.result.samples_per_second.median:.0f}"
        + (f" ({row.relative})" if row.gain else "")
        for row in rows
    )
    return ladder_figure(recorded.ladder), f"Bars, images a second of each step. {told}."


def beside_original(recorded):
    """Times the baseline's images/s: as recorded, with the range of the windows, and as the original published them."""
    rows = recorded.ladder.rows
    device, at = recorded.ladder.baseline.device, range(len(rows))
    figure = Figure(figsize=(9, 1.5 + 0.42 * len(rows)), layout="constrained")
    ours, theirs = figure.subplots(1, 2, sharey=True, sharex=True)

    ratios = [row.relative for row in rows]
    errors = reach([(each.low, each.ratio, each.high) for each in ratios])
    ours.barh(at, [each.ratio for each in ratios], color=SPEED, height=0.62, xerr=errors, error_kw=ERROR_BARS)
    labels = relative_labels(recorded.ladder)
    labelled(ours, [each.high for each in ratios], labels)
    styled(ours, f"measured here: {device}")

    published = [published.RELATIVE.get(row.result.step) for row in rows]
    theirs.barh(at, [each or 0 for each in published], color=MEMORY, height=0.62)
    labelled(theirs, [each or 0 for each in published], [f"{each:.2f}x" if each else "" for each in published])
    styled(theirs, f"published: {published.DEVICE}, one run")
    ours.set_xlim(0, 1.25 * max([each.high for each in ratios] + [each or 0 for each in published]))
    ours.set_yticks(at, [step_label(row.result.step) for row in rows])
    ours.invert_yaxis()
    figure.supxlabel("times the images/s of the baseline", fontsize=9, color=GREY)
    said = "; ".join(
        f"{step_label(row.result.step)} {label} here" + (f", {each:.2f}x there" if each else "")
        for row, label, each in zip(rows, labels, published, strict=True)
    )
    return figure, f"Two bar charts of times the baseline's images/s, {device} here, {published.DEVICE} there. {said}."


def breakdown(recorded):
    """What an image's share of a traced step is made of, per step: `Summary.steps`' breakdown over the batch, ms."""
    parts = per_image_ms(recorded)
    figure = _stacked(parts, COLOURS, f"ms an image, traced: {ladder_title(recorded.ladder)}")
    return figure, f"Stacked bars, milliseconds an image in each step's trace. {_largest(parts)}."


def idle(recorded):
    """Why the GPU runs no kernel, per step: `Summary.idle` over the images, ms; None where there is no GPU."""
    parts = idle_per_image_ms(recorded)
    if not parts:
        return None
    title = f"ms an image without a kernel, by what the CPU did meanwhile: {recorded.ladder.baseline.device}"
    figure = _stacked(parts, CAUSE_COLOURS, title)
    return figure, f"Stacked bars, milliseconds an image in which the GPU runs no kernel. {_largest(parts)}."


def memory(recorded):
    """What the allocator had handed out over the traced steps, one panel a step, all to one scale."""
    curves = {step: summary.memory[0] for step, summary in recorded.summaries.items() if summary.memory}
    if not curves:
        return None
    columns = min(3, len(curves))
    lines = -(-len(curves) // columns)
    figure = Figure(figsize=(9, 0.6 + 2.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (step, curve) in zip(panels.flat, curves.items(), strict=False):
        time, allocated = memory_curve(curve)
        axes.fill_between(time, allocated, color=SPEED, linewidth=0)
        styled(axes, step_label(step))
    panels.flat[0].set_ylim(0, 1.05 * max(curve.peak_allocated or curve.growth for curve in curves.values()) / 1e6)
    figure.get_layout_engine().set(hspace=0.08)
    figure.supxlabel("ms since tracing began", fontsize=9, color=GREY)
    figure.supylabel("allocated, MB", fontsize=9, color=GREY)
    peaks = ", ".join(f"{step_label(step)} {curve.growth / 1e6:.0f} MB" for step, curve in curves.items())
    return figure, f"A curve for each step: memory allocated over the traced steps. It grew by at most: {peaks}."


def predicted(recorded):
    """What each step gained over the one before, and the most that the trace before it had promised."""
    rows = recorded.predictions
    figure = Figure(figsize=(9, 1.4 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    at, gains = range(len(rows)), [row.gain for row in rows]
    errors = reach([(gain.low, gain.ratio, gain.high) for gain in gains])
    axes.errorbar(
        [gain.ratio for gain in gains], at, xerr=errors, fmt="o", color=SPEED, ecolor=GREY, capsize=3,
        label="measured, with the range of the windows",
    )  # fmt: skip
    promised = [
        (y, row.advice.predicted_gain) for y, row in enumerate(rows) if row.advice and row.advice.predicted_gain
    ]
    if promised:
        heights, bounds = zip(*promised, strict=True)
        axes.scatter(bounds, heights, marker="|", s=420, linewidths=3, color=PROMISE, label="predicted, at most")
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yticks(at, [step_label(row.step) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    styled(axes, f"times as fast as the step before: {ladder_title(recorded.ladder)}")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    told = "; ".join(f"{step_label(row.step)} {row.gain}, {row.outcome}" for row in rows)
    return figure, f"Points with ranges, what each step gained over the one before, beside the most predicted. {told}."


def roofline(recorded):
    """How near its roof each kind of operator is: see `roofline`; None where `limit` was not recorded."""
    limit = recorded.limit
    if limit is None:
        return None
    told = "; ".join(
        f"{group.name} {of_roof(limit, group):.0%} of its roof" for group in limit.groups if of_roof(limit, group)
    )
    return roofline_figure(limit), f"FLOP/s over FLOPs a byte on logarithmic axes, under the measured roofs. {told}."


def ablation(recorded):
    """What each optimisation brings alone and in the full ladder; None where `ablate` was not recorded."""
    if recorded.ablation is None:
        return None
    beyond = noise_of(recorded.ablation)
    told = "; ".join(
        f"{step_label(effect.optimisation)} {effect_text(effect.alone, beyond)} alone, "
        f"{effect_text(effect.in_full, beyond)} in the full ladder"
        for effect in effects(recorded.ablation)
        if not effect.cannot_act
    )
    return ablation_figure(recorded.ablation), f"Points with ranges on a logarithmic axis, times as fast. {told}."


def sweep(recorded):
    """Images/s for each number of workers and batch size; None where `sweep` was not recorded."""
    if recorded.sweep is None:
        return None
    told = "; ".join(f"{told_setting(cell)} {cell.median:.0f}" for cell in recorded.sweep.measured)
    return sweep_figure(recorded.sweep), f"Heat map of images a second. {told}."


FIGURES = {
    "ladder": ladder,
    "beside_original": beside_original,
    "breakdown": breakdown,
    "memory": memory,
    "idle": idle,
    "predicted": predicted,
    "roofline": roofline,
    "ablation": ablation,
    "sweep": sweep,
}


def per_image_ms(recorded):
    """{step: {role: ms of a mean traced step over its batch}}."""
    return {
        step: {
            role: us / recorded.row(step).result.batch_size / 1e3
            for role, us in summary.steps.mean_breakdown_us.items()
        }
        for step, summary in recorded.summaries.items()
    }


def idle_per_image_ms(recorded):
    """{step: {cause: ms of a mean traced step without a kernel, over its batch}}, for steps with a GPU."""
    return {
        step: {
            cause: us / len(summary.steps.names) / recorded.row(step).result.batch_size / 1e3
            for cause, us in summary.idle[0].causes_us.items()
        }
        for step, summary in recorded.summaries.items()
        if summary.idle
    }


def memory_curve(curve):
    """A `trace.memory.Memory` for a narrow panel: ms since its begin and MB allocated, its highest and lowest kept."""
    known = ~np.isnan(curve.allocated)
    time, allocated = curve.time[known], curve.allocated[known]
    points = thinned(allocated, POINTS)
    return (time[points] - curve.time[0]) / 1e3, allocated[points] / 1e6


def on(colour):
    """Black or white: what can be read on a colour "#rrggbb" (its luminance, weighted as in ITU-R BT.601)."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "white"


def _stacked(parts, colours, title):
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(parts)), layout="constrained")
    axes = figure.subplots()
    used = [name for name in colours if any(values[name] > 0 for values in parts.values())]
    begun = np.zeros(len(parts))
    widest = max(sum(values.values()) for values in parts.values())
    for name in used:
        widths = np.array([values[name] for values in parts.values()])
        axes.barh(range(len(parts)), widths, left=begun, height=0.62, color=colours[name], label=name)
        for y, (left, width) in enumerate(zip(begun, widths, strict=True)):
            if width > 0.07 * widest:
                ink = on(colours[name])
                axes.text(left + width / 2, y, f"{width:.2f}", ha="center", va="center", fontsize=8, color=ink)
        begun += widths
    axes.set_yticks(range(len(parts)), [step_label(step) for step in parts])
    axes.invert_yaxis()
    styled(axes, title)
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _largest(parts):
    """The two largest parts of each bar, in words."""
    said = []
    for step, values in parts.items():
        two = sorted(values.items(), key=lambda part: -part[1])[:2]
        said.append(f"{step_label(step)}: {', '.join(f'{name} {value:.2f}' for name, value in two)}")
    return "; ".join(said)
