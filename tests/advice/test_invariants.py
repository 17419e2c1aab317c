"""What no estimate may claim, and no rule may take for a cost: small traces, any program, and known answers."""

from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given, settings
from pytest import approx
from support import ROOT
from support.trace_builder import TraceBuilder, analyzed, costs, repeated, run_ahead, two_steps
from test_replay import WORK, Machine, program, step_of

from walkthrough.advice.catalogue import BY_ID
from walkthrough.advice.evidence import WORTHWHILE
from walkthrough.advice.gains import Gains, advise
from walkthrough.advice.replay import MAX_ERROR, Change
from walkthrough.trace.analysis import analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import launching_step

SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
MATRIX = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def loop(*rows, steps=4, length=1000, more=lambda builder, begin: None):
    """Steps of `length` µs. rows: (kernel, operator, when it is called, when it begins, µs, …) in each of them."""

    def add(builder, begin):
        for kernel, operator, call, start, us in rows:
            op = builder.op(operator, begin + call - 2, 8)
            builder.launch(kernel, begin + call, 5, begin + start, us, op=op)
        more(builder, begin)

    return repeated(add, length, steps)


def staying_us(a, change):
    """µs in which kernels and copies run that the typical steps launch and that a change leaves as they are."""
    steps, covers = a.typical.steps, Cover()
    for work, factors in ((a.trace.kernels, change.kernels), (a.trace.copies, change.copies)):
        stays = np.ones(len(work), bool) if factors is None else factors >= 1
        stays &= launching_step(a.trace, work, steps.cpu_start, steps.cpu_end) >= 0
        covers = covers | work.cover(stays)
    return float(covers.within(steps.start, steps.end).sum())


def violations(a):
    """Gains that leave less than the work that stays, alone or together; bounds below what a replay gains, of a large
    cost or a small one; lower ends beyond their estimates; and findings that gain more than all advice."""
    advised, replay = advise(a), Gains(a.typical).replay
    total_us = float(a.typical.steps.duration.sum()) * (1 + MAX_ERROR)  # as far as a replay may err
    wrong = []
    for item in advised.costs:
        change = item.cost.change(a.typical) if item.cost.change else Change()
        concerned = not (item.cost.unless and item.cost.unless(a.typical)) and item.weight == 1
        if item.predicted_gain and concerned and (replay.gain(change) or 1) > item.predicted_gain * (1 + MAX_ERROR):
            wrong.append((item.id, "its bound", item.predicted_gain, replay.gain(change)))
        bound = (
            None if item.cost.shortens_gpu_work else item.predicted_gain
        )  # else it is of kernels without fixed costs
        for gain in (bound, item.estimated_gain, item.low_gain):
            if gain and item.share_of_step >= WORTHWHILE and total_us * change.samples / gain < staying_us(a, change):
                wrong.append((item.id, "what stays", gain))
        if item.low_gain and not 1 <= item.low_gain <= item.estimated_gain:
            wrong.append((item.id, "its lower end", item.low_gain, item.estimated_gain))
    for both in advised.together:
        change = reduce(or_, (BY_ID[name].change(a.typical) for name in both.ids))
        if total_us / both.estimated_gain < staying_us(a, change) or not 1 <= both.low_gain <= both.estimated_gain:
            wrong.append((both.ids, both.low_gain, both.estimated_gain))
    shown = [item.estimated_gain or item.predicted_gain or 1.0 for item in advised.advice]
    advisable = {item.id for item in advised.costs if item in advised.advice or not item.cost.joins_launches}
    return wrong + [
        (finding.id, finding.estimated_gain)
        for finding in advised.findings
        if finding.cost in advisable and (finding.estimated_gain or 1.0) > max([1.03, *shown])
    ]


def copying():
    """Copies from pageable memory that fill 98 % of each step, and a short kernel."""
    return loop(
        (MATRIX, "aten::mm", 986, 992, 5),
        more=lambda builder, begin: builder.copy(begin + 5, 980, begin + 10, 970, 24_000_000),
    )


@pytest.mark.parametrize("source", [two_steps(), run_ahead(), copying(), SPECIMEN])
def test_no_gain_is_more_than_is_there(source):
    assert violations(analyzed(source) if isinstance(source, TraceBuilder) else analyze(source)) == []


@settings(max_examples=25)
@given(rows=step_of(WORK))
def test_nor_is_it_in_any_program(rows):
    machine = Machine()
    machine.run(program(rows))
    assert violations(analyzed(machine.builder)) == []


def test_set_up_is_neither_removed_nor_counted():
    """900 us of cudaFree inside the model's first operator: a graph would not launch faster without it."""

    def freeing(builder, begin):
        builder.add("runtime", "cudaFree", begin + 20, 900, correlation=-2)
        builder.op("aten::mm", begin + 15, 910)

    rows = [(MATRIX, "aten::mm", 950 + 10 * n, 957 + 10 * n, 6) for n in range(4)]
    a = analyzed(loop(*rows, more=freeing)).typical
    gains = Gains(a)
    assert gains.replay.gain(gains.change(BY_ID["cuda_graphs"])) < 1.1
    everything = Change(cpu=[(Cover(a.steps.cpu_start, a.steps.cpu_end), 0.0)])
    assert gains.replay.gain(everything) == approx(1000 / 900, rel=0.05)
    assert a.idle_share("launch") < 0.1


def test_an_optimizers_products_and_collectives_are_not_its_fusible_kernels():
    rows = [(ALL_REDUCE, "nccl:all_reduce", 20, 30, 400), (MATRIX, "aten::mm", 30, 430, 300)]
    rows += [(ADD, "aten::add_", 40 + n, 730 + n, 1) for n in range(60)]
    stepping = loop(*rows, more=lambda builder, begin: builder.op("Optimizer.step#Shampoo.step", begin + 10, 120))
    cost = costs(stepping)["fused_optimizer"]
    assert "60 kernels per step" in cost.why
    assert cost.share_of_step < 0.3  # 60 us of kernels, and waits


def test_compiled_code_that_names_a_loss_is_no_loss():
    name = "triton_red_fused__log_softmax_nll_loss_forward_3"
    assert costs(loop((name, name, 20, 30, 600)))["compile_loss"].share_of_step < 0.02


def test_one_graph_does_not_hide_that_most_kernels_are_launched_one_by_one():
    builder = loop(*[(ADD, "aten::add", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)])
    builder.launch(ADD, 940, 5, 950, 3, call="cudaGraphLaunch")
    assert costs(builder)["cuda_graphs"].share_of_step > 0.1
    assert violations(analyzed(builder)) == []


def test_what_waits_for_the_gpu_is_no_graph():
    def waiting(builder, begin):
        for at in (200, 400, 600):
            builder.op("aten::item", begin + at, 20)
            builder.wait(begin + at + 5, begin + at + 15)

    rows = [(ADD, "aten::mm", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)]
    graphs = costs(loop(*rows, more=waiting))["cuda_graphs"]
    assert (graphs.share_of_step, "waits for the GPU 3x per step" in graphs.why) == (0, True)


def test_an_operator_that_fills_the_cpu_is_named_although_the_gpu_has_hardly_anything_to_do():
    def filling(builder, begin):
        builder.op("aten::randn", begin + 10, 8000)
        builder.op("aten::normal_", begin + 20, 7900)

    builder = loop((ADD, "aten::add", 8100, 8200, 20), steps=2, length=10_000, more=filling)
    first = advise(analyzed(builder)).advice[0]
    assert (first.id, "aten::randn 8.0 ms" in first.why) == ("cpu_operators", True)


def test_the_time_before_the_first_kernel_of_a_trace_without_steps_is_no_work_of_a_step():
    builder = TraceBuilder()
    builder.op("aten::randn", 0, 5000)
    for at in range(6000, 8000, 100):
        builder.launch(MATRIX, at + 5, 5, at + 20, 90, op=builder.op("aten::mm", at, 20))
    advice = advise(analyzed(builder)).advice
    assert "cpu_operators" not in [item.id for item in advice]
    assert "per step" not in " ".join(item.why for item in advice)


def test_one_long_collective_does_not_hide_in_a_mean():
    rows = [(ALL_REDUCE, "nccl:all_gather", 20 + 10 * n, 30 + 10 * n, 10) for n in range(9)]
    rows += [(ALL_REDUCE, "nccl:all_gather", 115, 130, 600), (MATRIX, "aten::mm", 130, 730, 200)]
    assert "69 us on average, 600 us the longest" in costs(loop(*rows))["overlap_communication"].why


def test_a_gpu_that_has_no_cuda_is_not_advised_to_use_its_graphs():
    builder = TraceBuilder(devices=[{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}])
    for number in range(3):
        builder.step(number, number * 2000, 2000)
        for at in range(number * 2000, number * 2000 + 1500, 15):
            op = builder.op("aten::mm", at, 12)
            builder.launch("gemm_kernel", at + 2, 5, at + 10, 3, op=op, call="urEnqueueKernelLaunch")
    result = advise(analyzed(builder))
    assert not is_outlier(analyzed(builder).steps).any()
    text = " ".join(f"{item.title} {item.why} {item.do}" for item in result.advice) + result.verdict
    assert "CUDA" not in text and "Tensor Cores" not in text
