"""What pages say around pictures and tables is true whoever recorded them: others, this project's CPU, or a GPU."""

import re

import pytest
from support import ROOT

from tools.docs import pages, screenshots

pytestmark = pytest.mark.xdist_group("course")
PAGES = sorted((ROOT / "docs").glob("*.md"))
GPU = "made-up GPU"
BLOCK = re.compile(r"<!-- begin .+? -->.*?<!-- end -->\n*", re.DOTALL)
OF_OTHERS = re.compile(r"published trace|\[published\]|\bV100\b|PyTorch's \[?sample|\bthe sample\b", re.IGNORECASE)
OF_A_CPU = re.compile(r"\bon a CPU[^.]*:$|^recorded on a CPU", re.IGNORECASE)


def untrue_beside(text):
    """Paragraphs next to a block of the made-up GPU's record that say it is others', and lead-ins that say a CPU's."""
    found, end = [], 0
    for mark in BLOCK.finditer(text):
        before, after = text[end : mark.start()].strip(), BLOCK.split(text[mark.end() :], maxsplit=1)[0].strip()
        end = mark.end()
        lead_in, next_one = before.rpartition("\n\n")[2], after.partition("\n\n")[0]
        if GPU in mark[0]:
            found += [part for part in (lead_in, next_one) if OF_OTHERS.search(part)]
        if OF_A_CPU.search(lead_in):
            found.append(lead_in)
    return found


@pytest.fixture(scope="module")
def with_a_gpu(gpu_course):
    """The course once a GPU is recorded and the pictures were taken anew, as far as there are files to take them of."""
    with pytest.MonkeyPatch.context() as patch:
        old = screenshots.listed()
        new = {**old, **screenshots.shown(gpu_course.shown, ROOT / "none")}
        patch.setattr(screenshots, "listed", lambda: new)
        yield gpu_course


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_with_a_gpu_recorded_no_page_calls_its_pictures_others_or_a_cpus(page, with_a_gpu):
    text = pages.filled(page.read_text(encoding="utf-8"), with_a_gpu, page.name)
    assert untrue_beside(text) == []


def test_the_pictures_of_chapters_are_the_records_once_there_is_one(with_a_gpu):
    text = pages.filled((ROOT / "docs" / "04_loading.md").read_text(encoding="utf-8"), with_a_gpu)
    for block in (
        "gpu 04_loading",
        "screenshot gpu_gap",
        "screenshot gpu_overview_after",
        "profile 03_reduced_h2d_copy",
    ):
        assert GPU in text.partition(f"<!-- begin {block} -->")[2].partition("<!-- end -->")[0]


@pytest.mark.parametrize(
    ("lead_in", "shows", "untrue"),
    [
        ("PyTorch's published trace:", GPU, True),
        ("PyTorch's published trace:", "PyTorch's published trace", False),
        ("The picture's caption names its source.", GPU, False),
        ("This project's baseline, on a CPU:", "any", True),
        ("On a CPU nothing is copied. Step 04:", GPU, False),
    ],
)
def test_a_lead_in_that_would_be_untrue_is_found(lead_in, shows, untrue):
    text = f"Before.\n\n{lead_in}\n\n<!-- begin gpu x -->\n\n{shows}\n\n<!-- end -->\n\nAfter.\n"
    assert untrue_beside(text) == ([lead_in] if untrue else [])
