"""The README's picture: a real trace with its address and checksum, and a recorded GPU's own trace in its place."""

import hashlib
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from msgspec.structs import asdict
from support import CPU_RECORD, ROOT

from common.course import first_picture, first_trace, others
from common.course.blocks import BLOCKS
from common.course.recorded import RECORDS, Course
from common.ladder.published import PUBLISHED
from common.trace.summary import summarize

pytestmark = pytest.mark.xdist_group("course")
TRACES = ROOT.parent / "shared" / "traces"
SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def of_cpu(course):
    return Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])


def test_a_strip_of_the_specimen_has_the_times_that_it_was_written_with():
    drawn = first_trace.strip(summarize(SPECIMEN))  # of 1000 us the loader takes 300 and kernels 400
    assert drawn.step_ms == pytest.approx(1.0)
    assert all(len(percent) == first_trace.BINS for percent in drawn.rows.values())
    share = {row: sum(percent) / first_trace.BINS for row, percent in drawn.rows.items()}
    assert share["loader"] == pytest.approx(30, abs=1)
    assert share["kernels"] == pytest.approx(40, abs=1)
    assert drawn.busy == pytest.approx(0.4)


def test_a_trace_without_a_gpu_has_no_rows_of_one(of_cpu):
    recorded = of_cpu.shown
    drawn = first_trace.strip(recorded.summaries["00_baseline"])
    assert set(drawn.rows) == {"loader", "CPU"}
    assert drawn.busy is None


def test_the_published_strips_are_what_their_traces_give():
    kept = first_trace.read()
    pair = others.read().pairs[0]
    assert (kept.before.address, kept.before.sha256) == (pair.before.address, pair.before.sha256)
    assert (kept.after.address, kept.after.sha256) == (pair.after.address, pair.after.sha256)
    assert str(kept.gain) == str(pair.prediction.gain)
    if not TRACES.is_dir():
        pytest.skip("the traces are not here")
    files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in TRACES.glob("resnet50*")}
    for old in (kept.before, kept.after):
        new = first_trace.strip(summarize(files[old.sha256]), old.address, old.sha256)
        assert asdict(new) == asdict(old), "run `python -m common.course.first_trace FOLDER`"


def test_the_picture_shows_others_trace_as_theirs_until_a_gpu_is_recorded(of_cpu, gpu_course):
    picture, alternative = first_picture.svg(of_cpu), first_picture.alternative_text(of_cpu)
    for text in (picture, alternative):
        assert "PyTorch's published trace, ResNet-50, V100" in text
        assert "busy 55.5%" in text
    assert str(first_trace.read(RECORDS).gain) in alternative
    own = first_picture.svg(gpu_course)
    assert "made-up GPU" in own
    assert "published" not in own
    assert "explain logs/reference/made-up-gpu/00_baseline" in own


def test_the_picture_has_each_step_of_the_ladder_with_its_interval(of_cpu):
    root = ET.fromstring(first_picture.svg(of_cpu))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for row in of_cpu.shown.ladder.rows:
        assert row.result.step.replace("_", " ") in texts
    assert any(text.startswith("lines: 95 % interval") for text in texts)
    assert all(float(text.get("font-size")) >= 12 for text in root.iter(f"{SVG}text"))


def test_without_any_trace_of_a_gpu_the_picture_is_the_ladder(of_cpu, monkeypatch):
    monkeypatch.setattr(first_trace, "read", lambda root: None)
    assert first_picture.example(of_cpu) is None
    assert "explain" not in first_picture.svg(of_cpu)


def test_the_results_have_a_row_for_each_machine_and_one_marked_as_others(gpu_course):
    course = replace(gpu_course, to_logs="logs/reference")
    rows = BLOCKS["results"](course).splitlines()[2:]
    assert len(rows) == len(course.records) + 1
    assert rows[0].startswith("| made-up GPU |")
    assert "(logs/reference/made-up-gpu/README.md)" in rows[0]
    for recorded, row in zip(course.records, rows, strict=False):
        assert str(recorded.ladder.rows[-1].relative) in row
    assert "others'" in rows[-1]
    assert f"{PUBLISHED['05_pinned_memory'].relative:.2f}x" in rows[-1]
