"""The docs' pictures of TensorBoard: up to date, with captions; of a GPU's record as soon as there is one."""

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
OF_SAMPLES = [picture.name for picture in PICTURES if picture.samples]
FETCHED = ROOT / "walkthrough" / "records" / "samples.json"
HERE = all((screenshots.SAMPLES / run / sample.file).exists() for run, sample in PUBLISHED.items())


@pytest.fixture(scope="module")
def shown_record():
    return recorded.records()[0]


@pytest.fixture
def samples(tmp_path):
    """A folder with files where the samples would be."""
    for run, sample in PUBLISHED.items():
        (tmp_path / run).mkdir()
        (tmp_path / run / sample.file).write_bytes(run.encode())
    return tmp_path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of pictures in place of the docs' own, with an old list and a picture that is not in it any more."""
    folder = tmp_path / "screenshots"
    folder.mkdir()
    (folder / "gone.png").write_bytes(b"")
    listed = {**screenshots.listed(), "ladder": {}, "gone": {}}
    (folder / "made_from.json").write_text(json.dumps(listed), encoding="utf-8")
    monkeypatch.setattr(screenshots, "FOLDER", folder)
    monkeypatch.setattr(screenshots, "LIST", folder / "made_from.json")
    return folder


@pytest.fixture
def taken(monkeypatch):
    """The names of the pictures that are taken, none of which is."""
    taken = []
    monkeypatch.setattr(screenshots, "take", lambda pictures, *_: taken.extend(picture.name for picture in pictures))
    return taken


def test_the_pictures_of_the_record_show_what_is_recorded_now(shown_record, tmp_path):
    now = screenshots.shown(shown_record, tmp_path)
    assert now
    assert {name: screenshots.listed()[name] for name in now} == now, "run `make docs-screenshots`"


@pytest.mark.skipif(not HERE, reason="no samples here: python -m walkthrough samples fetches them")
def test_the_pictures_of_samples_show_the_files_that_are_there(shown_record):
    assert screenshots.listed() == screenshots.shown(shown_record), "run `make docs-screenshots`"


@pytest.mark.skipif(not FETCHED.exists(), reason="the list of what `python -m walkthrough samples` fetches is not here")
def test_the_pictures_of_samples_show_the_files_that_the_command_fetches():
    fetched = {(entry["file"], entry["sha256"]) for entry in json.loads(FETCHED.read_text(encoding="utf-8"))["samples"]}
    listed = [entry for entry in screenshots.listed().values() if entry["source"]]
    assert {pair for entry in listed for pair in entry["traces"].items()} <= fetched


def test_every_picture_is_listed_taken_and_on_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    files = {path.stem: path.stat().st_size for path in screenshots.FOLDER.glob("*.png")}
    assert set(re.findall(r"begin screenshot (\w+) -->", text)) == set(files) == set(NAMES)
    assert list(screenshots.listed()) == NAMES
    assert max(files.values()) <= 250_000


def test_a_picture_of_samples_names_files_checksums_publisher_source_and_licence(shown_record, samples):
    entry = screenshots.shown(shown_record, samples)["gpu_compare"]
    checksums = {PUBLISHED[run].file: hashlib.sha256(run.encode()).hexdigest() for run in (BEFORE, AFTER)}
    assert entry["traces"] == checksums
    assert entry["caption"].startswith(PUBLISHER)
    assert (entry["source"], entry["licence"]) == (SOURCE, LICENCE)
    assert "WALKTHROUGH, compare" in entry["alt"]


def test_without_the_samples_only_the_record_is_shown(shown_record, tmp_path):
    assert set(screenshots.shown(shown_record, tmp_path)) == set(NAMES) - set(OF_SAMPLES)


def test_once_a_gpu_is_recorded_its_steps_take_the_place_of_the_samples(shown_record, samples, monkeypatch):
    monkeypatch.setattr(type(shown_record), "device_type", "cuda")
    entries = screenshots.shown(shown_record, samples)
    assert list(entries) == NAMES
    before, after = (shown_record.row(step).result.trace for step in ("03_reduced_h2d_copy", "04_multiprocess_loading"))
    assert list(entries["gpu_gap"]["traces"]) == [before]
    assert list(entries["gpu_overview_after"]["traces"]) == [after]
    kept = {picture.name for picture in PICTURES if picture.kept}
    assert {name for name, entry in entries.items() if entry["source"]} == kept
    assert all((PUBLISHER in entry["caption"]) == (name in kept) for name, entry in entries.items())


def test_pictures_from_which_a_page_about_a_view_reads_numbers_are_kept():
    of_views = ("tensorboard.md", "trace_view.md", "gpu_kernel_view.md")
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in of_views)
    names = set(re.findall(r"begin screenshot (\w+) -->", text)) & set(OF_SAMPLES)
    assert names == {picture.name for picture in PICTURES if picture.kept}


def test_where_there_are_no_samples_their_pictures_stay_and_a_line_says_so(
    folder, taken, tmp_path, monkeypatch, capsys
):
    before = screenshots.listed()
    monkeypatch.setattr(screenshots, "SAMPLES", tmp_path / "none")
    screenshots.main([])
    assert taken == [name for name in NAMES if name not in OF_SAMPLES]
    assert f"{len(OF_SAMPLES)} pictures of them stay as they are" in capsys.readouterr().out
    after = screenshots.listed()
    assert list(after) == NAMES
    assert {name: after[name] for name in OF_SAMPLES} == {name: before[name] for name in OF_SAMPLES}
    assert after["ladder"]["traces"]
    assert not (folder / "gone.png").exists()


def test_only_the_pictures_that_are_named_are_taken(folder, taken, samples):
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
    assert "recorded on" in screenshots.markdown("ladder").split("\n\n")[1]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nonsense"], ("no picture 'nonsense'", "gpu_gap")),
        (["--samples", "nowhere"], ("nowhere", "walkthrough samples")),
    ],
)
def test_what_cannot_be_taken_is_refused(words, parts):
    assert_refused(run_program("-m", "tools.docs.screenshots", *words), *parts)
