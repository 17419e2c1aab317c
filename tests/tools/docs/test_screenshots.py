"""The docs' pictures of TensorBoard: up to date, with captions."""

import re

import pytest
from support import ROOT

from tools.docs import recorded, screenshots
from tools.docs.screenshots import PICTURES, PUBLISHED

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NAMES = [picture.name for picture in PICTURES]


@pytest.fixture(scope="module")
def record():
    return recorded.records()[0]


def test_the_pictures_show_what_is_recorded_and_what_the_samples_are_now(record):
    sums = {sample.file: sample.sha256 for sample in PUBLISHED.values()}
    for picture in PICTURES:
        entry = screenshots.listed()[picture.name]
        if now := screenshots.described(picture, record):
            assert entry == now, "run `make docs-screenshots`"
        else:
            assert entry["traces"] == {PUBLISHED[run].file: sums[PUBLISHED[run].file] for run in picture.runs}


def test_every_picture_is_listed_taken_and_on_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    files = {path.stem: path.stat().st_size for path in screenshots.FOLDER.glob("*.png")}
    assert set(re.findall(r"begin screenshot (\w+) -->", text)) == set(files) == set(NAMES)
    assert list(screenshots.listed()) == NAMES
    assert max(files.values()) <= 250_000
