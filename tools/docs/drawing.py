"""Pictures of boxes, lines and text, with matplotlib: for what is not a chart. Lengths are in pixels of the picture.

Text and lines follow the reader's light or dark theme; a text in a box is black or white, whichever can be read on it.
"""

from collections.abc import Sequence
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle

from walkthrough.compare.figures import GREY, ink_on, svg_text

TEXT_SIZE = 14.0
CHARACTER = 0.56  # mean width of a character over its text's size, for what has to fit
PIXELS_PER_INCH = 96.0
POINT = 72 / PIXELS_PER_INCH  # points per pixel
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

    def box(self, left: float, top: float, right: float, bottom: float, colour: str, label: str = "") -> None:
        """A filled box, with a label in its middle. Raises ValueError for a label that is wider than the box."""
        self.add(Rectangle((left, top), right - left, bottom - top, facecolor=colour, linewidth=0))
        self._label(left, top, right, bottom, label, ink_on(colour))

    def outline(self, left: float, top: float, right: float, bottom: float, label: str = "") -> None:
        """A dashed box without a filling, for a time in which nothing runs. Raises ValueError as `box` does."""
        style = {"edgecolor": GREY, "linewidth": POINT, "linestyle": (0, (4, 3))}
        self.add(Rectangle((left, top), right - left, bottom - top, fill=False, **style))
        self._label(left, top, right, bottom, label, GREY)

    def _label(self, left: float, top: float, right: float, bottom: float, label: str, colour: str) -> None:
        if len(label) * CHARACTER * TEXT_SIZE > right - left:
            raise ValueError(f"{label!r} is wider than its box of {right - left:.0f} px")
        if label:
            self.text(((left + right) / 2, (top + bottom) / 2 + 0.35 * TEXT_SIZE), label, align="center", colour=colour)

    def line(self, start: Point, end: Point, width: float = 1, dotted: bool = False) -> None:
        """A straight line."""
        x, y = zip(start, end, strict=True)
        style = (0, (2, 3)) if dotted else "-"
        self.add(Line2D(x, y, color=GREY, linewidth=width * POINT, linestyle=style, solid_capstyle="butt"))

    def area(self, points: Sequence[Point], colour: str) -> None:
        """A filled polygon."""
        self.add(Polygon(points, facecolor=colour, linewidth=0))

    def arrow(self, start: Point, end: Point) -> None:
        """A horizontal line to the right with a head at its end."""
        self.line(start, end)
        self.area([(end[0] - 7, end[1] - 4), end, (end[0] - 7, end[1] + 4)], GREY)

    def add(self, artist: Artist) -> None:
        """Anything else of matplotlib's."""
        self.axes.add_artist(artist)
        artist.set_clip_on(False)  # a clip path for each would be most of the file

    def svg(self) -> str:
        """The picture's text: the same each time."""
        return svg_text(self._figure, self._description)
