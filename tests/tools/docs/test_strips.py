"""Strips of traces: what a trace that can be checked by hand shows; the kept ones are those of the published traces."""

import os
from pathlib import Path

import numpy as np
import pytest
from support import ROOT
from support.trace_builder import TraceBuilder

from tools.docs import others, strips
from tools.docs.strips import (
    BINS,
    COLLECTIVES,
    COMMUNICATION,
    COPIES,
    CPU,
    KERNELS,
    LAUNCHES,
    LOADING,
    TO_GPU,
    WAITING,
    Cut,
    Stretch,
)
from walkthrough.records import samples
from walkthrough.trace.analysis import analyze

pytestmark = pytest.mark.xdist_group("course")
FOLDER = Path(os.environ.get("WALKTHROUGH_SAMPLES", ROOT / "logs" / "samples"))
SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"


@pytest.fixture(scope="module")
def kept():
    return others.read_samples()


@pytest.fixture(scope="module")
def specimen():
    return analyze(SPECIMEN)


def test_a_strip_of_the_specimen_has_the_times_that_it_was_written_with(specimen):
    shown = strips.stretch(specimen)  # of 1000 us the loader takes 300 and kernels 400
    assert (shown.us, shown.step_us, shown.busy) == (1000, 1000, 0.4)
    assert shown.us_of[LOADING] == 300
    assert sum(shown.lanes[CPU][LOADING]) / BINS == pytest.approx(30, abs=1)
    assert sum(map(sum, shown.lanes[KERNELS].values())) / BINS == pytest.approx(40, abs=1)
    assert strips.longest(shown, CPU, LOADING)[1] == pytest.approx(0.3, abs=0.01)
    with_launches = strips.stretch(specimen, Cut(launches=True))
    assert LAUNCHES in with_launches.lanes
    assert strips.facts(with_launches) == f"1.00 ms, kernels run 40% of it, {with_launches.launches} launches"
    assert with_launches.launches == len(specimen.trace.kernels) / len(specimen.steps.names)
    around = strips.stretch(specimen, Cut(around=TO_GPU, before_ms=0.05, after_ms=0.1))
    assert around.us == pytest.approx(150)
    assert strips.longest(around, COPIES, TO_GPU)[0] == pytest.approx(0.05, abs=0.001)


def test_collectives_in_a_lane_of_their_own_are_shown_while_other_kernels_run(kept):
    shown = kept.stretches["a100_all_reduce"]
    assert COLLECTIVES not in shown.lanes[KERNELS] and set(shown.lanes[COMMUNICATION]) == {COLLECTIVES}
    assert "other kernels than collectives run" in strips.facts(shown)
    at_once = np.sum([*shown.lanes[KERNELS].values(), shown.lanes[COMMUNICATION][COLLECTIVES]], axis=0)
    assert at_once.max() > 150  # per cent: both


def test_the_longest_stretch_of_a_group_and_of_an_idle_lane():
    bins = [0] * BINS
    bins[10:20], bins[40:100] = [100] * 10, [80] * 60
    shown = Stretch("a GPU", "1", BINS * 1e3, BINS * 1e3, {KERNELS: {"x": bins}}, {})
    assert strips.longest(shown, KERNELS, "x") == (40.0, 100.0)
    assert strips.longest(shown, KERNELS) == (100.0, float(BINS))
    assert strips.longest(shown, CPU, "x") == (0.0, 0.0)


def test_what_is_kept_names_its_traces_and_no_lane_is_more_than_full(kept):
    listed = {sample.name: sample.sha256 for sample in samples.read_list().samples}
    assert kept.sha256.items() <= listed.items()
    assert set(kept.stretches) == set(others.STRETCHES)
    for shown in kept.stretches.values():
        for groups in shown.lanes.values():
            total = np.sum(list(groups.values()) or [[0]], axis=0)
            assert total.max() <= 100 + len(groups)  # each is rounded


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no samples in {FOLDER}: `python -m walkthrough samples` fetches them")
def test_what_is_kept_is_what_the_traces_give(kept):
    new = others.compute_samples(others.traces_in(FOLDER))
    assert (new.sha256, new.explain, new.says) == (kept.sha256, kept.explain, kept.says)
    for name, us in new.idle.items():
        assert us == pytest.approx(kept.idle[name], rel=1e-3, abs=0.2)
    assert new.timers == kept.timers
    for name, shown in new.stretches.items():
        old = kept.stretches[name]
        assert (shown.gpu, shown.step) == (old.gpu, old.step)
        assert (shown.us, shown.step_us) == pytest.approx((old.us, old.step_us), abs=0.2)
        assert shown.us_of == pytest.approx(old.us_of, rel=1e-3, abs=0.2)
        for lane, groups in shown.lanes.items():
            assert groups.keys() == old.lanes[lane].keys()
            for group, bins in groups.items():
                assert np.abs(np.array(bins) - old.lanes[lane][group]).max() <= 1


def test_the_work_of_a_trace_is_counted_by_what_it_is(specimen):
    work = others.work(specimen)  # one kernel of 100 us of each kind, and 80 us of the CPU in Optimizer.step
    assert work[strips.CORES] == work[strips.PLAIN] == work["kernels of the optimizer"] == (1, 100)
    assert work[strips.CONVERTING] == (0, 0)
    assert work["Optimizer.step on the CPU"] == (1, 80)


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


def test_of_several_stretches_of_a_group_a_shorter_one_can_be_shown(tmp_path):
    builder = TraceBuilder()
    builder.step(1, 0, 2000)
    builder.launch("k", 0, 5, 10, 1900)
    for at, us in ((100, 200), (700, 500), (1400, 300)):
        builder.add("runtime", "cudaStreamSynchronize", at, us, correlation=-2)
    analysis = analyze(builder.write(tmp_path / "made.pt.trace.json"))
    for longer, us in enumerate((500, 300, 200)):
        shown = strips.stretch(analysis, Cut(around=WAITING, before_ms=0.05, after_ms=0.55, longer=longer))
        assert shown.us_of[WAITING] == us


def test_of_two_waits_that_follow_each_other_both_have_to_go(tmp_path):
    """Three steps of 1100 us: 300 of Python; a kernel of 800, and a copy each way, of which the first one waits."""
    builder = TraceBuilder()
    for number in range(3):
        begin = number * 1100
        builder.step(number, begin, 1100)
        builder.launch("k", begin + 280, 5, begin + 287, 800 - 10 * number)
        for at, us, name in (
            (300, 788, "Memcpy HtoD (Pageable -> Device)"),
            (1091, 5, "Memcpy DtoH (Device -> Pageable)"),
        ):
            builder.copy(begin + at, 2, begin + max(at + 1, 1089), 1, 8, name=name)
            builder.add("runtime", "cudaStreamSynchronize", begin + at + 2, us, correlation=-2)
    analysis = analyze(builder.write(tmp_path / "made.pt.trace.json"))
    us = others.replayed(analysis)
    assert us["those at copies to the GPU"] == pytest.approx(us["none"], rel=0.02)
    assert us["those at copies to the CPU"] == pytest.approx(us["none"], rel=0.02)
    assert us["all"] == pytest.approx((2 * 800 + 1090) / 3, rel=0.02)
