"""What is printed: a console, tables, and numbers with their units. rich is imported where it is used."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

SCREEN_WIDTH = 100  # columns of what `explain` prints
LEAST_WIDTH = 60  # columns: narrower terminals wrap its lines themselves
PLAIN_WIDTH = 250  # columns that a table may have where the output is a file or a pipe

HARD_BLANK = "\xa0"  # where no line of a `Page` may end
BOLD, DIM, GREEN, YELLOW = 1, 2, 32, 33  # of ANSI terminals
SIMPLER = str.maketrans("▓▒░·…µ", "#%:-~u")


class _Trimmed(io.TextIOBase):
    """Writes to another text file, without the blanks that tables and indented texts have at the ends of lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    @property
    def encoding(self) -> str:
        return self._file.encoding


def console() -> "Console":
    """A rich console on stdout: sentences wrap at `SCREEN_WIDTH`; tables in a file or a pipe have the width they need.

    Characters that the locale's encoding does not have are printed as "?". A broken pipe is left to the caller.
    """
    from rich.console import Console
    from rich.text import Text

    class OwnConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            if all(isinstance(item, str | Text) for item in objects):
                options.setdefault("width", SCREEN_WIDTH)
            super().print(*objects, **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    terminal = OwnConsole(highlight=False, emoji=False)
    if terminal.is_terminal:
        return terminal
    return OwnConsole(file=cast("IO[str]", _Trimmed(sys.stdout)), highlight=False, emoji=False, width=PLAIN_WIDTH)


def painted(text: str, *codes: int) -> str:
    """The text in a colour or style of ANSI terminals."""
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if codes else text


class Page:
    """Lines of at most `width` columns, in colour or not."""

    def __init__(self, width: int = SCREEN_WIDTH, colour: bool = False) -> None:
        self.width, self.colour, self.lines = width, colour, list[str]()

    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines) + "\n"

    def line(self, text: str = "", *codes: int) -> None:
        """One line; codes: see `painted`."""
        text = text.rstrip()
        self.lines.append(painted(text, *codes) if self.colour and text else text)

    def title(self, text: str) -> None:
        """A title, after an empty line."""
        self.line()
        self.wrapped(text, 0, BOLD)

    def wrapped(self, text: str, indent: int = 2, *codes: int) -> None:
        """A text in as many lines as it needs, each after so many blanks."""
        for line in textwrap.wrap(text, self.width - indent, break_on_hyphens=False):
            self.line(" " * indent + line.replace(HARD_BLANK, " "), *codes)

    def table(self, rows: Iterable[Sequence[str]], justified: str, headed: bool = False) -> None:
        """Rows of cells, the first one a header if `headed`; justified: "l" or "r" for each column."""
        rows = [[*row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, row in enumerate(rows):
            cells = zip(row, widths, justified, strict=True)
            text = "  ".join(cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in cells)
            self.line(f"  {text}", *([DIM] if headed and not number else []))


def screen() -> tuple[int, bool]:
    """The columns that a text on stdout may have, and whether it may have colours."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):  # a pipe, a file, or something without a descriptor
        return SCREEN_WIDTH, False
    colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return min(columns, SCREEN_WIDTH) if columns >= LEAST_WIDTH else SCREEN_WIDTH, colour


def print_text(text: str) -> None:
    """Print a text; characters that the locale's encoding does not have become simpler ones, or "?"."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(SIMPLER).encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def share_text(share: float | None, decimals: int = 1) -> str:
    """A share, 0..1, as per cent, "12.3%"; "-" for None."""
    return "-" if share is None else f"{share:.{decimals}%}"


def size_text(size: float) -> str:
    """Bytes in a suitable unit, decimal."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}" if scale == 1e9 else f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"


def count_text(count: float) -> str:
    """A number of things per step: whole where it is, or where it is large."""
    return f"{count:.0f}" if count >= 100 or abs(count - round(count)) < 0.05 else f"{count:.1f}"


def time_text(us: float) -> str:
    """µs in a suitable unit, with a tenth of a microsecond."""
    if abs(us) < 999.95:  # by what it is rounded to: no "1000.0 us"
        return f"{round(us, 1) + 0.0:.1f} us"  # never "-0.0"
    return f"{us / 1e3:.1f} ms" if abs(us) < 999_950 else f"{us / 1e6:.2f} s"


def rounded_time(us: float) -> str:
    """The same in whole microseconds."""
    return f"{round(us) + 0.0:.0f} us" if abs(us) < 999.5 else time_text(max(us, 1e3))


def counted(count: float, one: str, several: str) -> str:
    """A rounded count with its noun, and what follows that and agrees with it: "1 copy is", "3 copies are"."""
    return f"{count:.0f} {one if f'{count:.0f}' == '1' else several}"


def micro_sign(text: str) -> str:
    """A text with "µs" for the "us" that terminals are given."""
    return re.sub(r"(?<=\d) us\b", " µs", text)
