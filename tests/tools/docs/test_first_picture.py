"""The README's picture: a real trace with its address and checksum, and a recorded GPU's own trace in its place."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from support import CPU_RECORD, ROOT

from tools.docs import first_picture, others, traced
from tools.docs.blocks import BLOCKS
from tools.docs.first_picture import POINT
from tools.docs.recorded import Course
from walkthrough.compare.ladder import PUBLISHED
from walkthrough.trace.analysis import analyze

pytestmark = pytest.mark.xdist_group("course")
SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def of_cpu(course):
    return Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])


def test_a_strip_of_the_specimen_has_the_times_that_it_was_written_with():
    shown = first_picture.of_analysis(analyze(SPECIMEN))  # of 1000 us the loader takes 300 and kernels 400
    assert shown.step_ms == pytest.approx(1.0)
    assert all(len(percents) == traced.BINS for percents in shown.rows.values())
    share = {row: sum(percents) / traced.BINS for row, percents in shown.rows.items()}
    assert share["loading"] == pytest.approx(30, abs=1)
    assert share["GPU"] == pytest.approx(40, abs=1)
    assert shown.step.mean["utilization"] == pytest.approx(0.4)


def test_the_published_gain_is_that_of_the_pair_measured_by_others(of_cpu):
    pair = others.read().pairs[0]
    sampled = traced.read()
    assert [sampled.sha256[name] for name in traced.PAIR] == [pair.before.sha256, pair.after.sha256]
    assert first_picture.example(of_cpu).gain == pair.prediction.gain
    lengths = sorted(sampled.briefs[traced.PAIR[0]].typical_us)
    assert sampled.steps[traced.PAIR[0]].us == lengths[len(lengths) // 2]


def test_the_picture_shows_others_trace_as_theirs_until_a_gpu_is_recorded(of_cpu, gpu_course):
    picture, alternative = first_picture.svg(of_cpu), first_picture.alternative_text(of_cpu)
    for text in (picture, alternative):
        assert "PyTorch's published trace, ResNet-50, V100" in text
        assert "Kernels fill 56% of the step." in text
    assert str(others.read().pairs[0].prediction.gain) in alternative
    own = first_picture.svg(gpu_course)
    assert "made-up GPU" in own
    assert "published" not in own
    assert "explain logs/reference/made-up-gpu/03_reduced_h2d_copy" in own


def test_the_picture_has_each_step_of_the_ladder_with_its_interval(of_cpu):
    svg = first_picture.svg(of_cpu)
    root = ET.fromstring(svg)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for row in of_cpu.shown.ladder.rows:
        assert row.result.step.replace("_", " ") in texts
    assert any(text.startswith("lines: 95 % interval") for text in texts)
    sizes = re.findall(r"font-size: ([\d.]+)px", svg)  # in points
    assert min(float(size) / POINT for size in sizes) >= 12


def test_without_any_trace_of_a_gpu_the_picture_is_the_ladder(of_cpu, monkeypatch):
    monkeypatch.setattr(traced, "read", lambda: None)
    assert first_picture.example(of_cpu) is None
    assert "explain" not in first_picture.svg(of_cpu)


def test_the_results_have_a_row_for_each_machine_and_one_marked_as_others(gpu_course):
    course = replace(gpu_course, to_logs="logs/reference")
    rows = BLOCKS["results"](course).splitlines()[2:]
    assert len(rows) == len(course.records) + 1
    assert rows[0].startswith("| made-up GPU |")
    assert "(logs/reference/made-up-gpu/README.md)" in rows[0]
    for recorded, row in zip(course.records, rows, strict=False):
        gained = [one for one in recorded.ladder.rows if one.gain and one.gain.low > 1]
        assert f"`{gained[-1].result.step}` | {gained[-1].relative}" in row
    assert "others'" in rows[-1]
    assert f"{PUBLISHED['05_pinned_memory'].relative:.2f}x" in rows[-1]
