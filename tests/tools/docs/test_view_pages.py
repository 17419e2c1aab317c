"""The numbers of the page about TensorBoard are those of the published traces that it shows."""

import os
from pathlib import Path

import pytest
from support import ROOT

from tools.docs import profiler_tab
from tools.docs.others import traces_in
from tools.docs.screenshots import AFTER, BEFORE, PUBLISHED
from walkthrough.records import samples
from walkthrough.trace.analysis import analyze

FOLDER = Path(os.environ.get("WALKTHROUGH_SAMPLES", ROOT / "logs" / "samples"))
FILES = {run: FOLDER / run / sample.file for run, sample in PUBLISHED.items()}
WORDS = " ".join((ROOT / "docs" / "tensorboard.md").read_text(encoding="utf-8").split())
pytestmark = pytest.mark.xdist_group("course")
needs_samples = pytest.mark.skipif(
    not all(path.exists() for path in FILES.values()),
    reason="no samples here: python -m walkthrough samples fetches them",
)


@pytest.fixture(scope="module")
def before():
    return analyze(FILES[BEFORE])


@pytest.fixture(scope="module")
def after():
    return analyze(FILES[AFTER])


@needs_samples
def test_the_copy_in_the_trace_view_is_the_samples(before):
    copies = before.trace.copies
    assert 1940 in copies.duration
    assert before.all_tables.copies["h2d"].bytes // 6 - 256 == 32 * 3 * 224 * 224 * 4 == 19_267_584
    assert f"19,267,584 bytes in 1.940 ms, {19_267_584 / 1940 / 1e3:.1f} GB/s" in WORDS


@needs_samples
def test_the_shares_in_overview_and_kernel_view_are_the_samples(before):
    [gpu] = before.gpus
    busy, at_work = (f"{share:.1%}".replace("%", "") for share in (gpu.utilization, gpu.sm_efficiency))
    assert f"kernels fill {busy} % of a step" in WORDS
    assert f"Here {at_work} of {busy} %" in WORDS
    assert f"In the sample {before.tensor_cores.eligible_share:.1%} of".replace("%", " %") in WORDS
    assert gpu.tensor_core_share == 0
    assert before.steps.mean_breakdown_us["dataloader"] / before.steps.mean_us == pytest.approx(1 / 3, abs=0.01)


@needs_samples
def test_what_the_tab_compares_are_the_samples(before, after):
    waits = [one.typical.steps.mean_breakdown_us["dataloader"] / 1e3 for one in (before, after)]
    assert "{:.1f} → {:.1f} ms in a typical step".format(*waits) in WORDS
    assert len(after.outliers) == 2


def test_each_wrong_figure_of_the_release_differs_from_the_one_here():
    compared = profiler_tab.read()
    for row in profiler_tab.ROWS:
        assert row.text(compared.release[row.sample]) != row.text(compared.patched[row.sample]), row
    assert profiler_tab.table(compared).count("\n") == len(profiler_tab.ROWS) + 1
    listed = {sample.name: sample.sha256 for sample in samples.read_list().samples}
    assert compared.sha256 == {row.sample: listed[row.sample] for row in profiler_tab.ROWS}


@pytest.mark.long
def test_the_figures_of_the_release_and_those_here_are_what_the_samples_show():
    pytest.importorskip("torch_tb_profiler")
    compared, traces = profiler_tab.read(), traces_in(FOLDER)
    if not set(compared.sha256.values()) <= set(traces):
        pytest.skip("not all samples are here: python -m walkthrough samples fetches them")
    assert profiler_tab.table(profiler_tab.compute(traces)) == profiler_tab.table(compared)
