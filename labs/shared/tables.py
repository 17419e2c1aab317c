"""A lab's study for people: its tables, its claims and its notes, on a terminal and in pages."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from walkthrough.compare.statistics import Mean
from walkthrough.compare.table import Table
from walkthrough.compare.table import text as cell_text  # noqa: F401

if TYPE_CHECKING:
    from labs.shared.study import Claim, LabStudy, Row

    from rich.console import Console
    from rich.table import Table as RichTable

MOST_ROWS = 40  # of a table that is printed
HOLDS = {True: "holds", False: "does not hold", None: "inconclusive"}


def show(study: "LabStudy", to: "Console") -> None:
    """Print a study to the console `to`: its tables (not those for figures), its claims and its notes. Needs rich."""
    from rich.text import Text

    for name, rows in study.tables.items():
        if rows:
            to.print(Text(f"\n{name.replace('_', ' ')}", "bold"))
            to.print(rich_table(rows) if len(rows) <= MOST_ROWS else f"{len(rows)} rows: in the file, for a figure")
    if study.claims:
        to.print(Text("\nclaims", "bold"))
        to.print(rich_table(claim_rows(study.claims)))
    for note in study.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))


def rich_table(rows: "Sequence[Row]") -> "RichTable":
    """Rows as a table, a column for each key of the first row. Needs rich."""
    return Table("", rows).rich()


def claim_rows(claims: "Sequence[Claim]") -> "list[Row]":
    """Claims as the rows of a table."""
    return [
        {
            "claim": claim.text,
            "measured": None if claim.value is None else asdict(Mean(claim.value, claim.low, claim.high, 0)),
            "verdict": HOLDS[claim.holds],
        }
        for claim in claims
    ]
