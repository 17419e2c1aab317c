"""Pictures of boxes, lines and text, as SVG: for what is not a chart. Lengths are in pixels of the picture's own width.

Text and lines follow the reader's light or dark theme; a text in a box is black or white, whichever can be read on it.
"""

from collections.abc import Sequence
from html import escape
from typing import Literal

from common.ladder.figures import GREY, THEME, ink_on

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
TEXT_SIZE = 14.0
CHARACTER = 0.56  # mean width of a character over its text's size, for what has to fit
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


class Picture:
    """An SVG that grows by its methods; `svg` returns its text."""

    def __init__(self, width: float, height: float, description: str) -> None:
        """description: what a screen reader says instead of the picture."""
        self.width, self.height, self._description = width, height, description
        self._parts: list[str] = []

    def text(
        self,
        at: Point,
        words: str,
        size: float = TEXT_SIZE,
        anchor: Anchor = "start",
        colour: str = GREY,
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Words whose base line begins, is centred or ends at a point. GREY: the reader's own text colour."""
        weight = ' font-weight="600"' if bold else ""
        family = " font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\"" if mono else ""
        self._parts.append(
            f'<text x="{_short(at[0])}" y="{_short(at[1])}" font-size="{_short(size)}" text-anchor="{anchor}" '
            f'fill="{_ink(colour)}"{weight}{family} xml:space="preserve">{escape(words, quote=False)}</text>'
        )

    def box(self, left: float, top: float, right: float, bottom: float, colour: str, label: str = "") -> None:
        """A filled box, with a label in its middle. Raises ValueError for a label that is wider than the box."""
        self._parts.append(
            f'<rect x="{_short(left)}" y="{_short(top)}" width="{_short(right - left)}" '
            f'height="{_short(bottom - top)}" rx="2" fill="{_ink(colour)}"/>'
        )
        if label:
            self._label(left, top, right, bottom, label, ink_on(colour))

    def outline(self, left: float, top: float, right: float, bottom: float, label: str = "") -> None:
        """A dashed box without a filling, for a time in which nothing runs. Raises ValueError as `box` does."""
        self._parts.append(
            f'<rect x="{_short(left)}" y="{_short(top)}" width="{_short(right - left)}" '
            f'height="{_short(bottom - top)}" rx="2" fill="none" stroke="currentColor" stroke-dasharray="4 3"/>'
        )
        if label:
            self._label(left, top, right, bottom, label, GREY)

    def _label(self, left: float, top: float, right: float, bottom: float, label: str, colour: str) -> None:
        if len(label) * CHARACTER * TEXT_SIZE > right - left:
            raise ValueError(f"{label!r} is wider than its box of {right - left:.0f} px")
        self.text(((left + right) / 2, (top + bottom) / 2 + 0.35 * TEXT_SIZE), label, anchor="middle", colour=colour)

    def line(self, start: Point, end: Point, colour: str = GREY, width: float = 1, dashes: str = "") -> None:
        """A straight line. dashes: as SVG's stroke-dasharray."""
        self.path([start, end], colour, width, dashes)

    def path(self, points: Sequence[Point], colour: str = GREY, width: float = 1, dashes: str = "") -> None:
        """Straight lines from point to point."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<path d="{_path(points)}" fill="none" stroke="{_ink(colour)}" stroke-width="{_short(width)}"{dashed}/>'
        )

    def area(self, points: Sequence[Point], colour: str) -> None:
        """A filled polygon."""
        self._parts.append(f'<path d="{_path(points)}Z" fill="{_ink(colour)}"/>')

    def arrow(self, start: Point, end: Point) -> None:
        """A horizontal line to the right with a head at its end."""
        self.line(start, end)
        self.area([(end[0] - 7, end[1] - 4), end, (end[0] - 7, end[1] + 4)], GREY)

    def svg(self) -> str:
        """The picture's text: the same each time."""
        size = f"{_short(self.width)} {_short(self.height)}"
        width, height = size.split()
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width}" height="{height}" '
                f'role="img" font-family="{FONT}">',
                f"<title>{escape(self._description, quote=False)}</title>",
                THEME,
                *self._parts,
                "</svg>\n",
            ]
        )


def _ink(colour: str) -> str:
    return "currentColor" if colour == GREY else colour


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _short(number: float) -> str:
    """At most two decimals, so that the last digits of a float do not show."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
