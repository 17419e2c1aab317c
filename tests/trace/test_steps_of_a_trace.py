"""Which marks of steps count: those of one profiler and process, and whole; without any, rounds of the loop."""

import pytest
from pytest import approx
from support.trace_builder import TraceBuilder, analyzed, two_steps


def marked(*marks):
    """A CPU's trace with these steps: (number, start, duration)."""
    builder = TraceBuilder(devices=())
    for at in range(0, 500, 10):
        builder.op("aten::mm", at, 8)
    for mark in marks:
        builder.step(*mark)
    return builder


@pytest.mark.parametrize(
    ("marks", "names", "warning"),
    [
        (((0, 0, 100), (7, 50, 100), (1, 100, 100), (8, 150, 100), (2, 200, 100)), "012",
         "3 of 5 marks are used, ProfilerStep#0 to ProfilerStep#2"),
        (((4, 0, 300), (0, 0, 100), (1, 100, 100), (2, 200, 100)), "012", "3 of 4 marks are used"),  # one inside
        # one that ends as another begins continues the series of its numbers
        (((3, 0, 100), (7, 50, 50), (8, 100, 100), (4, 100, 100), (5, 200, 100)), "345", "3 of 5 marks are used"),
        (((0, 0, 103), (1, 100, 100), (2, 199, 100)), "012", ""),  # by a rounding
    ],
)  # fmt: skip
def test_of_two_profilers_marks_the_longest_series_is_used_and_that_is_said(marks, names, warning):
    result = analyzed(marked(*marks))
    assert result.steps.names == list(names)
    assert [warning in line for line in result.trace.warnings] == [True] * bool(warning)


def test_a_step_that_was_open_when_the_profiler_stopped_is_left_out():
    builder = marked((0, 0, 100), (1, 100, 100))
    builder.events[-1]["args"]["finished"] = None  # only `false` says so
    builder.step(2, 200, 300)["args"]["finished"] = False
    result = analyzed(builder)
    assert result.steps.names == ["0", "1"]
    [warning] = result.trace.warnings
    assert warning.startswith("ProfilerStep#2 was not over")
    for mark in builder.events[-3:-1]:
        mark["args"]["finished"] = False
    steps = analyzed(builder).steps  # with none that is whole, the numbers stay
    assert (steps.names, steps.mean_us, steps.whole) == (["0", "1", "2"], approx(500 / 3), False)


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


def without(builder, unwanted):
    builder.events = [event for event in builder.events if not unwanted(event)]
    return builder


def two_loaders():
    """In the second round and after the fourth no operator runs until the next wait: a second loader, a new epoch."""
    builder = rounds(4, "aten::mm")
    for at, us in ((1060, 30), (4000, 20), (4030, 20)):
        builder.loading(at, us)
    builder.op("aten::mm", 4100, 100)
    return builder


def inside_the_backward_pass():
    builder = rounds(3, ADAM, ADAM)
    for begin in range(0, 3000, 1000):
        builder.op("autograd::engine::evaluate_function: AddBackward0", begin + 60, 400)
    return builder


def in_odd_round(event):
    return event["ts"] // 1000 % 2 == 1


OPTIMIZER, LOADER = "Optimizer.step", "DataLoader"


@pytest.mark.parametrize(
    ("builder", "marked_by", "edges"),
    [
        (rounds(4, "aten::mm", SGD), OPTIMIZER, [400, 1400, 2400, 3400]),
        (rounds(3, SGD, ADAM), OPTIMIZER, [400, 1400, 2400]),
        (rounds(3, SGD, SGD, ADAM), OPTIMIZER, [600, 1600, 2600]),  # the one that steps least marks
        (rounds(3, ADAM, ADAM), OPTIMIZER, [400, 1400, 2400]),  # of one class: one batch, one round
        (rounds(3, ADAM, ADAM, loading=False, backward=False), OPTIMIZER, [200, 400, 1200, 1400, 2200, 2400]),
        (rounds(3, "AddBackward0", ADAM, ADAM, loading=False, backward=False), OPTIMIZER, [600, 1600, 2600]),
        # gradients are accumulated: the optimizer's steps count, not the batches
        (without(rounds(6, "aten::mm", SGD), lambda e: e["name"] == SGD and not in_odd_round(e)), OPTIMIZER,
         [1400, 3400, 5400]),
        # not with each batch do several optimizers step, so each of them marks one; the last launches too little
        (without(rounds(6, ADAM, ADAM), lambda e: e["name"] == ADAM and in_odd_round(e)), OPTIMIZER,
         [200, 400, 2200, 2400, 4200]),
        (two_loaders(), LOADER, [0, 1000, 2000, 3000, 4000]),
        (inside_the_backward_pass(), LOADER, [0, 1000, 2000]),
    ],
)  # fmt: skip
def test_without_marks_a_step_is_a_round_of_the_training_loop(builder, marked_by, edges):
    result = analyzed(builder)
    steps, origin = result.steps, result.trace.origin
    assert (steps.marked_by, steps.names) == (marked_by, [str(number) for number in range(1, len(edges))])
    assert [*(steps.cpu_start + origin).tolist(), float(steps.cpu_end[-1] + origin)] == edges


def test_a_rounds_kernels_are_its_own():
    result = analyzed(rounds(4, "aten::mm", SGD))
    assert result.steps.duration.tolist() == [1000] * 3  # from the end of one's kernels to the end of the next's
    assert result.steps.mean_breakdown_us["kernel"] == 300
    assert sum(kernel.count for kernel in result.tables.kernels) == 6  # those of the first round are in no step


@pytest.mark.parametrize("builder", [rounds(2, "aten::mm", SGD), rounds(9, "aten::mm", loading=False)])
def test_where_nothing_marks_three_rounds_the_whole_trace_is_one_step(builder):
    steps = analyzed(builder).steps
    assert (steps.names, steps.marked_by, steps.marked) == (["0"], "", False)
    builder.step(7, 0, 4000)  # the profiler's marks come first
    assert (analyzed(builder).steps.names, analyzed(builder).steps.marked_by) == (["7"], "ProfilerStep")


@pytest.mark.parametrize("offset", [0, 1000])  # of the second rank's ids: some programs that merge leave them alone
def test_of_merged_ranks_one_is_used_with_its_own_work(offset):
    merged = TraceBuilder(devices=())
    for rank in (0, 1):
        builder = two_steps()
        for event in builder.events:
            event["pid"] += 500 * rank
            event["ts"] += 330 * rank
            if "correlation" in event["args"]:
                event["args"]["correlation"] += offset * rank
        merged.events += builder.events
    alone, result = analyzed(two_steps()), analyzed(merged)
    assert result.steps.mean_breakdown_us == alone.steps.mean_breakdown_us
    assert result.tables.kernels == alone.tables.kernels
    assert [gpu.utilization for gpu in result.gpus] == [0.4]
    [warning] = result.trace.warnings
    assert warning.endswith("only process 100 is used")


def test_a_process_that_only_waits_for_a_loader_is_no_rank_beside_one_that_marks_steps():
    builder = two_steps()
    for at in range(10_000, 12_000, 100):
        builder.loading(at, 50)["pid"] = 700
    assert analyzed(builder).trace.warnings == []
