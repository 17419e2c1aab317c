"""Markdown for pages: tables, a ladder's table, and text out of files, escaped."""

import re
from collections.abc import Collection, Iterable, Sequence

from walkthrough.compare.columns import GAINS, PAGE, Limit, columns
from walkthrough.compare.rounds import Ladder
from walkthrough.results.errors import printable


def table(headers: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of texts as a Markdown table. headers: a column whose header begins with ">" is right-aligned."""
    rules = ["--:" if header.startswith(">") else "---" for header in headers]
    lines = [_row(header.removeprefix(">") for header in headers), f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(_row(cells) for cells in rows)])


def ladder_table(
    ladder: Ladder,
    limit: Limit | None = None,
    steps: Collection[str] | None = None,
    gains: bool = True,
) -> str:
    """A `rounds.Ladder` as a Markdown table. limit: see `columns.columns`.

    steps: only these rows, by default all. gains: with the columns that compare a step with others.
    """
    by_name = columns(ladder, limit=limit)
    shown = [by_name[name] for name in PAGE if name in by_name and (gains or name not in GAINS)]
    headers = ["step", *(f">{column.header}".replace("\n", " ") for column in shown)]
    rows = [
        [code(row.result.step), *(column.cells[number] for column in shown)]
        for number, row in enumerate(ladder.rows)
        if steps is None or row.result.step in steps
    ]
    return table(headers, rows)


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
