"""The docs' pictures of TensorBoard: up to date."""

import pytest

from tools.docs import screenshots
from tools.docs.screenshots import PICTURES, PUBLISHED

pytestmark = pytest.mark.xdist_group("course")  # the records are read once


def test_the_pictures_show_what_is_recorded_and_what_the_samples_are_now(course):
    sums = {sample.file: sample.sha256 for sample in PUBLISHED.values()}
    for picture in PICTURES:
        entry = screenshots.listed()[picture.name]
        if now := screenshots.described(picture, course.records[0]):
            assert entry == now, "run `make docs-screenshots`"
        else:
            assert entry["traces"] == {PUBLISHED[run].file: sums[PUBLISHED[run].file] for run in picture.runs}
