"""Which marks of steps count: of two profilers or processes those of one, none that was open when the profiler stopped.

Without any, the rounds of the training loop.
"""

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


SGD, ADAM = "Optimizer.step#SGD.step", "Optimizer.step#Adam.step"


def rounds(count, *names, loading=True, backward=True):
    """A training loop without marks of steps; each round of 1000 µs waits for a batch, then runs these operators.

    A kernel of 150 µs for each; before an optimizer, which takes 100 µs, a backward pass.
    """
    builder = TraceBuilder()
    for begin in range(0, 1000 * count, 1000):
        if loading:
            builder.loading(begin, 50)
        for at, name in enumerate(names):
            now = begin + 100 + 200 * at
            if backward and name.startswith("Optimizer"):
                builder.op("AddBackward0", now - 40, 30)
            builder.launch("k", now + 10, 5, now + 20, 150, op=builder.op(name, now, 100))
    return builder


def edges(result):
    """Where the marks of the steps begin and end, µs."""
    steps, origin = result.steps, result.trace.origin
    return [*(steps.cpu_start + origin).tolist(), float(steps.cpu_end[-1] + origin)]


def test_without_marks_a_step_runs_from_one_optimizer_step_to_the_next(analysis):
    result = analysis(rounds(4, "aten::mm", SGD))
    assert (result.steps.names, result.steps.marked_by, result.steps.marked) == (
        ["1", "2", "3"],
        "Optimizer.step",
        True,
    )
    assert edges(result) == [400, 1400, 2400, 3400]
    assert result.steps.duration.tolist() == [
        1000,
        1000,
        1000,
    ]  # from the end of one's kernels to the end of the next's
    assert result.steps.mean_breakdown_us["kernel"] == 300
    assert sum(kernel.count for kernel in result.tables.kernels) == 6  # those of the first round are in no step


def test_without_an_optimizer_a_step_runs_from_one_wait_for_the_loader_to_the_next(analysis):
    builder = rounds(4, "aten::mm")
    builder.loading(4000, 20)  # no operator runs until the next one begins: a new epoch, or a second loader
    builder.loading(4030, 20)
    builder.op("aten::mm", 4100, 100)
    result = analysis(builder)
    assert (result.steps.names, result.steps.marked_by) == (["1", "2", "3", "4"], "DataLoader")
    assert edges(result) == [0, 1000, 2000, 3000, 4000]


@pytest.mark.parametrize("builder", [rounds(2, "aten::mm", SGD), rounds(9, "aten::mm", loading=False)])
def test_where_nothing_marks_three_rounds_the_whole_trace_is_one_step(analysis, builder):
    result = analysis(builder)
    assert (result.steps.names, result.steps.marked_by, result.steps.marked) == (["0"], "", False)


def test_marks_of_the_profiler_come_first(analysis):
    builder = rounds(4, "aten::mm", SGD)
    builder.step(7, 0, 4000)
    assert (analysis(builder).steps.names, analysis(builder).steps.marked_by) == (["7"], "ProfilerStep")


def test_accumulated_gradients_make_the_optimizers_steps_and_not_the_batches(analysis):
    builder = rounds(6, "aten::mm", SGD)
    builder.events = [e for e in builder.events if e["name"] != SGD or e["ts"] // 1000 % 2]
    assert edges(analysis(builder)) == [1400, 3400, 5400]


@pytest.mark.parametrize(
    ("builder", "ends"),
    [
        (rounds(3, SGD, ADAM), [400, 1400, 2400]),
        (rounds(3, SGD, SGD, ADAM), [600, 1600, 2600]),  # the one that steps least marks
        (rounds(3, ADAM, ADAM), [400, 1400, 2400]),  # of one class: one batch, one round
        (rounds(3, ADAM, ADAM, loading=False, backward=False), [200, 400, 1200, 1400, 2200, 2400]),  # nothing tells
    ],
)
def test_several_optimizers_make_one_step_of_a_round(analysis, builder, ends):
    assert edges(analysis(builder)) == ends


def test_optimizers_of_one_class_that_follow_one_backward_pass_are_one(analysis):
    builder = rounds(3, "AddBackward0", ADAM, ADAM, loading=False, backward=False)
    assert edges(analysis(builder)) == [600, 1600, 2600]


def test_optimizers_that_run_inside_the_backward_pass_mark_no_step(analysis):
    builder = rounds(3, ADAM, ADAM)
    for begin in range(0, 3000, 1000):
        builder.op("autograd::engine::evaluate_function: AddBackward0", begin + 60, 400)
    assert analysis(builder).steps.marked_by == "DataLoader"


@pytest.mark.parametrize("offset", [0, 1000])  # of the second rank's ids: some programs that merge leave them alone
def test_of_merged_ranks_one_is_used_with_its_own_work(analysis, offset):
    merged = TraceBuilder(devices=())
    for rank in (0, 1):
        builder = two_steps()
        for event in builder.events:
            event["pid"] += 500 * rank
            event["ts"] += 330 * rank
            if "correlation" in event["args"]:
                event["args"]["correlation"] += offset * rank
        merged.events += builder.events
    alone, result = analysis(two_steps()), analysis(merged)
    assert result.steps.mean_breakdown_us == alone.steps.mean_breakdown_us
    assert result.tables.kernels == alone.tables.kernels
    assert [gpu.utilization for gpu in result.gpus] == [0.4]
    [warning] = result.trace.warnings
    assert warning.endswith("only process 100 is used")
