"""A ladder's table in Markdown."""

from collections.abc import Collection

from walkthrough.compare.columns import GAINS, PAGE, Limit, columns
from walkthrough.compare.rounds import Ladder
from walkthrough.compare.table import code as code
from walkthrough.compare.table import escaped as escaped
from walkthrough.compare.table import markdown_table as table


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
