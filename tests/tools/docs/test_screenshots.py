"""The docs' pictures of TensorBoard: up to date, with captions."""

import hashlib
import json
import re

import pytest
from support import ROOT, assert_refused, run_program

from tools.docs import recorded, screenshots
from tools.docs.screenshots import AFTER, BEFORE, LICENCE, PICTURES, PUBLISHED, PUBLISHER, SOURCE

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NAMES = [picture.name for picture in PICTURES]
OF_SAMPLES = [picture.name for picture in PICTURES if picture.of_samples]


@pytest.fixture(scope="module")
def record():
    return recorded.records()[0]


@pytest.fixture
def samples(tmp_path):
    """A folder with files where the samples would be."""
    for run, sample in PUBLISHED.items():
        (tmp_path / run).mkdir()
        (tmp_path / run / sample.file).write_bytes(run.encode())
    return tmp_path


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


def test_a_picture_of_samples_names_files_checksums_publisher_source_and_licence(record, samples):
    [compare] = [picture for picture in PICTURES if picture.name == "gpu_compare"]
    entry = screenshots.described(compare, record, samples)
    assert entry["traces"] == {PUBLISHED[run].file: hashlib.sha256(run.encode()).hexdigest() for run in (BEFORE, AFTER)}
    assert entry["caption"].startswith(PUBLISHER)
    assert (entry["source"], entry["licence"]) == (SOURCE, LICENCE)
    assert "WALKTHROUGH, compare" in entry["alt"]


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


def test_only_the_pictures_that_are_named_are_taken(taken, samples):
    before = screenshots.listed()
    screenshots.main(["gpu_gap", "--samples", str(samples)])
    assert taken == ["gpu_gap"]
    after = screenshots.listed()
    assert after["gpu_gap"] != before["gpu_gap"]
    assert after["memory"] == before["memory"]


def test_a_picture_has_its_caption_below_with_a_link_to_the_publisher():
    image, caption = screenshots.markdown("gpu_gap", "../").split("\n\n")
    assert image.endswith("](../screenshots/gpu_gap.png)")
    assert PUBLISHER in image.partition("](")[0]
    assert caption.startswith(f"*[{PUBLISHER}]({SOURCE})")
    assert "recorded on" in screenshots.markdown("memory").split("\n\n")[1]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nonsense"], ("no picture 'nonsense'", "gpu_gap")),
        (["--samples", "nowhere"], ("nowhere", "walkthrough samples")),
    ],
)
def test_what_cannot_be_taken_is_refused(words, parts):
    assert_refused(run_program("-m", "tools.docs.screenshots", *words), *parts)
