"""A lab's study for people: its tables, its claims and its notes, on a terminal and in pages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from walkthrough.compare.statistics import Mean, Ratio

if TYPE_CHECKING:
    from labs.shared.study import Claim, LabStudy, Row

    from rich.console import Console
    from rich.table import Table

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


def rich_table(rows: "Sequence[Row]") -> "Table":
    """Rows as a table, a column for each key of the first row; columns of numbers are right-justified. Needs rich."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in rows[0]:
        texts = any(isinstance(row.get(name), str) for row in rows)
        table.add_column(escape(name), justify="left" if texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell_text(row.get(name))) for name in rows[0]))
    return table


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


def cell_text(value: Any) -> str:
    """A value of a row for people: "-" for None, three digits of a number, an interval in parentheses."""
    if isinstance(value, Mapping):
        kind = Ratio if "ratio" in value else Mean
        return str(kind(**value))
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
