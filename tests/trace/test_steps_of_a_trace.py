"""Which marks of steps count: of two profilers those of one, and none that was open when the profiler stopped."""

import pytest
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.advice.gains import advise
from walkthrough.trace.analysis import analyze


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def marked(*marks):
    """A CPU's trace with these steps: (number, start, duration)."""
    builder = TraceBuilder(devices=())
    for at in range(0, 500, 10):
        builder.op("aten::mm", at, 8)
    for mark in marks:
        builder.step(*mark)
    return builder


def test_of_two_profilers_marks_the_longest_series_is_used_and_that_is_said(analysis):
    result = analysis(marked((0, 0, 100), (7, 50, 100), (1, 100, 100), (8, 150, 100), (2, 200, 100)))
    assert result.steps.names == ["0", "1", "2"]
    assert result.steps.duration.tolist() == [100, 100, 100]
    [warning] = result.trace.warnings
    assert "3 of 5 marks are used, ProfilerStep#0 to ProfilerStep#2" in warning


def test_marks_inside_a_longer_one_are_a_series_of_their_own(analysis):
    result = analysis(marked((4, 0, 300), (0, 0, 100), (1, 100, 100), (2, 200, 100)))
    assert result.steps.names == ["0", "1", "2"]
    assert len(result.trace.warnings) == 1


def test_a_mark_that_ends_as_one_begins_continues_the_series_of_its_numbers(analysis):
    result = analysis(marked((10, 0, 100), (20, 50, 50), (21, 100, 100), (11, 100, 100), (12, 200, 100)))
    assert result.steps.names == ["10", "11", "12"]


def test_marks_that_overlap_by_a_rounding_are_of_one_profiler(analysis):
    result = analysis(marked((0, 0, 103), (1, 100, 100), (2, 199, 100)))
    assert result.steps.names == ["0", "1", "2"]
    assert result.trace.warnings == []


def test_a_step_that_was_open_when_the_profiler_stopped_is_left_out(analysis):
    builder = marked((0, 0, 100), (1, 100, 100))
    builder.step(2, 200, 300)["args"]["finished"] = False
    result = analysis(builder)
    assert result.steps.names == ["0", "1"]
    [warning] = result.trace.warnings
    assert warning.startswith("ProfilerStep#2 was not over")


def test_without_a_whole_step_the_numbers_stay_and_nothing_is_advised(analysis):
    builder = two_steps()
    builder.events = [event for event in builder.events if event["name"] != "ProfilerStep#4"]
    assert advise(analysis(builder)).advice != []
    next(event for event in builder.events if event["name"] == "ProfilerStep#3")["args"]["finished"] = False
    result = analysis(builder)
    assert (result.steps.names, result.steps.mean_us, result.steps.whole) == (["3"], 1000, False)
    assert (advise(result).advice, advise(result).findings) == ([], [])
    assert advise(result).verdict.startswith("the trace holds no whole step")


@pytest.mark.parametrize("value", [True, "no", None, 1, {"a": [1]}])
def test_any_other_value_says_nothing(analysis, value):
    builder = marked((0, 0, 100), (1, 100, 100))
    builder.events[-1]["args"]["finished"] = value
    result = analysis(builder)
    assert (result.steps.names, result.trace.warnings) == (["0", "1"], [])
