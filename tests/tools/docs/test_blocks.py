"""The blocks of the pages: from this project's record of a CPU, from a made-up GPU's, and from broken ones."""

import re
from dataclasses import replace

import pytest
from support import CPU_RECORD, ROOT

from tools.docs import pages, recorded
from tools.docs.blocks import BLOCKS
from tools.docs.recorded import Course
from walkthrough.compare.statistics import of_pairs
from walkthrough.results import result

pytestmark = pytest.mark.xdist_group("course")
DOCS = ROOT / "docs"
GPU = "made-up-gpu"
CAPTIONS = "<!-- begin number 02_bigger_batch -->\n<!-- end -->\n" * 2


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_example_of_pairs_in_chapter_00_is_computed():
    text = page("00_measuring.md")
    rows = re.findall(r"^ +\d +(\d+) +(\d+) +([\d.]+)", text, re.MULTILINE)
    assert [f"{int(after) / int(before):.2f}" for before, after, _ in rows] == [ratio for *_, ratio in rows]
    assert text.count(str(of_pairs([int(after) / int(before) for before, after, _ in rows]))) == 2


def test_a_gpus_record_fills_the_pages_with_the_same_commands(gpu_course):
    assert [shown.folder.name for shown in gpu_course.records] == [GPU, CPU_RECORD]
    blocks = "<!-- begin number 03_reduced_h2d_copy -->\n<!-- end -->\n" * 2
    text = pages.filled(f"{page('04_loading.md')}\n{blocks}", gpu_course)
    assert text.count("*Measured: [made-up GPU](../logs/reference/made-up-gpu/README.md), ") == 1  # the first table
    assert "**1.25x (" in text  # 500 images/s after 400


def test_a_step_without_effect_has_what_it_needs_on_every_page(own_gpu_records):
    needs = {"05_pinned_memory": "a GPU", "06_prefetch_stream": "a GPU", "16_data_parallel": "a second process"}
    for step, need in needs.items():
        for file in ("result.json", "runs/1.json"):
            path = own_gpu_records / GPU / step / file
            result.write_json(path, result.read_json(path) | {"needs": need})
    course = Course(recorded.records(own_gpu_records))
    assert "needs a GPU" in next(row for row in BLOCKS["chapters"](course, "gains").splitlines() if "05_pinned" in row)
    assert "it needs a GPU.**" in BLOCKS["number"](course, "05_pinned_memory")
    number = BLOCKS["number"](course, "07_small_images")  # 800 images/s after 500
    assert "**1.60x (" in number and "| `04_multiprocess_loading` |" in number
    shown = course.shown
    assert len(shown.predictions) == len(shown.ladder.rows) - 1 - len(needs)
    [pair] = [(row.before, row.gain.ratio) for row in shown.predictions if row.step == "07_small_images"]
    assert pair == ("04_multiprocess_loading", pytest.approx(1.6, rel=0.01))


def test_text_out_of_a_record_stays_text(own_gpu_records):
    for path in (own_gpu_records / GPU).glob("*/result.json"):
        notes = ["A <!-- end --> B", "<img src=x>", "[x](../../../etc/hosts)"]
        notes = [f"{path.parent.name} {note}" for note in notes]  # what a run alone notes is on the chapters' pages
        result.write_result(path, replace(result.read_result(path), notes=notes, device="<b>GPU</b> `x`"))
    course = Course(recorded.records(own_gpu_records))
    text = pages.filled(page("00_measuring.md") + CAPTIONS, course)
    assert "The run noted: 02_bigger_batch A &lt;!-- end" in text
    assert pages.filled(text, course) == text
    outside_code = re.sub(r"`[^`\n]*`", "", text)
    assert "<img" not in outside_code
    assert "<b>" not in outside_code
    assert not re.search(r"(?<!\\)\]\(\.\./\.\./\.\./etc", text)


@pytest.mark.parametrize("lab", sorted(path.stem for path in (DOCS / "labs").glob("*.md")))
def test_every_figure_of_a_labs_page_is_drawn_from_its_recorded_tables(lab):
    marks = re.findall(r"<!-- begin figure labs/(.+?) -->", page(f"labs/{lab}.md"))
    course = Course(recorded.records())
    shown = [BLOCKS["figure"](course, *f"labs/{mark}".split()) for mark in marks]
    drawn = [text for text in shown if text != "*No figure: this was not measured.*"]  # as where a record is older
    assert [len(draw().axes) > 0 for draw in course.figures.values()] == [text.startswith("![") for text in drawn]
