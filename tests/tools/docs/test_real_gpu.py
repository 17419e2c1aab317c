"""Figures of real GPUs: from others' traces, or from a recorded GPU; and what was computed is up to date."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict
from support import ROOT

from tools.docs import pages, real_gpu, recorded, strips, traced
from tools.docs.blocks import BLOCKS
from tools.docs.others import traces_in
from tools.docs.recorded import Course
from walkthrough.records import samples
from walkthrough.results.errors import InputError

pytestmark = pytest.mark.xdist_group("course")
FOLDER = Path(os.environ.get("WALKTHROUGH_SAMPLES", ROOT / "logs" / "samples"))


@pytest.fixture(scope="module")
def sampled():
    return traced.read()


def test_each_chapter_from_00_to_05_has_a_figure_and_says_whose_traces_it_shows(course):
    drawings = real_gpu.drawings(course)
    assert set(drawings) == {*real_gpu.CHAPTERS, "idle"}
    assert all((ROOT / "docs" / f"{name}.md").exists() for name in real_gpu.CHAPTERS)
    for name, draw in drawings.items():
        drawn = draw()
        assert "published" in drawn.caption
        assert "`python -m walkthrough samples` fetches" in drawn.caption
        assert len(drawn.alt) > 100
        assert ("predicted" in drawn.caption.lower()) == (name not in ("00_measuring", "04_loading", "idle"))
        assert "*" not in drawn.caption


def test_the_pair_shows_what_its_publishers_recorded(sampled):
    before, after = (sampled.steps[f"resnet50_v100_{count}_workers"].mean for count in (0, 4))
    assert before["step"] / 1e3 == pytest.approx(177.6, abs=0.05)
    assert after["step"] / 1e3 == pytest.approx(141.1, abs=0.05)
    assert before["role dataloader"] / 1e3 == pytest.approx(59.3, abs=0.05)
    assert after["role dataloader"] / 1e3 == pytest.approx(1.2, abs=0.05)
    assert before["utilization"] == pytest.approx(0.555, abs=0.0005)
    assert after["utilization"] == pytest.approx(0.703, abs=0.0005)


def test_what_was_computed_names_its_traces_and_no_lane_is_more_than_full(sampled):
    listed = {sample.name: sample.sha256 for sample in samples.read_list().samples}
    assert sampled.sha256.items() <= listed.items()
    assert set(sampled.steps) == set(traced.WANTED)
    for step in sampled.steps.values():
        for groups in step.lanes.values():
            total = np.sum(list(groups.values()) or [[0]], axis=0)
            assert total.max() <= 100 + len(groups)  # each is rounded


def test_what_was_computed_is_what_the_traces_give(sampled):
    if not FOLDER.is_dir():
        pytest.skip(
            f"no samples: `python -m walkthrough samples` fetches them into {FOLDER}, or set WALKTHROUGH_SAMPLES"
        )
    new = traced.compute(traces_in(FOLDER))
    assert (new.sha256, new.explain, new.kernels) == (sampled.sha256, sampled.explain, sampled.kernels)
    assert new.briefs == sampled.briefs
    for name, step in new.steps.items():
        old = sampled.steps[name]
        assert step.mean == pytest.approx(old.mean, rel=1e-4, abs=1e-3)
        assert step.in_stretch == pytest.approx(old.in_stretch, rel=1e-3, abs=0.2)
        assert (step.gpu, step.step, step.us, step.step_us) == (
            old.gpu,
            old.step,
            pytest.approx(old.us, abs=0.2),
            pytest.approx(old.step_us, abs=0.2),
        )
        assert asdict(step)["lanes"].keys() == asdict(old)["lanes"].keys()
        for lane, groups in step.lanes.items():
            assert groups.keys() == old.lanes[lane].keys()
            for group, bins in groups.items():
                assert np.abs(np.array(bins) - old.lanes[lane][group]).max() <= 1


def test_a_recorded_gpu_takes_the_place_of_others_traces(gpu_course):
    drawings = real_gpu.drawings(gpu_course)
    text = BLOCKS["gpu"](gpu_course, "04_loading")
    assert "Recorded on made-up GPU, in `logs/reference/made-up-gpu/`" in text
    assert "`03_reduced_h2d_copy` and one of `04_multiprocess_loading`" in text
    assert "published" not in text
    assert "published" in drawings["idle"]().caption  # no step's: it stays


def test_a_chapter_whose_step_has_no_trace_keeps_the_published_one(own_gpu_records):
    run = own_gpu_records / "made-up-gpu" / "05_pinned_memory"
    for trace in run.glob("*.json.gz"):
        trace.unlink()
    course = Course(recorded.records(own_gpu_records))
    assert "PyTorch's published trace" in BLOCKS["gpu"](course, "05_pinned_memory")
    assert "Recorded on made-up GPU" in BLOCKS["gpu"](course, "04_loading")


def test_the_block_is_a_picture_that_is_generated_and_a_caption(course):
    text = BLOCKS["gpu"](replace(course, to_docs="docs/"), "03_host_to_device_copy")
    file = re.search(r"\]\((\S+)\)\n\n\*PyTorch's published trace, .*\*$", text)
    assert file
    assert file[1] == "docs/figures/gpu/03_host_to_device_copy.svg"
    with pytest.raises(InputError, match="no figure of a GPU named"):
        BLOCKS["gpu"](course, "nothing")


def test_the_page_of_the_samples_lists_all_and_shows_what_explain_says(course):
    page = pages.filled((ROOT / "docs" / "samples.md").read_text(encoding="utf-8"), course)
    for sample in samples.read_list().samples:
        assert f"`{sample.name}`" in page
        assert sample.address in page
    assert " 1  Use DataLoader workers" in page
    with pytest.raises(InputError, match=r"samples\.json"):
        BLOCKS["sample-explained"](course, "nothing")


def test_the_longest_stretch_of_a_group_and_of_an_idle_lane():
    bins = [0] * traced.BINS
    bins[10:20], bins[40:100] = [100] * 10, [80] * 60
    step = traced.TracedStep("a GPU", "1", traced.BINS * 1e3, traced.BINS * 1e3, {traced.KERNELS: {"x": bins}}, {}, {})
    assert strips.longest(step, traced.KERNELS, "x") == (40.0, 100.0)
    assert strips.longest(step, traced.KERNELS) == (100.0, float(traced.BINS))
    assert strips.longest(step, traced.CPU, "x") == (0.0, 0.0)


def test_computing_without_the_traces_is_one_line(tmp_path):
    with pytest.raises(InputError, match="lacks the trace resnet50_v100_0_workers: `python -m walkthrough samples`"):
        traced.compute({})
    with pytest.raises(SystemExit):
        traced.main([str(tmp_path / "none")])
