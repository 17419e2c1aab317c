"""The log's template, its entry and its commands; the findings that a page defines."""

import re

import pytest
from support import CPU_RECORD, ROOT

from tools.docs.blocks import BLOCKS
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import COSTS

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
DOCS = ROOT / "docs"


def test_the_entry_of_our_machine_is_from_its_record(course, gpu_course):
    cpu = Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])
    words = ("13_compile", "14_compile_loss", "test_a")
    entry = BLOCKS["log-entry"](cpu, *words)
    [prediction] = [row for row in cpu.shown.predictions if row.step == "14_compile_loss"]
    assert f"at most **{prediction.predicted_gain:.2f}x**" in entry
    assert f"**{prediction.gain}** the step before" in entry
    outcomes = {"within": "the gain is within the bound", "miss": "the gain is above the bound"}
    assert "yes: the whole interval is above 1" in entry
    assert outcomes[prediction.outcome] in entry
    not_resolved = next(row for row in cpu.shown.predictions if not row.gain.resolved)
    assert "not decided" in BLOCKS["log-entry"](cpu, not_resolved.before, not_resolved.step, "test_a")
    assert "made-up GPU" in BLOCKS["log-entry"](gpu_course, *words)
    assert "Not recorded" in BLOCKS["log-entry"](cpu, "13_compile", "99_none", "test_a")


def test_every_finding_is_defined_on_the_page_of_explain():
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    section = page.partition("### What stands out")[2].partition("\n## ")[0]
    defined = {
        name for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert defined == {cost.finding for cost in COSTS if cost.finding}
