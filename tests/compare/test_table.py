"""Tables: the text of a cell, and the same rows in the terminal, as Markdown and as JSON."""

from dataclasses import asdict

import pytest

from walkthrough.compare.statistics import Mean, Ratio
from walkthrough.compare.table import Table, code, escaped, markdown_table, text

FASTER, SAME = Ratio(1.4, 1.3, 1.5, 3), Ratio(1.02, 0.97, 1.08, 3)
TABLE = Table(
    "programs",
    [
        {"program": "plain", "images/s": 1234.56, "vs\nplain": None, "share": 0.5, "same": True},
        {"program": "a|b [x]", "images/s": "needs a GPU", "vs\nplain": SAME, "share": 0.25, "same": False},
    ],
    ["What [it] was."],
    {"images/s": "{:.1f}", "share": "{:.0%}"},
)


@pytest.mark.parametrize(
    ("cell", "template", "shown"),
    [
        (None, "{:.1f}", "-"), (False, "{:d}", "no"), (128, None, "128"), (128, "{:.1f}", "128.0"),
        (1.23456, None, "1.23"), (44512.3, None, "44512"), (0.000123, None, "0.000123"),
        (0.5, "{:.0%}", "50%"), ("needs a GPU", "{:.1f}", "needs a GPU"),
        ("two\nlines \x1b[31m", None, "two lines \ufffd[31m"),
        (FASTER, None, "1.40x (1.30-1.50)"), (SAME, "{:.1f}", "~1.02x (0.97-1.08)"),
        (asdict(SAME), None, "~1.02x (0.97-1.08)"), (asdict(Mean(0.5, None, None, 1)), None, "0.5"),
        (Mean(0.5, 0.25, 0.75, 3), None, "0.5 (0.25 to 0.75)"),
    ],
)  # fmt: skip
def test_a_cell_is_a_short_text(cell, template, shown):
    assert text(cell, template) == shown


def test_a_table_on_a_page_is_escaped_and_the_same_from_json():
    assert TABLE.markdown(["program", "images/s", "vs\nplain"], as_code=["program"]).splitlines() == [
        "| program | images/s | vs plain |",
        "|---|--:|--:|",
        "| `plain` | 1234.6 | - |",
        "| `a/b [x]` | needs a GPU | ~1.02x (0.97-1.08) |",
        "",
        r"What \[it\] was.",
    ]
    assert markdown_table(["a", ">b"], [["1", r"x\|y"]]).splitlines() == ["| a | b |", "|---|--:|", r"| 1 | x\|y |"]
    assert (escaped("<b>*&"), code("a`b", 2)) == (r"&lt;b>\*&amp;", "`a…`")
    stored = TABLE.as_json()
    assert stored[1]["vs\nplain"] == asdict(SAME)
    assert Table(TABLE.name, stored, TABLE.notes, TABLE.templates).markdown() == TABLE.markdown()
