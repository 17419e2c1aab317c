"""The numbers of the page about TensorBoard are those of the published traces that it shows."""

import os
from pathlib import Path

import pytest
from support import ROOT

from tools.docs import profiler_tab
from tools.docs.others import traces_in
from walkthrough.records import samples

FOLDER = Path(os.environ.get("WALKTHROUGH_SAMPLES", ROOT / "logs" / "samples"))
pytestmark = pytest.mark.xdist_group("course")


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
