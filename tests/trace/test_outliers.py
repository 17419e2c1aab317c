"""Which steps are far longer than the others, and that advice and findings are computed without them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from support.trace_builder import TraceBuilder, analyzed

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report
from walkthrough.trace.outliers import CUT, is_outlier, is_undecided, typical
from walkthrough.trace.steps import ROLES, Steps


def made(durations, role="other"):
    """Steps of these durations, all of one role."""
    end = np.cumsum(durations, dtype=float)
    breakdown = np.zeros((len(ROLES), len(durations)))
    breakdown[ROLES.index(role)] = durations
    start, names, reasons = end - durations, [str(number) for number in range(len(durations))], [()] * len(durations)
    return Steps(names, start, end, start, end, breakdown, "ProfilerStep", True, reasons)


@pytest.mark.parametrize(
    "durations, outlying",
    [
        ([100, 900], []),  # neither of two is the odd one
        ([100, 100, 125], []),
        ([100, 100, 126], [2]),
        ([100, 115, 152], []),
        ([100, 110, 162], [2]),
        ([100, 200, 200], []),  # shorter than the others: nothing to explain
        ([100, 100, 200, 200], []),
        ([182, 126, 127, 123, 163, 124], [0, 4]),
    ],
)
def test_outliers_are_far_from_the_median_step(durations, outlying):
    assert np.flatnonzero(is_outlier(made(durations))).tolist() == outlying


def test_waits_for_the_loader_come_every_so_many_steps_and_are_no_outliers():
    assert not is_outlier(made([100, 100, 100, 100, 400], "dataloader")).any()


@pytest.mark.parametrize("durations, undecided", [([100, 300], False), ([301, 100], True), ([100, 100, 301], False)])
def test_of_two_steps_that_differ_manifold_none_is_the_usual_one(durations, undecided):
    assert is_undecided(made(durations)) is undecided


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12))
def test_more_than_half_of_the_steps_are_typical(durations):
    steps = made(durations)
    assert 2 * len(typical(steps).names) > len(durations)
    assert typical(steps).median_us <= steps.median_us


def steps_with_gaps(*gaps):
    """Training steps of 200 µs, busy for 150 of them, and so much longer each, in Python."""
    builder, begin = TraceBuilder(), 0
    for number, gap in enumerate(gaps):
        builder.step(number, begin, 200 + gap)
        builder.op("AddBackward0", begin, 50)
        builder.launch("k", begin + 30, 10, begin + 50, 150, **{"blocks per SM": 1})
        begin += 200 + gap
    return builder


def test_a_step_with_a_gap_is_named_and_kept_out_of_the_advice():
    result = analyzed(steps_with_gaps(0, 0, 800, 0))
    [outlier] = result.outliers
    assert (outlier.name, outlier.us, outlier.excess_us) == ("2", 1000, 800)
    assert (outlier.role, outlier.role_us, outlier.gap_us, outlier.cause) == ("other", 800, 800, "other")
    assert result.steps.mean_us == report(result)["steps"]["mean_us"] == 400  # over all steps, as the plugin has it
    assert result.typical.steps.names == ["0", "1", "3"]
    assert advise(result).advice[0].share_of_step == approx(50 / 200)  # waiting for launches, in a typical step
    assert "host_python" not in [advice.id for advice in advise(result).advice]


def catching_up(backlog, steps=4, us=1000):
    """Steps that take the CPU 1000 µs each; `us` of kernels follow one another, launched bit by bit.

    When the first one begins, the GPU still has `backlog` µs of what was launched before the trace.
    """
    builder, now = TraceBuilder(), backlog
    builder.events.remove(builder.launch("k", -20, 10, -10, backlog + 10)[0])
    for number in range(steps):
        builder.step(number, 1000 * number, 1000)
        for at in range(1000 * number + 50, 1000 * number + 1000, 100):
            now = max(now, at + 10)
            builder.launch("k", at, 5, now, us / 10, op=builder.op("AddBackward0", at - 10, 20))
            now += us / 10
    return builder


def test_a_first_step_that_is_cut_short_by_earlier_work_is_left_out():
    result = analyzed(catching_up(700, us=200))
    assert result.steps.duration.tolist() == [300, 1000, 1000, 1000]  # from the end of the earlier work
    [outlier] = result.outliers
    assert (outlier.name, outlier.reasons, outlier.excess_us) == ("0", (CUT,), -700)
    assert (result.steps.mean_us, result.typical.steps.mean_us) == (825, 1000)
    assert "outlier_steps" not in [finding.id for finding in advise(result).findings]
    assert "it takes 300.0 us, 700.0 us less" in report(result)["steps"]["outliers"][0]["why"]
    assert analyzed(catching_up(700, steps=2, us=200)).typical.steps.names == ["1"]


def short_for_itself():
    builder = catching_up(0, us=200)
    builder.events = [e for e in builder.events if e["name"] == "ProfilerStep#0" or e["ts"] < 0 or e["ts"] >= 300]
    mark = next(event for event in builder.events if event["name"] == "ProfilerStep#0")
    mark["ts"], mark["dur"] = 700, 300
    return builder


@pytest.mark.parametrize("builder", [catching_up(700), catching_up(50, us=200), short_for_itself()])
def test_a_first_step_is_not_cut_where_the_gpu_is_behind_in_all_or_in_none(builder):
    result = analyzed(builder)
    assert (result.outliers, result.typical) == ([], result)
