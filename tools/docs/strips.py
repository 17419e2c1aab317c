"""Strips of real time: what CPU, copies and kernels do during a step, two steps under each other on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from tools.docs import traced
from tools.docs.traced import BINS, COPIES, CPU, KERNELS, TracedStep
from walkthrough.compare.figures import GREY, ink_on

COLOURS = {
    traced.LOADING: "#d55e00",
    traced.FORWARD: "#56b4e9",
    traced.BACKWARD: "#0072b2",
    traced.OPTIMIZER: "#cc79a7",
    traced.WAITING: "#999999",
    traced.TO_GPU: "#e69f00",
    traced.OTHER_COPIES: "#f0e442",
    traced.MATRIX_CORES: "#7b3fa0",
    traced.MATRIX_PLAIN: "#009e73",
    traced.OTHER_KERNELS: "#7fceb9",
    traced.COLLECTIVES: "#b39b3e",
}
HEIGHTS = {CPU: 2.0, COPIES: 1.0, KERNELS: 0.0}
THICK = 0.72
ABOVE, BELOW = 2.9, -0.28
LEVEL = 10  # per cent
QUIET, PRESENT = 0.10, 0.5  # of a bin: below, nothing runs there; above, the group does


@dataclass(frozen=True)
class Drawn:
    """A figure, its alternative text, and the line below it: what it is drawn from."""

    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class Note:
    """A call-out: its text, and the stretch that it is about, ms; below: under the kernels, not above the CPU."""

    text: str
    begin: float
    end: float
    below: bool = False


@dataclass(frozen=True)
class Strip:
    """A step to draw. missing: what is in the CPU's lane where the step has none."""

    title: str
    step: TracedStep
    notes: Sequence[Note] = field(default_factory=tuple)
    missing: str = ""


def longest(step: TracedStep, lane: str, group: str | None = None) -> tuple[float, float]:
    """The longest stretch of a group, or of a lane in which nothing runs: its begin and end, ms; (0, 0) for none."""
    groups = step.lanes.get(lane, {})
    if group is None:
        total = sum((np.array(percents) for percents in groups.values()), np.zeros(BINS))
        wanted = total < QUIET * 100
    else:
        wanted = np.array(groups.get(group, np.zeros(BINS))) >= PRESENT * 100
    edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(int), [0]])))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return 0.0, 0.0
    at = int(np.argmax(ends - begins))
    scale = step.us / 1e3 / BINS
    return float(begins[at]) * scale, float(ends[at]) * scale


def draw_strip(axes: Axes, strip: Strip, width_ms: float) -> None:
    """Draw one strip into axes that are `width_ms` wide."""
    edges = np.linspace(0, strip.step.us / 1e3, BINS + 1)
    for lane, bottom in HEIGHTS.items():
        axes.plot([0, edges[-1]], [bottom, bottom], color=GREY, linewidth=0.6)
        base = np.zeros(BINS)
        for group, percents in strip.step.lanes.get(lane, {}).items():
            top = base + np.array(percents)
            axes.add_patch(area(edges, bottom, THICK, base, top, COLOURS[group]))
            base = top
    if strip.missing:
        axes.text(0.01 * width_ms, HEIGHTS[CPU] + 0.25, strip.missing, color=GREY, fontsize=9)
    for note in strip.notes:
        y, side = (BELOW, -1) if note.below else (ABOVE, 1)
        axes.plot(
            [note.begin, note.begin, note.end, note.end],
            [y - 0.12 * side, y, y, y - 0.12 * side],
            color=GREY,
            linewidth=1,
        )
        middle = (note.begin + note.end) / 2
        align = "left" if middle < 0.25 * width_ms else "right" if middle > 0.75 * width_ms else "center"
        x = {"left": note.begin, "center": middle, "right": note.end}[align]
        axes.text(x, y + 0.1 * side, note.text, ha=align, va="bottom" if side > 0 else "top", color=GREY, fontsize=9)
    axes.set_xlim(-0.002 * width_ms, width_ms * 1.01)
    axes.set_ylim(-0.95, 3.75)
    axes.set_yticks([bottom + THICK / 2 for bottom in HEIGHTS.values()], ["CPU", "copies", "GPU kernels"])
    axes.set_title(strip.title, fontsize=10, color=GREY, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.tick_params(colors=GREY, length=0, axis="y")
    axes.tick_params(colors=GREY, axis="x")


def area(edges: np.ndarray, bottom: float, thick: float, low: np.ndarray, high: np.ndarray, colour: str) -> PathPatch:
    """What lies between two step functions, per cent of `thick` above `bottom`: a rectangle for each constant stretch.

    In steps of `LEVEL`, which the eye does not see: neighbours are then alike, and the file is small.
    """
    low, high = (np.rint(np.minimum(percents, 100) / LEVEL) * LEVEL / 100 for percents in (low, high))
    new = np.flatnonzero(np.concatenate([[True], (np.diff(low) != 0) | (np.diff(high) != 0)]))
    last = np.append(new[1:], len(low))
    vertices, codes = [], []
    for begin, end in zip(new.tolist(), last.tolist(), strict=True):
        if high[begin] > low[begin]:
            left, right = edges[begin], edges[end]
            below, above = bottom + thick * low[begin], bottom + thick * high[begin]
            vertices += [(left, below), (right, below), (right, above), (left, above), (left, below)]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return PathPatch(Path(np.array(vertices).reshape(-1, 2), codes or None), facecolor=colour, linewidth=0)


def legend(axes: Axes, strips: Sequence[Strip]) -> None:
    """What the colours of all strips mean, below some axes."""
    used = {group for strip in strips for groups in strip.step.lanes.values() for group in groups}
    patches = [Patch(color=colour, label=group) for group, colour in COLOURS.items() if group in used]
    axes.legend(
        handles=patches,
        loc="upper center",
        bbox_to_anchor=(0.47, -0.3),
        ncols=4,
        frameon=False,
        labelcolor=GREY,
        fontsize=8.5,
    )


def strip_legend(axes: Axes, groups: Sequence[str]) -> None:
    """What some colours mean, in the lower right of a strip, above its axis."""
    axes.set_ylim(bottom=-1.45)
    patches = [Patch(color=COLOURS[group], label=group) for group in groups]
    axes.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1, -0.02),
        ncols=len(patches),
        frameon=False,
        labelcolor=GREY,
        fontsize=8.5,
    )


def strips_figure(strips: Sequence[Strip], unit: str = "ms") -> Figure:
    """Strips under each other on one scale."""
    figure = Figure(figsize=(9, 0.7 + 2.05 * len(strips)), layout="constrained")
    panels = figure.subplots(len(strips), 1, sharex=True, squeeze=False)[:, 0]
    width = max(strip.step.us for strip in strips) / 1e3
    for axes, strip in zip(panels, strips, strict=True):
        draw_strip(axes, strip, width)
    panels[-1].set_xlabel(unit, color=GREY, fontsize=9, labelpad=1)
    legend(panels[-1], strips)
    return figure


def bars(axes: Axes, rows: Sequence[tuple[str, dict[str, float]]], colours: dict[str, str], unit: str) -> None:
    """Stacked bars, one for each (label, {part: value}); a value is in its part where there is room."""
    width = max(sum(parts.values()) for _, parts in rows)
    for y, (_, parts) in enumerate(rows):
        left = 0.0
        for part, value in parts.items():
            axes.barh(y, value, left=left, height=0.6, color=colours[part])
            if value > 0.06 * width:
                ink = ink_on(colours[part])
                axes.text(left + value / 2, y, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=9)
            left += value
        axes.text(left + 0.01 * width, y, f"{left:.1f} {unit}", va="center", color=GREY, fontsize=9)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, width * 1.14)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.tick_params(colors=GREY, length=0, axis="y")
    axes.tick_params(colors=GREY, axis="x")
    patches = [Patch(color=colours[part], label=part) for part in dict.fromkeys(p for _, parts in rows for p in parts)]
    axes.legend(
        handles=patches,
        frameon=False,
        labelcolor=GREY,
        fontsize=8.5,
        loc="upper center",
        bbox_to_anchor=(0.45, -0.14 if len(rows) > 2 else -0.2),
        ncols=4,
    )


def ms(us: float) -> str:
    """Milliseconds with one decimal."""
    return f"{us / 1e3:.1f} ms"


def busy(step: TracedStep) -> float:
    """The share of the stretch in which a kernel runs, 0..1."""
    groups = step.lanes.get(KERNELS, {})
    return sum(step.in_stretch[group] for group in groups) / step.us


def loading_notes(step: TracedStep) -> tuple[Note, ...]:
    """A call-out at the longest wait for a batch, if it is worth one."""
    begin, end = longest(step, CPU, traced.LOADING)
    if end - begin < 0.04 * step.us / 1e3:
        return ()
    return (Note(f"{end - begin:.1f} ms: the loop waits for its next batch", begin, end),)


def wait_ms(step: TracedStep) -> float:
    """The longest wait for a batch, ms."""
    begin, end = longest(step, CPU, traced.LOADING)
    return end - begin


def idle_notes(step: TracedStep) -> tuple[Note, ...]:
    """A call-out at the longest time without a kernel, if it is worth one."""
    begin, end = longest(step, KERNELS)
    if end - begin < 0.04 * step.us / 1e3:
        return ()
    return (Note(f"no kernel for {end - begin:.1f} ms: the GPU is idle", begin, end, below=True),)
