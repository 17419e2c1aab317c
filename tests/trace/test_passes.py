"""Where a forward pass begins and what updates parameters: by sequence numbers, and in programs that torch records."""

import numpy as np
import pytest
import torch
from support.trace_builder import analyzed, repeated
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from walkthrough.advice.gains import advise
from walkthrough.advice.launch_costs import fused_already
from walkthrough.trace.analysis import analyze
from walkthrough.trace.steps import is_optimizer_step, passes

NODE = "autograd::engine::evaluate_function: "
STEPS = 3


def a_pass(at, thread=1, number=7):
    """A part of a step, of 300 µs: `aten::t` makes node `number` and `aten::mm` the next one."""

    def add(builder, begin):
        begin += at
        builder.op("aten::linear", begin, 100, sequence=number)
        builder.op("aten::t", begin + 10, 10, sequence=number)
        builder.op("aten::mm", begin + 40, 50, sequence=number + 1)
        builder.op(f"{NODE}MmBackward0", begin + 200, 30, thread, sequence=number + 1)
        builder.op(f"{NODE}TBackward0", begin + 240, 20, thread, sequence=number)
        builder.op(f"{NODE}torch::autograd::AccumulateGrad", begin + 270, 30, thread)

    return add


def rows(*named):
    """A part of a step: operators (name, start, duration, sequence number or None)."""
    return lambda builder, begin: [builder.op(name, begin + at, us, sequence=own) for name, at, us, own in named]


def steps_of(*parts):
    """Steps of 1000 µs on a CPU. parts: functions of a builder and of when a step begins."""
    return repeated(lambda builder, begin: [part(builder, begin) for part in parts], steps=STEPS, devices=())


def covered(result, cover):
    """The intervals of a cover in the first step, in the builder's times."""
    pairs = (np.stack([cover.start, cover.end], axis=1) + result.trace.origin).tolist()
    return [(start, end) for start, end in pairs if start < 1000]


BATCH = rows(("aten::to", 20, 30, 7), ("aten::div", 60, 20, 7), ("Optimizer.zero_grad#SGD.zero_grad", 85, 10, None))
UPDATE = rows(("aten::mul_", 600, 100, 9), ("aten::add_", 710, 90, 9), ("aten::item", 850, 20, 9))


@pytest.mark.parametrize(("thread", "number"), [(1, 7), (3, 7), (1, 0)])
def test_a_pass_begins_with_the_first_operator_that_has_a_gradient(thread, number):
    result = analyzed(steps_of(BATCH, a_pass(100, thread, number), UPDATE))
    found = passes(result.trace)
    assert (covered(result, found.training), len(found.training.start)) == ([(100, 400)], STEPS)
    assert covered(result, result.phases.preparing) == [(20, 50), (60, 80)]
    assert covered(result, result.phases.model) == [(100, 1000)]
    assert (covered(result, found.own), found.marked) == ([(600, 800)], False)  # without the item
    fused = next(item for item in advise(result).advice if item.id == "fused_optimizer")
    assert (fused.share_of_step, fused.predicted_gain) == (pytest.approx(0.2), pytest.approx(1.25))


@pytest.mark.parametrize("thread", [5, 1])  # of what is numbered alike: another one, or that of the model
def test_a_thread_counts_its_nodes_for_itself(thread):
    def select(builder, begin):
        builder.op("aten::select", begin + 150, 10, tid=thread, sequence=7)

    result = analyzed(steps_of(a_pass(100), select))
    assert covered(result, passes(result.trace).training) == [(100, 400)]


def test_without_sequence_numbers_the_model_begins_with_its_first_product():
    model = rows(("aten::to", 20, 30, None), ("aten::mm", 100, 50, None), (f"{NODE}MmBackward0", 200, 50, None))
    result = analyzed(steps_of(model, rows(("aten::mul_", 600, 100, None))))
    assert len(passes(result.trace).training.start) == len(passes(result.trace).own.start) == 0
    assert covered(result, result.phases.model) == [(100, 1000)]
    assert covered(result, result.phases.preparing) == [(20, 50)]


@pytest.mark.parametrize("name", ["aten::mm", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"])
def test_an_update_ends_where_the_next_batch_is_waited_for_or_multiplied(name):
    after = rows(("aten::mul_", 500, 50, None), (name, 600, 100, None), ("aten::add_", 750, 50, None))
    result = analyzed(steps_of(a_pass(100), after))
    assert covered(result, passes(result.trace).own) == [(500, 550)]


def test_what_a_step_begins_with_is_an_update_where_backward_passes_mark_steps():
    parts = rows(("aten::mul_", 10, 90, None), ("aten::to", 150, 20, 7)), a_pass(200)
    builder = steps_of(*parts)
    builder.header["walkthrough"] = {"mark": "backward"}
    result = analyzed(builder)
    assert covered(result, passes(result.trace).own) == [(10, 100)]
    assert covered(result, result.phases.preparing) == [(150, 170)]


def test_an_average_of_the_weights_prepares_no_batch():
    averaging = rows(("aten::mul_", 10, 40, None), ("aten::add_", 50, 20, None))
    batch = rows(("aten::contiguous", 72, 10, 7), ("aten::copy_", 75, 5, None), ("aten::to", 85, 10, 7))
    result = analyzed(steps_of(averaging, batch, a_pass(100), rows(("Optimizer.step#SGD.step", 500, 100, None))))
    assert covered(result, result.phases.preparing) == [(75, 80), (85, 95)]
    assert covered(result, passes(result.trace).own) == [(500, 600)]


def test_each_run_of_a_closure_is_the_models_and_what_is_between_them_the_optimizers():
    closure = rows(("Optimizer.step#LBFGS.step", 50, 900, None), ("Optimizer.zero_grad#LBFGS.zero_grad", 60, 20, None))
    between = rows(("aten::dot", 420, 60, None), ("Optimizer.zero_grad#LBFGS.zero_grad", 500, 20, None))
    result = analyzed(steps_of(closure, a_pass(100), between, a_pass(550), rows(("aten::add_", 880, 20, None))))
    found = passes(result.trace)
    assert covered(result, found.own) == [(400, 500), (520, 550), (850, 950)]
    assert covered(result, found.per_step) == [(60, 80), (400, 550), (850, 950)]
    assert result.phases.preparing.total == 0
    parts = result.steps.mean_breakdown_us
    assert parts["cpu_exec"] == 20 + 2 * (100 + 30 + 20 + 30) + 150 + 100
    assert parts["other"] == pytest.approx(result.between_operators.total / STEPS)


def recorded(path, name):
    """The analysis of three steps of a training by SGD, by compiled SGD, or by LBFGS, which runs a closure."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = (
        torch.optim.LBFGS(model.parameters(), max_iter=3) if name == "lbfgs" else torch.optim.SGD(model.parameters())
    )
    update = torch.compile(optimizer.step, backend="eager") if name == "compiled" else optimizer.step
    images, labels = torch.randint(0, 255, (8, 16), dtype=torch.uint8), torch.randint(0, 4, (8,))
    when = schedule(wait=0, warmup=3, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=when) as profiler:
        for _ in range(3 + STEPS):
            inputs = images.float().div(255).sub(0.5)

            def forward_backward(inputs=inputs):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            if name == "lbfgs":
                update(forward_backward)
            else:
                forward_backward()
                update()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return analyze(path)


def begun_in(result, cover):
    operators = result.trace.operators
    return {result.trace.names[number] for number in operators.name[cover.holds(operators.start)]}


@pytest.mark.parametrize("name", ["compiled", "lbfgs", "sgd"])
def test_of_each_optimizer_only_the_batch_is_prepared_and_only_the_optimizer_updates(tmp_path, name):
    result = recorded(tmp_path / "made.json", name)
    found = passes(result.trace)
    batch = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::div", "aten::sub"}
    prepared = begun_in(result, result.phases.preparing)
    assert {"aten::to", "aten::div", "aten::sub"} <= prepared <= batch | {"aten::empty_strided"}
    updating = begun_in(result, found.own)
    assert not updating & {"aten::addmm", "aten::mm", "aten::cross_entropy_loss"}
    assert updating & {"aten::add_", "Torch-Compiled Region: 0/0", "aten::dot"}
    assert len(result.phases.preparing.start) >= STEPS
    assert "aten::addmm" in begun_in(result, found.training)
    assert not found.own.holds(found.training.start).any()
    if name == "sgd":  # its mark, as it runs no closure
        marks = result.trace.spans(is_optimizer_step)
        assert (found.own.start.tolist(), found.own.end.tolist()) == (marks.start.tolist(), marks.end.tolist())
    if name == "compiled":
        assert fused_already(result) == "the optimizer is compiled already"
        assert not result.workload.compiled
