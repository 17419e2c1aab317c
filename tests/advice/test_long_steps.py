"""Gains are of the program: where far longer steps recur, traced or not, typical steps are only a part of its time."""

import pytest
from pytest import approx
from support.trace_builder import TraceBuilder, analyzed, costs, repeated

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report
from walkthrough.trace.outliers import long_steps

BEFORE, TRACED, AFTER, BEGIN = 19, 3, 11, 21  # steps; the one before the traced ones is the profiler's


def untraced(long=5, longer=4.0, **more):
    """A recording of steps that take 1 ms without the profiler, and each `long`th of them `longer` ms more."""
    positions = [*range(1, BEFORE + 1), *range(BEGIN + TRACED, BEGIN + TRACED + AFTER)]
    ms = [1 + longer * (step % long == 0) for step in positions]
    total = BEGIN + TRACED + AFTER
    return {
        "untraced_step_ms": ms[:BEFORE],
        "untraced_after_ms": ms[BEFORE:],
        "warmup": 20,
        "total_steps": total,
    } | more


def with_recording(builder, recording):
    if recording is not None:
        builder.header["walkthrough"] = recording
    return builder


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

    def add(builder, begin):
        for call in range(begin + 20, begin + 920, 15):
            op = builder.op("aten::add", call - 2, 8)
            builder.launch("vectorized_elementwise_kernel", call, 5, call + 10, 3, op=op)

    return with_recording(repeated(add, steps=TRACED), recording)


def seen(builder):
    a = analyzed(builder)
    return long_steps(a.trace, a.steps)


def test_every_gain_of_a_gpu_is_weighed_alike():
    alone, weighed = (advise(analyzed(gpu(recording))) for recording in (None, untraced()))

    def saved(item, weight):
        gains = [getattr(item, name, None) for name in ("predicted_gain", "estimated_gain", "low_gain")]
        return [gain and weight * (1 - 1 / gain) for gain in gains]

    for before, now in zip([*alone.costs, *alone.together], [*weighed.costs, *weighed.together], strict=True):
        assert saved(now, 1) == [share and approx(share) for share in saved(before, 0.6)], now
    estimated = {item.id: item.estimated_gain for item in weighed.costs}
    assert max(filter(None, estimated.values())) > 1.2
    assert all(finding.estimated_gain == estimated.get(finding.cost) for finding in weighed.findings)
    assert [item.id for item in alone.advice] == [item.id for item in weighed.advice]


def test_long_steps_that_are_most_of_the_time_come_first():
    happenings = [{"step": str(step), "what": "evaluation"} for step in (4, 9, 14, 20, 25)]
    shown = report(analyzed(cpu(untraced(longer=9.0, untraced_happenings=happenings))))
    assert shown["verdict"].startswith("one step in 5 takes 9.0 ms longer, with an evaluation, 60% of the time: see")
    assert shown["bound"].endswith("; gains are of all the time")
    assert (shown["long_steps"]["reasons"], shown["long_steps"]["weight"]) == (["evaluation"], approx(30 / 75))
    less = report(analyzed(cpu(untraced())))["bound"]
    assert "typical steps are 60% of the time, as one step in 5 takes 4.0 ms longer;" in less
    once = report(analyzed(cpu(untraced(long=18, longer=40.0))))
    assert "; 1 of 30 steps takes 40.0 ms longer; gains are of the others; " in once["verdict"]


def test_what_no_untraced_step_tells_the_traced_ones_do():
    lengths = [2000] * 8
    lengths[4] = 10_000  # the 25th step of the program
    builder = cpu(untraced(untraced_after_ms=[], total_steps=BEGIN + 8), lengths)
    for step, length in enumerate(lengths):
        builder.op("autograd::engine::evaluate_function: AddmmBackward0", sum(lengths[:step]) + 1900, 50)
        for at in range(2000, length - 1000, 500):
            builder.op("aten::mm", sum(lengths[:step]) + at, 400)
    found = seen(builder)
    assert (found.count, found.every, found.reasons) == (4, 5, ("forward passes",))


def waiting(longer):
    """Each third step waits for its batch for 6 ms, one of those that are traced too; no two take exactly as long."""
    builder = cpu(untraced(long=3, longer=longer), (2000, 2000, 8000))
    builder.loading(6000, 6000)
    return builder


def printing(longest):
    """Each fifth step prints a loss: it waits for the GPU, which takes 1 ms for each of the five."""
    return gpu(untraced(longer=0, untraced_step_ms=([0.2] * 4 + [longest]) * 6, untraced_after_ms=[]))


def changed(recording, key, **ms):
    """The recording with so many ms more in some of its steps."""
    for step, more in ms.items():
        recording[key][int(step[1:])] += more
    return cpu(recording)


def impossible(*ms):
    return cpu({"untraced_step_ms": list(ms), "untraced_after_ms": list(ms)})


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        # of all steps whose times are known: not 3 at first, nor 1 after tracing
        (cpu(untraced()), {"count": 5, "of": 30, "every": 5, "traced": False, "longer_us": 4000, "weight": 30 / 50}),
        # what other programs lengthen is not mixed with what recurs, and an accident does not hide it
        (changed(untraced(longer=40.0), "untraced_step_ms", s5=3.0, s10=3.0, s16=3.0), {"count": 5, "every": 5}),
        (changed(untraced(), "untraced_step_ms", s9=80.0), {"count": 5, "every": 5}),
        (changed(untraced(longer=0), "untraced_after_ms", s0=8.0, s8=8.0), {"count": 1}),  # the first is the profiler's
        (cpu(untraced(long=18, longer=40.0)), {"count": 1, "every": 0, "weight": 1}),  # a single one weighs nothing
        # the first steps of a program compile and allocate
        (cpu(untraced(longer=0, warmup=3, untraced_step_ms=[90.0, 80.0])), {"count": 0, "of": TRACED + AFTER - 1}),
        (impossible(-1.0, 5.0, 5.0), {"weight": 1}),
        (impossible(*[1e300] * 9), {"weight": 1}),
        (impossible(*[0.0] * 9), {"weight": 1}),
        # what typical traced steps hold as well is not long
        (waiting(6.0), {"count": 0}),
        (waiting(7.2), {"count": 0}),
        # where the CPU runs ahead, a step that waits for the GPU is not long
        (printing(4.2), {"weight": 1}),
        (printing(14.2), {"weight": approx(31 / 91, abs=0.02)}),
        # traced steps that recur are weighed too; the first one may be anything
        (cpu(None, ([2000] * 3 + [10_000]) * 3),
         {"count": 3, "of": 11, "every": 4, "traced": True, "weight": 22 / 46}),
    ],
)  # fmt: skip
def test_what_recurs_is_told_from_what_does_not(builder, expected):
    found = seen(builder)
    assert {key: getattr(found, key) for key in expected} == {
        key: approx(value) if isinstance(value, int | float) else value for key, value in expected.items()
    }


LOADERS = [{"batch_size": 8, "num_workers": 2}]
EPOCHS = {"untraced_step_ms": [1.0] * 9, "steps_per_epoch": 1, "epoch_step_ms": [91.0, 91.0], "loaders": LOADERS}


@pytest.mark.parametrize(
    ("recording", "gain"),
    [
        (EPOCHS, 91),  # of 10 steps of 1 ms, the first one of an epoch takes 90 ms longer
        (EPOCHS | {"total_steps": 60}, (90 + 20) / 20),  # three epochs began in 60 steps
        (untraced(steps_per_epoch=5, epoch_step_ms=[5.0] * 6, loaders=LOADERS), 9 / 5),  # of all steps already
        (EPOCHS | {"loaders": [{"num_workers": 2, "persistent_workers": True}, {"num_workers": 0}]}, None),
    ],
)
def test_what_epochs_cost_is_bounded_by_how_often_they_begin(recording, gain):
    cost = costs(cpu(recording)).get("persistent_workers")
    assert (cost and cost.predicted_gain) == (gain and approx(gain))
