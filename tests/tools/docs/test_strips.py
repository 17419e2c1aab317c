"""Strips of traces: what a trace that can be checked by hand shows."""

import pytest
from support import ROOT
from support.trace_builder import TraceBuilder

from tools.docs import others, strips
from tools.docs.strips import BINS, COPIES, CPU, KERNELS, LAUNCHES, LOADING, TO_GPU, Cut
from walkthrough.trace.analysis import analyze

pytestmark = pytest.mark.xdist_group("course")
SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"


def test_a_strip_of_the_specimen_has_the_times_that_it_was_written_with():
    specimen = analyze(SPECIMEN)
    shown = strips.stretch(specimen)  # of 1000 us the loader takes 300 and kernels 400
    assert (shown.us, shown.step_us, shown.busy) == (1000, 1000, 0.4)
    assert shown.us_of[LOADING] == 300
    assert sum(shown.lanes[CPU][LOADING]) / BINS == pytest.approx(30, abs=1)
    assert sum(map(sum, shown.lanes[KERNELS].values())) / BINS == pytest.approx(40, abs=1)
    assert strips.longest(shown, CPU, LOADING)[1] == pytest.approx(0.3, abs=0.01)
    assert LAUNCHES in strips.stretch(specimen, Cut(launches=True)).lanes
    around = strips.stretch(specimen, Cut(around=TO_GPU, before_ms=0.05, after_ms=0.1))
    assert around.us == pytest.approx(150)
    assert strips.longest(around, COPIES, TO_GPU)[0] == pytest.approx(0.05, abs=0.001)


def test_what_a_timer_without_synchronise_shows_beside_what_the_gpu_does(tmp_path):
    """Two steps of 400 us on the CPU. The GPU needs 900 us for each, and ends the first at 1000, the second at 1900."""
    builder = TraceBuilder()
    for number, begin, gpu in ((3, 0, 100), (4, 500, 1000)):
        builder.step(number, begin, 400)
        builder.launch("forward", begin + 20, 10, gpu, 300, op=builder.op("aten::mm", begin + 10, 90))
        op = builder.op("autograd::engine::evaluate_function: MmBackward0", begin + 150, 150)
        builder.launch("backward", begin + 200, 10, gpu + 300, 500, op=op)
        op = builder.op("Optimizer.step#SGD.step", begin + 320, 50, kind="annotation")
        builder.launch("update", begin + 330, 10, gpu + 800, 100, op=op)
    timers = others.timers(analyze(builder.write(tmp_path / "trace.json")))
    assert timers.first == [150, 150, 70, 1000]
    assert timers.last == [150, 150, 70, 900]
    assert timers.kernels == [300, 500, 100, 950]
    assert timers.queued == 5  # at 830 all six are launched, and only the first has ended
