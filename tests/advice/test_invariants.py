"""What no estimate may claim, and no rule may take for a cost: known answers, and all traces at hand."""

from functools import reduce
from operator import or_
from pathlib import Path

import numpy as np
import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, run_ahead, two_steps

from walkthrough.advice.catalogue import COSTS
from walkthrough.advice.evidence import WORTHWHILE
from walkthrough.advice.gains import Gains, advise
from walkthrough.advice.replay import MAX_ERROR, Change
from walkthrough.trace.analysis import analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import launching_step

OTHERS = ROOT.parent / "shared" / "traces"  # not part of the project
AT_HAND = sorted([*(ROOT / "tests" / "data").glob("*.json.gz"), *OTHERS.glob("*.json.gz")])
MATRIX = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def loop(*rows, steps=4, length=1000, more=lambda builder, begin: None):
    """Steps of `length` µs. rows: (kernel, operator, when it is called, when it begins, µs, …) in each of them."""
    builder = TraceBuilder()
    for number in range(steps):
        begin = number * length
        builder.step(number, begin, length)
        for kernel, operator, call, start, us in rows:
            op = builder.op(operator, begin + call - 2, 8)
            builder.launch(kernel, begin + call, 5, begin + start, us, op=op)
        more(builder, begin)
    return builder


def staying_us(a, change):
    """µs in which kernels and copies run that the typical steps launch and that a change leaves as they are."""
    steps, covers = a.typical.steps, Cover()
    for work, factors in ((a.trace.kernels, change.kernels), (a.trace.copies, change.copies)):
        stays = np.ones(len(work), bool) if factors is None else factors >= 1
        stays &= launching_step(a.trace, work, steps.cpu_start, steps.cpu_end) >= 0
        covers = covers | work.cover(stays)
    return float(covers.within(steps.start, steps.end).sum())


def check(a):
    """No gain leaves less than the work that stays, together neither, and what stands out gains no more than advice.

    No bound is below what a replay gains, of a large cost or a small one.
    """
    advised, changes = advise(a), {cost.id: cost.change for cost in COSTS}
    replay = Gains(a.typical).replay
    total_us = float(a.typical.steps.duration.sum()) * 1.03  # as far as a replay may err
    for item in advised.costs:
        change = changes[item.id](a.typical) if changes[item.id] else Change()
        concerned = not (item.cost.unless and item.cost.unless(a.typical))
        if item.predicted_gain and concerned and item.weight == 1:
            assert item.predicted_gain * (1 + MAX_ERROR) >= (replay.gain(change) or 1.0), item.id
        for gain in (item.predicted_gain, item.estimated_gain, item.low_gain):
            if gain and item.share_of_step >= WORTHWHILE:
                assert total_us * change.samples / gain >= staying_us(a, change), (item.id, gain)
    for combination in advised.together:
        change = reduce(or_, (changes[id](a.typical) for id in combination.ids))
        assert total_us / combination.estimated_gain >= staying_us(a, change), combination
    shown = [item.estimated_gain or item.predicted_gain or 1.0 for item in advised.advice]
    advisable = {item.id for item in advised.advice} | {
        item.id for item in advised.costs if not item.cost.joins_launches
    }
    found = [finding.estimated_gain or 1.0 for finding in advised.findings if finding.cost in advisable]
    assert max([1.03, *shown]) >= max(found, default=1.0)


@pytest.mark.parametrize("path", AT_HAND, ids=lambda path: path.name[:40])
def test_no_step_becomes_shorter_than_its_kernels(path: Path):
    a = analyze(path)
    if a.on_gpu and not a.trace.partial:
        check(a)


def copying():
    """Copies from pageable memory that fill 98 % of each step, and a short kernel."""

    def pageable(builder, begin):
        builder.copy(begin + 5, 980, begin + 10, 970, 24_000_000)

    return loop((MATRIX, "aten::mm", 986, 992, 5), more=pageable)


@pytest.mark.parametrize("builder", [two_steps(), run_ahead(), copying()], ids=["two steps", "run ahead", "copying"])
def test_nor_do_the_steps_of_small_traces(analysis, builder):
    check(analysis(builder))


def test_set_up_is_neither_removed_nor_counted(analysis):
    """900 us of cudaFree inside the model's first operator: a graph would not launch faster without it."""

    def freeing(builder, begin):
        builder.add("runtime", "cudaFree", begin + 20, 900, correlation=-2)
        builder.op("aten::mm", begin + 15, 910)

    rows = [(MATRIX, "aten::mm", 950 + 10 * n, 957 + 10 * n, 6) for n in range(4)]
    a = analysis(loop(*rows, more=freeing)).typical
    gains = Gains(a)
    [graphs] = [cost for cost in COSTS if cost.id == "cuda_graphs"]
    assert gains.replay.gain(gains.change(graphs)) < 1.1
    everything = Change(cpu=[(Cover(a.steps.cpu_start, a.steps.cpu_end), 0.0)])
    assert gains.replay.gain(everything) == pytest.approx(1000 / 900, rel=0.05)
    assert a.idle_share("launch") < 0.1


def test_an_optimizers_products_and_collectives_are_not_its_fusible_kernels(analysis):
    rows = [(ALL_REDUCE, "nccl:all_reduce", 20, 30, 400), (MATRIX, "aten::mm", 30, 430, 300)]
    rows += [(ADD, "aten::add_", 40 + n, 730 + n, 1) for n in range(60)]

    def stepping(builder, begin):
        builder.op("Optimizer.step#Shampoo.step", begin + 10, 120)

    advised = advise(analysis(loop(*rows, more=stepping)))
    [cost] = [item for item in advised.costs if item.id == "fused_optimizer"]
    [finding] = [item for item in advised.findings if item.cost == "fused_optimizer"]
    assert "60 kernels per step" in cost.why
    assert finding.us_per_step == pytest.approx(cost.share_of_step * 1000)
    assert finding.us_per_step < 300  # 60 us of kernels, and waits


def test_compiled_code_that_names_a_loss_is_no_loss(analysis):
    name = "triton_red_fused__log_softmax_nll_loss_forward_3"
    [cost] = [item for item in advise(analysis(loop((name, name, 20, 30, 600)))).costs if item.id == "compile_loss"]
    assert cost.share_of_step < 0.02


def test_one_graph_does_not_hide_that_most_kernels_are_launched_one_by_one(analysis):
    rows = [(ADD, "aten::add", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)]
    builder = loop(*rows)
    builder.launch(ADD, 940, 5, 950, 3, call="cudaGraphLaunch")
    result = advise(analysis(builder))
    assert [item.share_of_step > 0.1 for item in result.costs if item.id == "cuda_graphs"] == [True]
    [finding] = [item for item in result.findings if item.id == "many_small_launches"]
    assert max(item.estimated_gain or 1 for item in result.advice) >= (finding.estimated_gain or 1)


def test_what_waits_for_the_gpu_is_no_graph(analysis):
    def waiting(builder, begin):
        for at in (200, 400, 600):
            builder.op("aten::item", begin + at, 20)
            builder.add("runtime", "cudaStreamSynchronize", begin + at + 5, 10, correlation=-3)

    rows = [(ADD, "aten::mm", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)]
    [graphs] = [item for item in advise(analysis(loop(*rows, more=waiting))).costs if item.id == "cuda_graphs"]
    assert graphs.share_of_step == 0
    assert "waits for the GPU 3x per step" in graphs.why


def test_an_operator_that_fills_the_cpu_is_named_although_the_gpu_has_hardly_anything_to_do(analysis):
    def filling(builder, begin):
        builder.op("aten::randn", begin + 10, 8000)
        builder.op("aten::normal_", begin + 20, 7900)

    result = advise(analysis(loop((ADD, "aten::add", 8100, 8200, 20), steps=2, length=10_000, more=filling)))
    assert result.advice[0].id == "cpu_operators"
    assert "aten::randn 8.0 ms" in result.advice[0].why
    assert "Move CPU work out of the step" in result.verdict


def test_the_time_before_the_first_kernel_of_a_trace_without_steps_is_no_work_of_a_step(analysis):
    builder = TraceBuilder()
    builder.op("aten::randn", 0, 5000)
    for number in range(20):
        op = builder.op("aten::mm", 6000 + 100 * number, 20)
        builder.launch(MATRIX, 6005 + 100 * number, 5, 6020 + 100 * number, 90, op=op)
    result = advise(analysis(builder))
    assert "cpu_operators" not in [item.id for item in result.advice]
    assert "per step" not in " ".join(item.why for item in result.advice)


def test_one_long_collective_does_not_hide_in_a_mean(analysis):
    rows = [(ALL_REDUCE, "nccl:all_gather", 20 + 10 * n, 30 + 10 * n, 10) for n in range(9)]
    rows += [(ALL_REDUCE, "nccl:all_gather", 115, 130, 600), (MATRIX, "aten::mm", 130, 730, 200)]
    [cost] = [item for item in advise(analysis(loop(*rows))).costs if item.id == "overlap_communication"]
    assert "69 us on average, 600 us the longest" in cost.why


def test_kernels_in_float64_are_worth_a_line(analysis):
    rows = [("void cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "aten::mm", 20, 30, 190)]
    rows += [(MATRIX, "aten::mm", 30, 230, 700)]
    [finding] = [item for item in advise(analysis(loop(*rows))).findings if item.id == "float64"]
    assert finding.us_per_step == pytest.approx(190)
    assert "21% of the kernels' time" in finding.why


def test_a_gpu_that_has_no_cuda_is_not_advised_to_use_its_graphs(tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}])
    for number in range(3):
        builder.step(number, number * 2000, 2000)
        for kernel in range(100):
            at = number * 2000 + 15 * kernel
            op = builder.op("aten::mm", at, 12)
            builder.launch("gemm_kernel", at + 2, 5, at + 10, 3, op=op, call="urEnqueueKernelLaunch")
    result = advise(analyze(builder.write(tmp_path / "xpu.pt.trace.json")))
    assert not is_outlier(analyze(tmp_path / "xpu.pt.trace.json").steps).any()
    text = " ".join(f"{item.title} {item.why} {item.do}" for item in result.advice) + result.verdict
    assert "CUDA" not in text and "Tensor Cores" not in text
