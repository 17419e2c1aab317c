"""Rows of typed cells as a table: in the terminal, as Markdown for pages, as JSON."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from walkthrough.compare.statistics import Mean, Ratio
from walkthrough.results.errors import printable

if TYPE_CHECKING:  # 40 ms to import
    from rich.console import Console
    from rich.table import Table as RichTable

Cell = str | int | float | bool | None | Ratio | Mean
Rows = Sequence[Mapping[str, Any]]  # of `Cell`s; a `Ratio` or `Mean` may also be the dictionary that JSON has of it


@dataclass(frozen=True)
class Table:
    """Rows of cells; the keys of the first row are the columns. A header may have several lines.

    notes: sentences shown below. templates: {column: how its numbers are printed}, as "{:.1f}"; see `text`. Columns
    with a template, and those without any text, are right-aligned.
    """

    name: str
    rows: Rows
    notes: Sequence[str] = ()
    templates: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return [*self.rows[0]] if self.rows else []

    def cells(self, column: str) -> list[str]:
        """The texts of one column, a row each."""
        return [text(row.get(column), self.templates.get(column)) for row in self.rows]

    def texts(self, columns: Sequence[str] | None = None) -> list[list[str]]:
        """The texts of all cells, row by row. columns: only these, in this order; by default all."""
        return [[*row] for row in zip(*map(self.cells, self.columns if columns is None else columns), strict=True)]

    def is_right(self, column: str) -> bool:
        """Whether a column is right-aligned."""
        return column in self.templates or not any(isinstance(row.get(column), str) for row in self.rows)

    def rich(self, columns: Sequence[str] | None = None) -> "RichTable":
        """For a rich console: ratios without a measurable difference dim, long cells in several lines.

        columns: as for `texts`.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        shown = self.columns if columns is None else columns
        for column in shown:
            table.add_column(Text(column), justify="right" if self.is_right(column) else "left", overflow="fold")
        for cells in self.texts(shown):
            table.add_row(*(Text(cell, "dim" if cell.startswith("~") else "") for cell in cells))
        return table

    def show(self, to: "Console") -> None:
        """Print it with its notes to a rich console."""
        from rich.text import Text

        to.print(self.rich())
        for note in self.notes:
            to.print(Text(printable(note), "dim"))

    def markdown(self, columns: Sequence[str] | None = None, as_code: Collection[str] = ()) -> str:
        """For a page, its notes as paragraphs below. columns: as for `texts`. as_code: the columns that hold code."""
        shown = self.columns if columns is None else columns
        headers = [(">" if self.is_right(column) else "") + escaped(column) for column in shown]
        cells = [map(code if column in as_code else escaped, self.cells(column)) for column in shown]
        return "\n\n".join([markdown_table(headers, zip(*cells, strict=True)), *map(escaped, self.notes)])

    def as_json(self) -> list[dict[str, Any]]:
        """The rows with a dictionary for each `Ratio` and `Mean`."""
        return [
            {column: asdict(cell) if isinstance(cell, Ratio | Mean) else cell for column, cell in row.items()}
            for row in self.rows
        ]


def text(cell: Cell | Mapping[str, Any], template: str | None = None) -> str:
    """A cell for people: "~1.02x (0.97-1.08)", "0.31 (0.25 to 0.37)", "yes"; "-" for None.

    template: for a number, as "{:.1f}"; without, a float has three digits, or all before its decimal point.
    """
    if isinstance(cell, Mapping):
        return str(Ratio(**cell) if "ratio" in cell else Mean(**cell))
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if template and not isinstance(cell, str | Ratio | Mean):
        return template.format(cell)
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return printable(cell)


def markdown_table(headers: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of Markdown as a table. headers: a column whose header begins with ">" is right-aligned."""
    rules = ["--:" if header.startswith(">") else "---" for header in headers]
    lines = [_row(header.removeprefix(">") for header in headers), f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(_row(cells) for cells in rows)])


def escaped(text: object) -> str:
    """Text out of a file, for a page: nothing in it acts as HTML, a link or a mark."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", printable(text).replace("&", "&amp;").replace("<", "&lt;"))


def code(text: object, width: int | None = None) -> str:
    """A name out of a file, as code; truncated to `width` characters, if given."""
    return f"`{printable(text, width).replace('`', chr(39)).replace('<!--', '<! --')}`"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", "/", printable(text))  # one that is not escaped would begin another cell
