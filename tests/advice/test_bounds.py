"""What bounds a step: the verdict, and how many times faster it would be at most without each cost."""

from itertools import pairwise

import pytest
from pytest import approx
from support.trace_builder import V100, analyzed, costs, one_step, two_steps

from walkthrough.advice.catalogue import Advice
from walkthrough.advice.gains import ALIKE, advise
from walkthrough.advice.verdict import gain_text

SGEMM, DEPTHWISE = "volta_sgemm_128x64_nn", "void at::native::conv_depthwise2d_forward_kernel<3, float, int>"
TF32 = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4"
A100 = {"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}
NCHW = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"
ADD = "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>"
SGD = "Optimizer.step#SGD.step"


def on_cpu(*rows, load=0):
    """A step of 1000 µs on a CPU: the DataLoader for `load` µs, then operators: (name, µs)."""
    builder, at = one_step(devices=()), load
    if load:
        builder.loading(0, load)
    for name, us in rows:
        builder.op(name, at, us)
        at += us
    return builder


def computing(us, name="volta_h884gemm_128x128", collective_us=0, at=10, operator="aten::mm", set_us=0):
    """A kernel of so many µs from `at` on, then a collective, or first a memset; all are launched within 30 µs."""
    builder = one_step()
    if set_us:
        builder.launch("Memset (Device)", 0, 5, 5, set_us, kind="set", call="cudaMemsetAsync")
    builder.launch(name, 5, 5, at, us, op=builder.op(operator, 0, 20))
    if collective_us:
        record = builder.op("record_param_comms", 21, 10)
        builder.launch("ncclDevKernel_AllReduce", 22, 5, at + us, collective_us, op=record)
    return builder


@pytest.mark.parametrize(
    ("builder", "begin"),
    [
        (computing(985, "k"),
         "GPU-bound: kernels fill 98% of the step, 0% of their time matrix work; left to try: fewer passes over "
         "memory: fused kernels (torch.compile)"),
        (computing(985, "triton__0d1", operator="triton__0d1"),
         "GPU-bound: kernels fill 98% of the step, 0% of their time matrix work and 100% of kernels whose names do "),
        (computing(400, "k"), "kernels fill 40% of the step"),
        (computing(200, collective_us=760),
         "kernels that compute fill 20% of the step, communication alone 76%; try first: Compare the ranks"),
        (computing(965, collective_us=20),
         "compute-bound: kernels that compute fill 96% of the step, communication alone 2%, 98% of all kernels'"),
        (computing(200, collective_us=300, at=500),
         "for the first 0.5 ms the GPU most likely still runs what was launched before the trace; in the rest kernels "
         "that compute run 38% of the time, communication alone 57%, and 40% of all kernels' time is matrix work"),
        # work that is queued for 5 % of the step, half of the time without a kernel, is what the GPU waits for
        (computing(900, at=80), "for the first 0.1 ms the GPU most likely still runs what was launched before the "
         "trace; in the rest kernels run 95% of the time, and 100% of that is matrix work"),
        (computing(900, at=79), "compute-bound: kernels fill 90% of the step, 100% of their time matrix work"),
        (computing(860, at=130, set_us=120), "kernels fill 86% of the step, 100% of their time matrix work; left to"),
        (on_cpu(("aten::mm", 984)),
         "compute-bound: 98% of the step is operators on the CPU (100% of their time aten::mm); "
         "left to try: a GPU, a smaller model, or smaller inputs"),
        (on_cpu(("aten::conv2d", 493), ("aten::mm", 491)),
         "compute-bound: 98% of the step is operators on the CPU (50% of their time aten::conv2d); "
         "left to try: a GPU, a smaller model, or fewer or smaller images"),
        # less than a tenth could be gained
        (on_cpu(("aten::mm", 870), (SGD, 90)), "compute-bound: 96% of the step is operators on the CPU (91% of their "
         "time aten::mm); biggest possible gain: Use a fused optimizer, at most 1.10x"),
        (on_cpu(("aten::mm", 860), (SGD, 100)), "96% of the step is operators on the CPU (90% of their time aten::mm); "
         "biggest possible gain: Use a fused optimizer, at most 1.11x"),
        (on_cpu(("aten::mm", 540), load=420), "54% of the step is operators on the CPU (100% of their time aten::mm), "
         "42% waits for the DataLoader; try first: Use DataLoader workers. The gain cannot be estimated here"),
        (on_cpu(("aten::mm", 400), load=600), "60% of the step waits for the DataLoader, 40% is operators on the"),
    ],
)  # fmt: skip
def test_the_verdict_names_what_bounds_the_step(builder, begin):
    assert advise(analyzed(builder)).verdict.startswith(begin)


def waiting():
    """Before a kernel of 400 µs, four causes of a fourth of the time each, more or less."""
    builder = computing(400, at=600)
    [calling] = [event for event in builder.events if event["cat"] == "cuda_runtime"]
    calling["ts"] = 590
    builder.loading(20, 150)
    builder.wait(170, 320)
    builder.op("aten::mm", 320, 130)
    return builder


@pytest.mark.parametrize(
    ("builder", "why"),
    [
        (computing(950), ""),  # for 5 %
        (computing(949),
         "The GPU is idle for 51.0 us of a step: 80% of it in Python, or nothing recorded, 20% launch-bound"),
        (waiting(), "The GPU is idle for 600.0 us of a step: 26% of it launch-bound, 25% waiting for the DataLoader, "
         "25% while the CPU waits for it"),
    ],
)  # fmt: skip
def test_why_a_gpu_idles_is_told_by_the_three_causes_of_most_of_it(builder, why):
    assert advise(analyzed(builder)).why_idle == why


@pytest.mark.parametrize(
    ("bound", "estimate", "low", "error", "text"),
    [
        (None, None, None, 0.1, ""),
        (1.5, None, None, 0.1, "at most 1.50x"),
        (99.0, None, None, 0.1, "at most 99.00x"),
        (100.0, None, None, 0.1, "the step is nothing else"),
        (None, 1.01, 1.01, 0.1, "with others"),
        (None, 1.02, 1.01, 0.1, "about 1.02x"),
        (2.0, 1.29, 1.26, 0.1, "about 1.29x"),
        (2.0, 1.29, 1.26, 0.25, "1.26x to 1.29x"),  # both round to 1.3
        (2.0, 1.33, 1.26, 0.1, "1.26x to 1.33x"),
        (2.0, 1.36, 1.26, 0.4, "1.3x to 1.4x"),
        (2.0, 1.36, 1.04, 0.4, "1.04x to 1.36x"),  # the lower end would round to 1.0
    ],
)
def test_a_gain_is_said_as_exactly_as_it_is_known(bound, estimate, low, error, text):
    advice = Advice(None, "t", "w", 0.2, bound, estimate, id="compile", low_gain=low, error=error)
    assert gain_text(advice) == text


def test_advice_is_in_the_order_of_the_steps_that_it_leaves():
    found = costs(two_steps())
    result = advise(analyzed(two_steps()))
    left = [item.remaining for item in result.advice if item.id != "bigger_batch"]
    assert all(before <= after * ALIKE for before, after in pairwise(left))
    # The CPU is not at work in 340-740, beside the kernel: so a shorter kernel is of no use.
    assert found["mixed_precision"].estimated_gain == approx(1, abs=0.01)
    assert found["dataloader_workers"].estimated_gain == approx(1.25, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "cost", "known"), [("Pageable", "pinned_memory", False), ("Pinned", "prefetch_stream", True)]
)
def test_copies_that_block_the_gpu_are_pinned_or_start_earlier_by_their_name(kind, cost, known):
    builder = one_step()
    _, copy = builder.copy(0, 100, 5, 90, 1000, name=f"Memcpy HtoD ({kind} -> Device)")
    if not known:
        del copy["args"]["bytes"]
    builder.launch("k", 100, 10, 200, 800)
    builder.copy(900, 5, 910, 5, 8, name="Memcpy DtoH (Device -> Pinned)")  # which is no batch
    advice = {item.id: item for item in advise(analyzed(builder)).advice}
    assert advice.keys() & {"pinned_memory", "prefetch_stream"} == {cost}
    assert advice[cost].share_of_step == approx(0.1, abs=0.01)
    assert advice[cost].why.startswith("1.0 kB per step to" if known else "1 copy per step to")


@pytest.mark.parametrize(
    ("convolution", "helper", "device", "share", "gain"),
    [
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", NCHW, V100, 0, None),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<__half, __half, __half, float>", NCHW, V100, 0, None),
        (DEPTHWISE, NCHW, V100, 0, 1 / (1 - 0.38 / 2)),  # it can only move fewer bytes
        (SGEMM, ADD, V100, 0.38, 1 / (1 - 0.38 - 0.6 / 2)),  # others move half of theirs, too
        (TF32, ADD, A100, 0.38 / 2, 1 / (1 - 0.38 / 2 - 0.6 / 2)),
        (SGEMM, NCHW, {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}, 0, None),  # of no AMD GPU
    ],
)
def test_mixed_precision_is_for_what_runs_in_float32(convolution, helper, device, share, gain):
    builder = one_step(devices=[device])
    op = builder.op("aten::cudnn_convolution", 0, 50)
    builder.launch(convolution, 0, 10, 20, 380, op=op)
    builder.launch(helper, 10, 10, 400, 600, op=op)
    amp = costs(builder)["mixed_precision"]
    assert amp.share_of_step == approx(share)
    assert gain is None or amp.predicted_gain == approx(gain)
