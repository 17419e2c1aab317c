"""The course's pages: stale ones are named. `make check` looks at those that are committed."""

import re
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from support import NAMES, ROOT

from tools.docs import pages
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import COSTS

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
DOCS = ROOT / "docs"
CHAPTERS = sorted(DOCS.glob("[0-9][0-9]_*.md"))


def read(path):
    return path.read_text(encoding="utf-8")


def test_a_stale_page_a_missing_figure_and_one_that_no_page_shows_are_named_and_written(tmp_path):
    (tmp_path / "figures").mkdir()
    page, current, gone = tmp_path / "page.md", tmp_path / "current.md", tmp_path / "figures" / "gone.svg"
    there, missing = tmp_path / "figures" / "there.svg", tmp_path / "figures" / "missing.svg"
    for path, text in ((page, "old"), (current, "same"), (gone, "<svg/>"), (there, "drawn elsewhere")):
        path.write_text(text)
    course = Course([], figures={"there.svg": Figure, "missing.svg": Figure})
    files = {page: "new", current: "same"}
    assert pages.stale(files, course, tmp_path) == sorted(
        [page, missing, gone]
    )  # a figure that is there is not compared
    assert pages.write(files, course, tmp_path) == sorted([page, there, missing, gone])
    assert page.read_text() == "new" and "<svg" in there.read_text()
    assert not gone.exists()
    assert pages.stale(files, course, tmp_path) == []


def test_each_step_has_its_chapter():
    text = "".join(map(read, CHAPTERS))
    for before, step in pairwise(NAMES):
        assert f"<!-- begin diff {before} {step} -->" in text and f"<!-- begin number {step} -->" in text


def test_every_finding_is_defined_on_the_page_of_explain():
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    section = page.partition("### What stands out")[2].partition("\n## ")[0]
    defined = {
        name for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert defined == {cost.finding for cost in COSTS if cost.finding}
