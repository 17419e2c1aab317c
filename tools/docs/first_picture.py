"""The README's first picture: a real trace, what `explain` says of it, what the change gained, and the ladder.

The trace is a GPU's: of the record that the chapters show, or, until a GPU has been recorded, one that others published
(see `traced`). The ladder is always this project's own.
"""

from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tools.docs import traced
from tools.docs.others import gain
from tools.docs.real_gpu import CHAPTERS, has_traced_gpu
from tools.docs.recorded import Course
from tools.docs.strips import area
from tools.docs.traced import BINS, CPU, LOADING, Brief, TracedStep
from walkthrough.compare.figures import GREY, UNRESOLVED, colour_of, interval_label, short, step_label, svg_text
from walkthrough.compare.rounds import Comparison
from walkthrough.compare.statistics import Ratio
from walkthrough.explain.text import sentence
from walkthrough.results.errors import printable
from walkthrough.trace.analysis import Analysis

FILE = "first_picture.svg"
WIDTH = 900.0
LEFT_WIDTH, RIGHT_FROM = 500.0, 540.0  # px
NAMES, ROW, ROW_GAP = 78.0, 19.0, 4.0  # px: room for the rows' names, a row's height
LADDER_NAMES, LADDER_VALUES, LADDER_ROW = 176.0, 62.0, 21.0
SMALL, CODE = 13.0, 12.5  # px: of texts
TEXT_SIZE = 14.0
CHARACTER = 0.56  # mean width of a character over its text's size, for what has to fit
PIXELS_PER_INCH = 96.0
POINT = 72 / PIXELS_PER_INCH  # points per pixel
MONOSPACED = 0.6  # width of a character over its text's size
COLOURS = {"loading": "#d55e00", "CPU": "#0072b2", "copies": "#e69f00", "GPU": "#009e73"}
Align = Literal["left", "center", "right"]
Point = tuple[float, float]


class Picture:
    """A picture that grows by its methods, from the left and from the top; `svg` returns it."""

    def __init__(self, width: float, height: float, description: str) -> None:
        """description: what a screen reader says instead of the picture."""
        self._description = description
        self._figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
        self.axes = self._figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def text(
        self,
        at: Point,
        words: str,
        size: float = TEXT_SIZE,
        align: Align = "left",
        colour: str = GREY,
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Words whose base line begins, is centred or ends at a point. GREY: the reader's own text colour."""
        self.axes.text(
            *at,
            words,
            fontsize=size * POINT,
            horizontalalignment=align,
            verticalalignment="baseline",
            color=colour,
            fontweight="bold" if bold else "normal",
            fontfamily="monospace" if mono else "sans-serif",
            parse_math=False,
        )

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        """A filled box."""
        self.add(Rectangle((left, top), right - left, bottom - top, facecolor=colour, linewidth=0))

    def line(self, start: Point, end: Point, width: float = 1, dotted: bool = False) -> None:
        """A straight line."""
        x, y = zip(start, end, strict=True)
        style = (0, (2, 3)) if dotted else "-"
        self.add(Line2D(x, y, color=GREY, linewidth=width * POINT, linestyle=style, solid_capstyle="butt"))

    def add(self, artist: Artist) -> None:
        """Anything else of matplotlib's."""
        self.axes.add_artist(artist)
        artist.set_clip_on(False)  # a clip path for each would be most of the file

    def svg(self) -> str:
        """The picture's text: the same each time."""
        return svg_text(self._figure, self._description)


@dataclass(frozen=True)
class Trace:
    """One of its steps, and what `explain` says of all."""

    step: TracedStep
    brief: Brief

    @property
    def step_ms(self) -> float:
        return self.step.us / 1e3

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """{row: per cent of each of `BINS` equal parts of the step in which it does anything, int64}."""
        lanes = self.step.lanes
        cpu = lanes[CPU]
        groups = {
            "loading": [cpu[LOADING]] if LOADING in cpu else [],
            "CPU": [percents for group, percents in cpu.items() if group != LOADING],
            "copies": list(lanes[traced.COPIES].values()),
            "GPU": list(lanes[traced.KERNELS].values()),
        }
        return {row: np.array([*parts, [0] * BINS]).sum(axis=0) for row, parts in groups.items()}


def of_analysis(analysis: Analysis) -> Trace:
    """The `Trace` to show of a recorded one."""
    return Trace(traced.traced_step(analysis), traced.brief(analysis))


@dataclass(frozen=True)
class Example:
    """A trace before and after one change. title: what it is of, and whose; path: as `explain` is given.

    gain: of the change; measured: on what. is_own: recorded with this project, not by others.
    """

    title: str
    path: str
    change: str
    before: Trace
    after: Trace
    gain: Ratio
    measured: str
    is_own: bool


def example(course: Course) -> Example | None:
    """The trace to show: of a recorded GPU, else the published one; None where there is neither."""
    recorded = course.shown
    first, last = CHAPTERS["04_loading"]  # the same batch before and after
    if recorded.device_type != "cuda" or not all(has_traced_gpu(recorded, step) for step in (first, last)):
        return _published()
    before, after = (of_analysis(recorded.analyses[step]) for step in (first, last))
    base = recorded.ladder.baseline
    return Example(
        title=f"recorded with this project, {base.model} on {base.device}",
        path=f"logs/reference/{recorded.folder.name}/{first}",
        change=step_label(last),
        before=before,
        after=after,
        gain=recorded.row(last).gain or recorded.row(last).relative,
        measured="timed without the profiler",
        is_own=True,
    )


def _published() -> Example | None:
    sampled = traced.read()
    if sampled is None:
        return None
    before, after = (Trace(sampled.steps[name], sampled.briefs[name]) for name in traced.PAIR)
    return Example(
        title=traced.PUBLISHER,
        path=f"logs/samples/{traced.PAIR[0]}",
        change="with 4 loader processes",
        before=before,
        after=after,
        gain=gain(before.brief.typical_us, after.brief.typical_us),
        measured=f"typical traced steps; of all, {before.step.mean['step'] / after.step.mean['step']:.2f}x",
        is_own=False,
    )


def alternative_text(course: Course) -> str:
    """What the picture shows, in words."""
    shown, ladder = example(course), course.shown.ladder
    parts = []
    if shown:
        parts.append(
            f"A training step of a real trace ({shown.title}) takes {shown.before.step_ms:.0f} ms. "
            + " ".join(map(sentence, _explain(shown)))
            + f" {shown.change[0].upper()}{shown.change[1:]}: {shown.after.step_ms:.0f} ms, {shown.gain} "
            + f"({shown.measured})."
        )
    last, idle = ladder.acting[-1], len(ladder.rows) - len(ladder.acting)
    parts.append(
        f"The ladder of {len(ladder.rows)} steps on {ladder.baseline.device}, with the {interval_label(ladder)}: "
        f"{step_label(last.result.step)} {last.relative} the baseline."
        + (f" {idle} of them have no effect there." if idle else "")
    )
    return " ".join(parts)


def svg(course: Course) -> str:
    """The picture's text."""
    shown, ladder = example(course), course.shown.ladder
    height = max(106 + LADDER_ROW * len(ladder.rows), 470.0)
    picture = Picture(WIDTH, height, alternative_text(course))
    if shown:
        _draw_example(picture, shown)
        _draw_ladder(picture, ladder, RIGHT_FROM)
    else:
        _draw_ladder(picture, ladder, 0)
    return picture.svg()


def _draw_example(picture: Picture, shown: Example) -> None:
    picture.text((0, 18), "1  A real trace", 16, bold=True)
    picture.text((0, 37), shown.title, SMALL)
    scale = (LEFT_WIDTH - NAMES) / max(shown.before.step_ms, shown.after.step_ms)
    top = _draw_strip(picture, shown.before, 47, scale)
    top = _draw_verdict(picture, shown, top + 32)
    picture.text((0, top + 34), "3  The fix, in a new trace", 16, bold=True)
    picture.text((0, top + 53), f"{shown.change}: {shown.gain} ({shown.measured})", SMALL)
    _draw_strip(picture, shown.after, top + 63, scale)


def _draw_verdict(picture: Picture, shown: Example, top: float) -> float:
    """The text of `explain`; returns where it ends."""
    picture.text((0, top + 4), "2  What explain says of it", 16, bold=True)
    lines = [f"$ python -m walkthrough explain {shown.path}"]
    where, *advice = _explain(shown)
    lines += wrap(where, 64)
    for number, line in enumerate(advice):
        lines += wrap(line, 64, initial_indent="   " * (number > 0), subsequent_indent="   ")
    for number, line in enumerate(lines):
        words = line.lstrip().replace("  ", "\u00a0 ")  # an SVG's text has no spaces at its begin, nor two in turn
        left = (len(line) - len(words)) * MONOSPACED * CODE
        picture.text((left, top + 25 + 18 * number), words, CODE, mono=True)
    return top + 25 + 18 * (len(lines) - 1)


def _explain(shown: Example) -> list[str]:
    """The lines of `explain` that the picture repeats."""
    return [printable(line, 200) for line in shown.before.brief.explain]


def _draw_strip(picture: Picture, shown: Trace, top: float, scale: float) -> float:
    """One step, a row for each of its parts, on an axis of ms; returns where it ends."""
    width, rows = shown.step_ms * scale, shown.rows
    edges = np.linspace(NAMES, NAMES + width, BINS + 1)
    for number, (row, percents) in enumerate(rows.items()):
        base = top + (number + 1) * (ROW + ROW_GAP) - ROW_GAP
        picture.text((0, base - 5), row, SMALL)
        picture.line((NAMES, base), (NAMES + width, base), width=0.5)
        picture.add(area(edges, base, -ROW, np.zeros(BINS), percents, COLOURS[row]))
    end = top + len(rows) * (ROW + ROW_GAP)
    picture.line((NAMES + width, top - 2), (NAMES + width, end), dotted=True)
    label = f"{shown.step_ms:.0f} ms"
    room = LEFT_WIDTH - NAMES - width > len(label) * CHARACTER * SMALL + 8
    picture.text(
        (NAMES + width + (5 if room else 0), end - 6 if room else end + 12), label, SMALL, "left" if room else "right"
    )
    picture.text((NAMES, end + 12), "0" if room else "0 ms; a full bar: busy all the time", 12)
    return end + 12


def _draw_ladder(picture: Picture, ladder: Comparison, left: float) -> None:
    """A bar for each step, times the baseline, with its interval."""
    base = ladder.baseline
    cores = "" if base.device_type == "cuda" else f", {base.environment.cores} CPU cores"
    picture.text((left, 18), "The ladder, measured by this project", 16, bold=True)
    picture.text((left, 37), f"times the baseline; {base.device}{cores}", SMALL)
    begin, right = left + LADDER_NAMES, WIDTH - LADDER_VALUES
    most = max(row.relative.ratio for row in ladder.acting)
    reach = min(max(row.relative.high for row in ladder.acting), 1.5 * most)
    scale = (right - begin) / reach
    top = 50.0
    for number, row in enumerate(ladder.rows):
        ratio, middle = row.relative, top + LADDER_ROW * (number + 0.5)
        colour = colour_of(ratio)
        picture.text((left, middle + 4.5), step_label(row.result.step), SMALL)
        if row not in ladder.acting:
            behind = min(begin + scale + 5, WIDTH - len(row.needs) * CHARACTER * 12)  # the dotted line, if it has room
            picture.text((behind, middle + 4.5), row.needs, 12, colour=GREY)
            continue
        picture.box(begin, middle - 7, begin + ratio.ratio * scale, middle + 7, colour)
        low, high = begin + ratio.low * scale, begin + min(ratio.high, reach) * scale
        if ratio.high > ratio.low:
            picture.line((low, middle), (high, middle), width=1.5)
            for end in (low, high):
                picture.line((end, middle - 4), (end, middle + 4), width=1.5)
        resolved = colour != UNRESOLVED
        picture.text((high + 5, middle + 4.5), short(ratio), SMALL, colour=GREY, bold=resolved)
    below = top + LADDER_ROW * len(ladder.rows)
    picture.line((begin + scale, top), (begin + scale, below), dotted=True)
    picture.text((left, below + 18), f"lines: {interval_label(ladder)}", 12)
    picture.text((left, below + 34), "grey, ~: no measurable difference", 12)
