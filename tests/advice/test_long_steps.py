"""Gains are of the program: where far longer steps recur, traced or not, typical steps are only a part of its time."""

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report
from walkthrough.trace.analysis import analyze
from walkthrough.trace.outliers import LongSteps, long_steps

BEFORE, TRACED, AFTER, BEGIN = 19, 3, 11, 21  # steps; the one before the traced ones is the profiler's


def untraced(long=5, longer=4.0, first=1):
    """A recording of steps that take 1 ms without the profiler, and each `long`th of them `longer` ms more."""
    positions = [*range(1, BEFORE + 1), *range(BEGIN + TRACED, BEGIN + TRACED + AFTER)]
    ms = [1 + longer * (step >= first and step % long == 0) for step in positions]
    total = BEGIN + TRACED + AFTER
    return {"untraced_step_ms": ms[:BEFORE], "untraced_after_ms": ms[BEFORE:], "warmup": 20, "total_steps": total}


def cpu(recording, lengths=(2000,) * TRACED):
    """Steps on a CPU, 2 ms with the profiler: 40 % a matrix product, 60 % what could be compiled."""
    builder, begin = TraceBuilder(devices=()), 0
    for number, length in enumerate(lengths):
        builder.step(number, begin, length)
        builder.op("aten::mm", begin, 800)
        builder.op("aten::relu", begin + 800, 1200)
        begin += length
    return with_recording(builder, recording)


def gpu(recording):
    """Steps of 1 ms in which the GPU waits for the launches of 60 kernels of 3 us each."""
    builder = TraceBuilder()
    for begin in range(0, TRACED * 1000, 1000):
        builder.step(begin, begin, 1000)
        for call in range(begin + 20, begin + 920, 15):
            op = builder.op("aten::add", call - 2, 8)
            builder.launch("vectorized_elementwise_kernel", call, 5, call + 10, 3, op=op)
    return with_recording(builder, recording)


def with_recording(builder, recording):
    if recording is not None:
        builder.header["walkthrough"] = recording
    return builder


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def seen(a):
    return long_steps(a.trace, a.steps)


def test_what_recurs_is_weighed_by_all_steps_whose_times_are_known(analysis):
    found = seen(analysis(cpu(untraced())))
    assert (found.count, found.of, found.every, found.traced) == (
        5,
        30,
        5,
        False,
    )  # without the first three, and one after tracing
    assert (found.longer_us, found.share, found.weight) == pytest.approx((4000, 20 / 50, 30 / 50))


def test_every_gain_of_a_cpu_is_weighed(analysis):
    alone, weighed = (analysis(cpu(recording)) for recording in (untraced(longer=0), untraced()))
    gains = [{item.id: item.predicted_gain for item in advise(a).costs} for a in (alone, weighed)]
    assert (gains[0]["compile"], gains[1]["compile"]) == pytest.approx((1 / 0.4, 1 / (1 - 0.6 * 0.6)))
    assert [item["predicted_gain"] for item in report(weighed)["advice"] if item["id"] == "compile"] == [
        pytest.approx(1.5625)
    ]
    assert advise(weighed).advice[0].share_of_step == pytest.approx(0.6)  # of a typical step, as before


def test_every_gain_of_a_gpu_is_weighed_alike(analysis):
    alone, weighed = (advise(analysis(gpu(recording))) for recording in (None, untraced()))

    def saved(gain):
        return gain and pytest.approx(0.6 * (1 - 1 / gain))

    for before, now in zip(alone.costs, weighed.costs, strict=True):
        for name in ("predicted_gain", "estimated_gain", "low_gain"):
            gain = getattr(now, name)
            assert (gain and 1 - 1 / gain) == saved(getattr(before, name)), (now.id, name)
    estimated = {item.id: item.estimated_gain for item in weighed.costs}
    assert max(filter(None, estimated.values())) > 1.2
    assert all(finding.estimated_gain == estimated.get(finding.cost) for finding in weighed.findings)
    assert [item.id for item in alone.advice] == [item.id for item in weighed.advice]
    for before, now in zip(alone.together, weighed.together, strict=True):
        assert 1 - 1 / now.estimated_gain == saved(before.estimated_gain)


def test_what_other_programs_lengthen_is_not_mixed_with_what_recurs(analysis):
    recording = untraced(longer=40.0)
    for step in (5, 10, 16):
        recording["untraced_step_ms"][step] += 3.0
    found = seen(analysis(cpu(recording)))
    assert (found.count, found.every, found.longer_us) == (5, 5, 40_000)


def test_a_single_accident_does_not_hide_what_recurs(analysis):
    recording = untraced()
    recording["untraced_step_ms"][9] += 80.0
    found = seen(analysis(cpu(recording)))
    assert (found.count, found.every) == (5, 5)


def test_long_steps_that_are_most_of_the_time_come_first(analysis):
    recording = untraced(longer=9.0) | {
        "untraced_happenings": [{"step": str(step), "what": "evaluation"} for step in (4, 9, 14, 20, 25)]
    }
    shown = report(analysis(cpu(recording)))
    assert shown["verdict"].startswith("one step in 5 takes 9.0 ms longer, with an evaluation, 60% of the time: see")
    assert shown["bound"].endswith("; gains are of all the time")
    assert shown["long_steps"]["reasons"] == ["evaluation"]
    assert shown["long_steps"]["weight"] == pytest.approx(30 / 75)
    less = report(analysis(cpu(untraced())))["bound"]
    assert "typical steps are 60% of the time, as one step in 5 takes 4.0 ms longer;" in less


def test_a_single_long_step_is_mentioned_and_weighs_nothing(analysis):
    shown = report(analysis(cpu(untraced(long=18, longer=40.0))))
    assert (shown["long_steps"]["count"], shown["long_steps"]["weight"]) == (1, 1.0)
    assert "; 1 of 30 steps takes 40.0 ms longer; gains are of the others; " in shown["verdict"]


def test_the_first_steps_of_a_program_compile_and_allocate(analysis):
    recording = untraced(longer=0) | {"warmup": 3, "untraced_step_ms": [90.0, 80.0]}
    assert seen(analysis(cpu(recording))) == LongSteps(of=TRACED + AFTER - 1)


def test_the_step_after_the_traced_ones_is_the_profilers(analysis):
    recording = untraced(longer=0)
    recording["untraced_after_ms"][0] = recording["untraced_after_ms"][8] = 9.0
    assert seen(analysis(cpu(recording))).count == 1


def test_what_no_untraced_step_tells_the_traced_ones_do(analysis):
    lengths = [2000] * 8
    lengths[4] = 10_000  # the 25th step of the program
    builder = cpu(untraced() | {"untraced_after_ms": [], "total_steps": BEGIN + 8}, lengths)
    begin = 0
    for length in lengths:
        builder.op("autograd::engine::evaluate_function: AddmmBackward0", begin + 1900, 50)
        begin += length
    for number in range(9):
        builder.op("aten::mm", 4 * 2000 + 2000 + number * 500, 400)
    found = seen(analysis(builder))
    assert (found.count, found.every, found.reasons) == (4, 5, ("forward passes",))


@pytest.mark.parametrize("longer", [6.0, 7.2])
def test_what_typical_traced_steps_hold_as_well_is_no_long_step(analysis, longer):
    """Each third step waits for its batch for 6 ms, one of those that are traced too; no two take exactly as long."""
    builder = cpu(untraced(long=3, longer=longer), (2000, 2000, 8000))
    builder.loading(6000, 6000)
    a = analysis(builder)
    assert (a.outliers, seen(a).count) == ([], 0)


@pytest.mark.parametrize(("longest", "weight"), [(4.2, 1.0), (14.2, 31 / 91)])
def test_where_the_cpu_runs_ahead_a_step_that_waits_for_the_gpu_is_not_long(analysis, longest, weight):
    """Each fifth step prints a loss: it waits for the GPU, which takes 1 ms for each of the five."""
    a = analysis(gpu(untraced(longer=0) | {"untraced_step_ms": ([0.2] * 4 + [longest]) * 6, "untraced_after_ms": []}))
    assert seen(a).weight == pytest.approx(weight, abs=0.02)


def test_traced_steps_that_recur_are_weighed_too(analysis):
    lengths = [2000] * 12
    lengths[3] = lengths[7] = lengths[11] = 10_000
    found = seen(analysis(cpu(None, lengths)))
    assert (found.count, found.of, found.every, found.traced) == (3, 11, 4, True)  # the first one may be anything
    assert found.share == pytest.approx(24 / 46)


@pytest.mark.parametrize("ms", [[-1.0, 5.0, 5.0], [1e300] * 9, [0.0] * 9])
def test_times_that_no_program_has_prove_nothing(analysis, ms):
    assert seen(analysis(cpu({"untraced_step_ms": ms, "untraced_after_ms": ms}))).weight == 1


def epochs(total):
    """Of 10 steps of 1 ms, after a first one of an epoch that takes 90 ms longer; without persistent workers."""
    loaders = [{"batch_size": 8, "num_workers": 2}]
    recording = {"untraced_step_ms": [1.0] * 9, "steps_per_epoch": 1, "epoch_step_ms": [91.0, 91.0], "loaders": loaders}
    return recording | ({"total_steps": total} if total else {})


def test_what_epochs_cost_is_bounded_by_how_often_they_begin(analysis):
    gains = [
        next(
            item.predicted_gain
            for item in advise(analysis(cpu(epochs(total)))).costs
            if item.id == "persistent_workers"
        )
        for total in (None, 60)
    ]
    assert gains == pytest.approx([91, (90 + 20) / 20])  # three epochs began in 60 steps


def test_what_epochs_cost_is_of_all_steps_already(analysis):
    recording = untraced() | {"steps_per_epoch": 5, "epoch_step_ms": [5.0] * 6, "loaders": epochs(0)["loaders"]}
    costs = {item.id: item for item in advise(analysis(cpu(recording))).costs}
    assert costs["persistent_workers"].predicted_gain == pytest.approx(9 / 5)
    assert costs["compile"].weight == pytest.approx(0.6)
