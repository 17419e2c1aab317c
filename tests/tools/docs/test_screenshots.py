"""The docs' pictures of TensorBoard: up to date, with captions."""

import json
import re

import pytest
from support import ROOT

from tools.docs import recorded, screenshots
from tools.docs.screenshots import PICTURES, PUBLISHED

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NAMES = [picture.name for picture in PICTURES]
OF_SAMPLES = [picture.name for picture in PICTURES if picture.of_samples]


@pytest.fixture(scope="module")
def record():
    return recorded.records()[0]


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """The names of the pictures that are taken, none of which is; the list is a copy, with one that has no picture."""
    taken, folder = [], tmp_path / "screenshots"
    folder.mkdir()
    (folder / "gone.png").write_bytes(b"")
    (folder / "made_from.json").write_text(json.dumps({**screenshots.listed(), "memory": {}, "gone": {}}))
    monkeypatch.setattr(screenshots, "FOLDER", folder)
    monkeypatch.setattr(screenshots, "LIST", folder / "made_from.json")
    monkeypatch.setattr(screenshots, "take", lambda pictures, *_: taken.extend(picture.name for picture in pictures))
    return taken


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


def test_where_there_are_no_samples_their_pictures_stay_and_a_line_says_so(taken, tmp_path, monkeypatch, capsys):
    before = screenshots.listed()
    monkeypatch.setattr(screenshots, "SAMPLES", tmp_path / "none")
    monkeypatch.setattr(screenshots.described, "__defaults__", (tmp_path / "none",))
    screenshots.main([])
    assert taken == [name for name in NAMES if name not in OF_SAMPLES]
    assert f"{len(OF_SAMPLES)} pictures of them stay as they are" in capsys.readouterr().out
    after = screenshots.listed()
    assert list(after) == NAMES
    assert {name: after[name] for name in OF_SAMPLES} == {name: before[name] for name in OF_SAMPLES}
    assert after["memory"]["traces"]
    assert not (screenshots.FOLDER / "gone.png").exists()
