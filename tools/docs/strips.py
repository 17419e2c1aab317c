"""Strips: what CPU, copies and kernels do in a stretch of any trace, in lanes; of one trace, or of two on one scale.

shown = stretch(analyze(path), Cut(around=TO_GPU))    a few kB, which can be kept instead of the trace
strip(shown, title); before_after(before, after)      matplotlib figures
"""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from msgspec import Struct

from walkthrough.advice.catalogue import COSTS
from walkthrough.advice.gains import Gains
from walkthrough.compare.figures import GREY, in_style, ink_on
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import (
    ATTENTION,
    COLLECTIVE,
    CONVOLUTION,
    LAYOUT,
    MATRIX,
    OPTIMIZER,
    is_compiled,
    uses_tensor_cores,
)
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import stepping_thread
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import is_mark

CPU, LAUNCHES, COPIES, KERNELS = "CPU", "launches", "copies", "GPU kernels"
COMMUNICATION = "collectives' stream"
LOADING, FORWARD, BACKWARD, STEPPING = "DataLoader", "forward", "backward", "optimizer, zero_grad"
WAITING, LAUNCHING, GRAPHS = "waits in a copy or a synchronisation", "kernel launches", "graph launches"
TO_GPU, OTHER_COPIES = "to the GPU", "other copies"
CORES, PLAIN = "matrix work on Tensor Cores", "matrix work without Tensor Cores"
COMPILED, CONVERTING, UPDATING = "compiled by Inductor", "layout conversions", "optimizer's kernels"
COLLECTIVES, OTHERS = "collectives", "other kernels"
COLOURS = {  # of groups: Okabe and Ito's, and some between them; in the order of the legend
    LOADING: "#d55e00",
    FORWARD: "#56b4e9",
    BACKWARD: "#0072b2",
    STEPPING: "#cc79a7",
    WAITING: "#999999",
    LAUNCHING: "#5f6a72",
    GRAPHS: "#d55e00",
    TO_GPU: "#e69f00",
    OTHER_COPIES: "#f0e442",
    CORES: "#7b3fa0",
    PLAIN: "#009e73",
    COMPILED: "#e07b39",
    CONVERTING: "#c0392b",
    UPDATING: "#cc79a7",
    OTHERS: "#7fceb9",
    COLLECTIVES: "#b39b3e",
}
INSIDE = {FORWARD: "forward", BACKWARD: "backward", STEPPING: "optimizer"}  # written on a long stretch of the CPU's
BINS = 360  # a stretch is divided into: about two pixels each
LONG_WAIT = 100.0  # µs
QUIET, PRESENT = 10, 50  # per cent of a bin: below, nothing runs there; above, the group does
WORTH = 0.04  # of a stretch: shorter waits and gaps have no call-out
THICK, LEVEL = 0.72, 10  # of a lane; per cent


class Cut(Struct, frozen=True):
    """What to show of a trace: the typical step of median length, and the steps after it up to `count`.

    first: from the first step on instead. change: a step of the walkthrough, whose change is replayed: the GPU's lanes
    as predicted. around: only the longest stretch of that group, from so many ms before its begin to so many after it.
    longer: so many are longer than the one that is meant. launches: with the lane of launches.
    communication: collectives in a lane of their own, where one also shows while other kernels run.
    """

    change: str = ""
    count: int = 1
    first: bool = False
    around: str = ""
    before_ms: float = 4.0
    after_ms: float = 11.0
    longer: int = 0
    launches: bool = False
    communication: bool = False


class Stretch(Struct, frozen=True):
    """What is drawn, in bins. gpu: its name, "" for none. step: its name. change: see `Cut`.

    us: the length of the stretch, step_us: of the steps in it. lanes: {lane: {group: per cent of each bin}}; groups of
    a lane are disjoint. us_of: µs in the stretch by group. launches: so many calls begin in it, with that lane.
    """

    gpu: str
    step: str
    us: float
    step_us: float
    lanes: dict[str, dict[str, list[int]]]
    us_of: dict[str, float]
    change: str = ""
    launches: int = 0

    @property
    def busy(self) -> float:
        """The share of the stretch in which a kernel runs, 0..1."""
        return sum(self.us_of.get(group, 0.0) for group in self.lanes.get(KERNELS, {})) / self.us


def stretch(analysis: Analysis, cut: Cut = Cut()) -> Stretch:  # noqa: B008 (frozen)
    """A stretch of a trace, as recorded or as replayed. Raises StopIteration for a change that no cost of it has."""
    trace, steps = analysis.trace, analysis.steps
    usual = ~is_outlier(steps)
    by_length = np.argsort(np.where(usual, steps.duration, np.inf), kind="stable")
    index = 0 if cut.first else min(int(by_length[usual.sum() // 2]), len(steps.names) - cut.count)
    begin, length = float(steps.start[index]), float(steps.duration[index : index + cut.count].sum())
    work, count = (trace.kernels, trace.copies), len(trace.kernels) + len(trace.copies)
    start, end = (np.concatenate([getattr(spans, column) for spans in work]) for column in ("start", "end"))
    if cut.change:
        gains = Gains(analysis.typical)
        change = next(gains.change(cost) for cost in COSTS if cost.step == cut.change)
        begins, start, end = gains.replay.timeline(change)
        start, end = start[:count], end[:count]  # those of sets follow
        begin, length = float(begins[index]), float(gains.replay.step_us(change)[index : index + cut.count].sum())
    covers = {} if cut.change else _cpu(analysis, cut.launches)
    covers |= _device(analysis, np.nan_to_num(start), np.nan_to_num(end))  # NaN: it does not run any more
    if cut.communication:
        covers[COMMUNICATION] = {COLLECTIVES: covers[KERNELS].pop(COLLECTIVES)}
    if cut.change == "01_amp":  # what the replay makes faster would run on them
        covers[KERNELS][CORES] |= covers[KERNELS][PLAIN]
        covers[KERNELS][PLAIN] = Cover()
    first, us = begin, length
    if cut.around:
        cover = next(groups[cut.around] for groups in covers.values() if cut.around in groups)
        inside = (cover.start >= begin) & (cover.start < begin + length)
        at = int(np.argsort(np.where(inside, cover.start - cover.end, 1), kind="stable")[cut.longer])
        first, us = float(cover.start[at]) - cut.before_ms * 1e3, (cut.before_ms + cut.after_ms) * 1e3
    calls = trace.runtime.start[trace.calls.launches]
    return Stretch(
        gpu=(analysis.gpus[0].name or "a GPU") if analysis.gpus else "",
        step=steps.names[index],
        us=round(us, 1),
        step_us=round(length, 1),
        lanes={lane: _binned(groups, first, us) for lane, groups in covers.items()},
        us_of={
            group: round(float(part), 1)
            for groups in covers.values()
            for group, part in zip(groups, shares(groups.values(), first, first + us), strict=True)
            if part
        },
        change=cut.change,
        launches=int(((calls >= first) & (calls < first + us)).sum()) if LAUNCHES in covers else 0,
    )


def _cpu(analysis: Analysis, launches: bool) -> dict[str, dict[str, Cover]]:
    trace, phases, calls = analysis.trace, analysis.phases, analysis.trace.calls
    own, marks = trace.operators.thread == stepping_thread(trace), trace.named(trace.operators, is_mark)
    cpu = {
        WAITING: trace.runtime.cover((calls.waits | calls.copies) & (trace.runtime.duration > LONG_WAIT)),
        LOADING: phases.loading,
        STEPPING: phases.per_step,
        BACKWARD: trace.operators.cover(~own & ~marks),
        FORWARD: trace.operators.cover(own & ~marks),
    }
    graphs = calls.launches_graph
    lane = {GRAPHS: trace.runtime.cover(graphs), LAUNCHING: trace.runtime.cover(calls.launches & ~graphs)}
    return {CPU: cpu, LAUNCHES: lane} if launches else {CPU: cpu}


def _device(analysis: Analysis, start: np.ndarray, end: np.ndarray) -> dict[str, dict[str, Cover]]:
    """Copies and kernels by group, from the times of kernels and copies, in turn."""
    group, count, to_gpu = kernel_groups(analysis), len(analysis.trace.kernels), direction(analysis.trace, "h2d")

    def cover(mask: np.ndarray, offset: int) -> Cover:
        at = np.flatnonzero(mask) + offset
        return Cover(start[at], end[at])

    kernels = (CORES, PLAIN, CONVERTING, COMPILED, UPDATING, OTHERS, COLLECTIVES)
    return {
        COPIES: {TO_GPU: cover(to_gpu, count), OTHER_COPIES: cover(~to_gpu, count)},
        KERNELS: {name: cover(group == name, 0) for name in kernels},
    }


def kernel_groups(analysis: Analysis) -> np.ndarray:
    """The group of each kernel, by its name."""
    matrix, group = (
        analysis.of_kind(MATRIX, CONVOLUTION, ATTENTION),
        np.full(len(analysis.trace.kernels), OTHERS, object),
    )
    group[analysis.named(is_compiled)] = COMPILED
    group[matrix] = PLAIN
    group[matrix & analysis.named(uses_tensor_cores)] = CORES
    group[analysis.named(lambda name: re.search(LAYOUT, name.lower()))] = CONVERTING
    group[analysis.of_kind(OPTIMIZER)] = UPDATING
    group[analysis.of_kind(COLLECTIVE)] = COLLECTIVES
    return group


def _binned(groups: Mapping[str, Cover], first: float, us: float) -> dict[str, list[int]]:
    """Per cent of each bin by group; a moment counts for the first group that covers it."""
    edges = first + us * np.arange(BINS + 1) / BINS
    parts = shares(groups.values(), edges[:-1], edges[1:]) / (us / BINS) * 100
    return {name: np.rint(row).astype(int).tolist() for name, row in zip(groups, parts, strict=True) if row.any()}


def longest(shown: Stretch, lane: str, group: str = "") -> tuple[float, float]:
    """The longest stretch of a group, or of a lane in which nothing runs: its begin and end, ms; (0, 0) for none."""
    groups = {name: np.array(percents) for name, percents in shown.lanes.get(lane, {}).items()}
    nothing = np.zeros(BINS)
    wanted = groups.get(group, nothing) >= PRESENT if group else sum(groups.values(), nothing) < QUIET
    edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(int), [0]])))
    if not len(edges):
        return 0.0, 0.0
    at, scale = int(np.argmax(edges[1::2] - edges[::2])), shown.us / 1e3 / BINS
    return float(edges[2 * at]) * scale, float(edges[2 * at + 1]) * scale


def ms(us: float) -> str:
    """Milliseconds: "177.6 ms", below 10 "2.93 ms"."""
    return f"{us / 1e3:.1f} ms" if us >= 1e4 else f"{us / 1e3:.2f} ms"


def facts(shown: Stretch) -> str:
    """A stretch in words: its length, how busy the GPU is, and how many launches it has."""
    parts = [ms(shown.us)]
    if shown.lanes.get(KERNELS):
        apart = COMMUNICATION in shown.lanes
        parts.append(f"{'other kernels than collectives' if apart else 'kernels'} run {shown.busy:.0%} of it")
    if shown.launches:
        parts.append(f"{shown.launches:,} launches")
    return ", ".join(parts)


def kernels_in_words(shown: Stretch) -> str:
    """The kernels of a stretch by group, the longest first: "65.7 ms matrix work without Tensor Cores, …"."""
    parts = sorted(((shown.us_of.get(group, 0.0), group) for group in shown.lanes.get(KERNELS, {})), reverse=True)
    return ", ".join(f"{ms(us)} {group}" for us, group in parts if us >= WORTH / 4 * shown.us)


def strip(shown: Stretch, title: str, says: Sequence[str] = ()) -> Figure:
    """One stretch in lanes. says: lines below it, as a terminal prints them."""
    return _figure([(shown, title)], _wrapped(says))


def before_after(before: tuple[Stretch, str], after: tuple[Stretch, str], says: Sequence[str] = ()) -> Figure:
    """Two stretches with their titles, on one scale. says: lines between them, as a terminal prints them."""
    return _figure([before, after], _wrapped(says))


def _wrapped(says: Sequence[str]) -> list[str]:
    return [part for line in says for part in wrap(line, 96, subsequent_indent="   ")]


@in_style
def _figure(strips: Sequence[tuple[Stretch, str]], says: Sequence[str] = ()) -> Figure:
    lanes = [
        lane
        for lane in (CPU, LAUNCHES, COPIES, KERNELS, COMMUNICATION)
        if any(shown.lanes.get(lane) for shown, _ in strips)
    ]
    heights = [1.0 + 0.36 * len(lanes)] * len(strips)
    if says:
        heights.insert(1, 0.12 + 0.2 * len(says))
    figure = Figure(figsize=(9, 0.75 + sum(heights)))
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    if says:
        text = panels.pop(1)
        text.axis("off")
        words = "\n".join(line.replace("  ", "\u00a0 ") for line in says)  # an SVG's text has no two spaces in turn
        text.text(0, 1, words, va="top", family="monospace", fontsize=9, parse_math=False, in_layout=False)
    width = max(shown.us for shown, _ in strips) / 1e3
    for axes, (shown, title) in zip(panels, strips, strict=True):
        _draw(axes, shown, title, lanes, width)
    panels[-1].set_xlabel("ms", labelpad=1)
    used = {group for shown, _ in strips for groups in shown.lanes.values() for group in groups}
    patches = [Patch(color=colour, label=group) for group, colour in COLOURS.items() if group in used]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def _draw(axes: Axes, shown: Stretch, title: str, lanes: Sequence[str], width: float) -> None:
    """Draw a stretch into axes that are `width` ms wide, a lane above the other."""
    edges = np.linspace(0, shown.us / 1e3, BINS + 1)
    bottoms = {lane: float(len(lanes) - 1 - number) for number, lane in enumerate(lanes)}
    for lane, bottom in bottoms.items():
        axes.plot([0, edges[-1]], [bottom, bottom], color=GREY, linewidth=0.6)
        base = np.zeros(BINS)
        for group, percents in shown.lanes.get(lane, {}).items():
            top = base + np.array(percents)
            axes.add_patch(_area(edges, bottom, base, top, COLOURS[group]))
            base = top
            begin, end = longest(shown, lane, group)
            if group in INSIDE and end - begin > 0.012 * width * len(INSIDE[group]):
                at = ((begin + end) / 2, bottom + THICK / 2)
                axes.text(*at, INSIDE[group], ha="center", va="center", color=ink_on(COLOURS[group]), fontsize=8.5)
    if shown.change:
        axes.text(0.01 * width, bottoms[CPU] + 0.2, "(not drawn: the replay predicts the GPU's work)", **_SMALL)
    begin, end = longest(shown, COPIES, TO_GPU)
    behind = slice(int(end / edges[-1] * BINS) + 1, int((end + 0.2 * width) / edges[-1] * BINS))
    if end > begin and not any(sum(percents[behind]) for percents in shown.lanes[COPIES].values()):
        x, align = (begin - 0.01 * width, "right") if end > 0.8 * width else (end + 0.01 * width, "left")
        words = f"{ms((end - begin) * 1e3)} to the GPU"
        axes.text(x, bottoms[COPIES] + THICK / 2, words, ha=align, va="center", **_SMALL)
    for lane, group, words, y, side in (
        (CPU, LOADING, "the loop waits for its next batch", len(lanes) - 0.1, 1),
        (CPU, WAITING, "the CPU waits for a copy or the GPU", len(lanes) - 0.1, 1),
        (KERNELS, "", "nothing computes" if COMMUNICATION in shown.lanes else "no kernel runs", -0.28, -1),
    ):
        begin, end = longest(shown, lane, group) if shown.lanes.get(lane) else (0, 0)
        if end - begin > WORTH * shown.us / 1e3:
            _call_out(axes, begin, end, f"{ms((end - begin) * 1e3)}: {words}", y, side, width)
    axes.set_xlim(-0.002 * width, width * 1.01)
    axes.set_ylim(-0.95, len(lanes) + 0.6)
    axes.set_yticks([bottom + THICK / 2 for bottom in bottoms.values()], list(bottoms))
    axes.set_title(f"{title}: {facts(shown)}", loc="left")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, axis="y")


_SMALL: dict[str, Any] = {"fontsize": 9}


def _call_out(axes: Axes, begin: float, end: float, words: str, y: float, side: int, width: float) -> None:
    """A bracket over (side 1) or under (-1) what the words are about."""
    axes.plot([begin, begin, end, end], [y - 0.12 * side, y, y, y - 0.12 * side], color=GREY, linewidth=1)
    middle = (begin + end) / 2
    align = "left" if middle < 0.25 * width else "right" if middle > 0.75 * width else "center"
    x = {"left": begin, "center": middle, "right": end}[align]
    axes.text(x, y + 0.1 * side, words, ha=align, va="bottom" if side > 0 else "top", **_SMALL)


def _area(edges: np.ndarray, bottom: float, low: np.ndarray, high: np.ndarray, colour: str) -> PathPatch:
    """What lies between two step functions, per cent of a lane above `bottom`: a rectangle for each constant stretch.

    In steps of `LEVEL`, which the eye does not see: neighbours are then alike, and the file is small.
    """
    low, high = (np.rint(np.minimum(percents, 100) / LEVEL) * LEVEL / 100 for percents in (low, high))
    new = np.flatnonzero(np.concatenate([[True], (np.diff(low) != 0) | (np.diff(high) != 0)]))
    vertices, codes = [], []
    for begin, end in zip(new.tolist(), np.append(new[1:], len(low)).tolist(), strict=True):
        if high[begin] > low[begin]:
            left, right = edges[begin], edges[end]
            below, above = bottom + THICK * low[begin], bottom + THICK * high[begin]
            vertices += [(left, below), (right, below), (right, above), (left, above), (left, below)]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return PathPatch(Path(np.array(vertices).reshape(-1, 2), codes or None), facecolor=colour, linewidth=0)
