"""How much faster a program is by a replay, which advice is then given, and what is estimated together."""

from itertools import pairwise

import pytest
from pytest import approx
from support.trace_builder import V100, TraceBuilder, analyzed, costs, repeated

from walkthrough.advice.gains import advise


def steps_of(*kernels, load=0.0, loader="_SingleProcess", every=10.0, sync=False, device=V100, around=None):
    """Four steps on one GPU, each launching (name, µs, operator) every so many µs.

    load: µs for the DataLoader. around: an operator around all of a step's.
    """
    builder, at, end = TraceBuilder(devices=[device]), 0.0, 0.0
    for number in range(4):
        begin = at
        if load:
            builder.loading(begin, load, f"{loader}DataLoaderIter")
        at = begin + load + 1
        if around:
            builder.op(around, at - 0.5, len(kernels) * every)
        for name, us, operator in kernels:
            op = builder.op(operator, at, every - 1)
            starts = max(at + 6, end + 1)
            builder.launch(name, at + 1, 4, starts, us, op=op)
            at, end = at + every, starts + us
        if sync:
            builder.wait(at, max(end, at + 1))
            at = max(at, end)
        builder.step(number, begin, at + 2 - begin)
        at += 3
    return builder


def advice(builder):
    """The advice worth following, by the cost's id, in order."""
    return {item.id: item for item in advise(analyzed(builder)).advice}


SGEMM = ("volta_sgemm_128x64_nn", 100, "aten::mm")
ADD = ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::Half> >", 5, "aten::add")
SHORT = (ADD[0], 1, "aten::add")  # the fixed cost of a kernel: none takes less in an estimate
ADD_FP32 = ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", 100, "aten::add")
TF32 = ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", 100, "aten::mm")
A100 = {"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}
RTX_5090 = {"id": 0, "name": "NVIDIA GeForce RTX 5090", "computeMajor": 12, "computeMinor": 0}
MI210 = {"id": 0, "name": "AMD Instinct MI210", "computeMajor": 9, "computeMinor": 0, "warpSize": 64}


def half(us, operator="aten::mm"):
    return ("ampere_fp16_s16816gemm", us, operator)


def test_of_compiling_and_graphs_one_is_enough_where_both_gain_no_more():
    """Every kernel waits 40 us for its launch, and none can be fused. Compiled, each launch takes three calls' 4 us."""
    builder = steps_of(*[half(8)] * 8, every=48.0, sync=True)
    found = costs(builder)
    assert found["compile"].estimated_gain == approx(387 / (387 - 341 + 8 * 3 * 4), rel=0.03)
    assert found["cuda_graphs"].estimated_gain > found["compile"].estimated_gain
    assert len({"compile", "cuda_graphs"} & advice(builder).keys()) == 1


def test_what_bounds_the_step_after_the_first_change_is_combined_with_it():
    """Kernels run beside the loader, so faster ones alone gain little; without the loader, nothing else is left."""
    result = advise(analyzed(steps_of(*[SGEMM] * 4, ADD, load=500.0)))
    loader, first = result.advice[0], result.together[0]
    gains = [loader.estimated_gain, *(item.estimated_gain for item in result.together)]
    assert all(more > 1.05 * one for one, more in pairwise(gains))  # each says something new
    [amp] = [item for item in result.advice if item.id == "mixed_precision"]
    assert loader.id == "dataloader_workers"
    assert amp.estimated_gain < 1.2
    assert (first.ids, first.titles) == ([loader.id, amp.id], [loader.title, amp.title])
    assert first.estimated_gain > 2 * loader.estimated_gain
    saved = 1 / loader.estimated_gain - 1 / first.estimated_gain  # by the second, of which a part is sure
    assert 1 / first.low_gain == approx(1 / loader.low_gain - saved * (1 - amp.error))
    assert first.error == max(loader.error, amp.error)


def test_of_two_ways_to_wait_less_one_is_enough():
    result = advise(analyzed(steps_of(*[SGEMM] * 4, ADD, load=500.0, loader="_MultiProcessing")))
    ways = {"more_workers", "data_on_device"}
    assert ways <= {item.id for item in result.advice}
    assert result.together
    assert {len(ways & set(combination.ids)) for combination in result.together} == {1}


def test_what_the_replay_cannot_tell_from_nothing_is_not_advised():
    little, more = (steps_of(half(900), load=load, sync=True) for load in (24.0, 60.0))
    assert costs(little)["dataloader_workers"].share_of_step >= 0.02
    assert ["dataloader_workers" in advice(builder) for builder in (little, more)] == [False, True]


# 16 bits.


def tensile(kind):
    return (f"Cijk_Ailk_Bljk_{kind}_MT64x16x32_MI16x16x1", 100, "aten::mm")


@pytest.mark.parametrize(
    ("kernel", "device", "gain"),
    [
        (SGEMM, V100, 8 * 0.25 / 0.61),  # the data sheet's ratio, by what kernels reach of it
        (SGEMM, A100, 16 * 0.25 / 0.61),
        (SGEMM, RTX_5090, 2),  # at least what half the bytes gain
        (TF32, A100, 2),
        (tensile("SB"), MI210, 2),
        (("igemm_fwd_gtcx_nhwc_fp32_bx0_bt256x128x16", 100, "aten::convolution"), MI210, 2),
    ],
)
def test_mixed_precision_gains_what_kernels_reach_in_practice(kernel, device, gain):
    builder = steps_of(SHORT, *[(kernel[0], 1000, kernel[2])] * 9, device=device)
    amp = costs(builder)["mixed_precision"]
    assert amp.estimated_gain == approx(gain, rel=0.04)
    assert amp.estimated_gain <= amp.predicted_gain


@pytest.mark.parametrize(
    ("kernels", "device"),
    [
        ([tensile("SB"), SGEMM], {"id": 0, "name": "NVIDIA GeForce GTX 1660", "computeMajor": 7, "computeMinor": 5}),
        ([tensile("HHS_BH")], MI210),
    ],
)
def test_without_units_or_float32_there_is_nothing_to_gain(kernels, device):
    assert costs(steps_of(SHORT, *kernels * 9, device=device))["mixed_precision"].share_of_step == 0


IN_FLOAT32 = [  # kernels of operators that autocast leaves as they are
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>",
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, AddFunctor<float> >",
]


@pytest.mark.parametrize(
    ("names", "left"), [(IN_FLOAT32, 500), (["void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>"] * 5, 250)]
)
def test_what_autocast_leaves_in_float32_gains_nothing(names, left):
    amp = costs(steps_of(SHORT, SGEMM, *[(name, 100, "aten::x") for name in names]))["mixed_precision"]
    assert amp.estimated_gain == approx(610 / (40.5 + left), rel=0.02)
    assert amp.predicted_gain == approx(610 / (10 + left), rel=0.02)


def test_the_optimizer_stays_in_float32():
    outside, inside = (
        costs(steps_of(SHORT, SGEMM, *[ADD_FP32] * 8, around=around))["mixed_precision"].estimated_gain
        for around in (None, "Optimizer.step#SGD.step")
    )
    assert outside > 2 and inside < 1.15


# What goes on beside the rest.


def test_a_copy_made_early_still_takes_its_time_beside_the_step():
    """500 us of copies, then 300 us of kernels: beside one another they take the longer."""

    def copied(builder, begin):
        builder.copy(begin, 4, begin + 10, 500, 1_000_000, name="Memcpy HtoD (Pinned -> Device)")
        builder.launch("k", begin + 10, 4, begin + 511, 300, op=builder.op("aten::mm", begin + 8, 8))
        builder.wait(begin + 20, begin + 812)

    assert advice(repeated(copied, 830))["prefetch_stream"].estimated_gain == approx(830 / 500, rel=0.01)


@pytest.mark.parametrize(("blocks", "longer"), [(4, 2.0), (0.75, 1.5), (0.4, 1.0)])
def test_a_bigger_batch_takes_the_optimizer_no_longer(blocks, longer):
    """450 us of the model's kernel, of so many blocks per SM, as much of the optimizer's, and the rest waits."""

    def stepping(builder, begin):
        for at, operator in ((begin, "aten::mm"), (begin + 550, "Optimizer.step#SGD.step")):
            op = builder.op(operator, at, 100)
            builder.launch("k", at + 90, 4, at + 96, 450, op=op, **{"blocks per SM": blocks})
            builder.wait(at + 101, at + 547)

    bigger = costs(repeated(stepping, 1120))["bigger_batch"]
    assert bigger.estimated_gain == approx(2 * 1120 / (1120 + 450 * (longer - 1)), rel=0.01)


def test_a_bigger_batch_is_advice_of_its_own_and_never_combined():
    """It changes what is trained; without it, the same advice would be first or second in what is combined."""
    small = ("volta_sgemm_32x32_sliced1x4_nn", 8, "aten::mm")
    result = advise(analyzed(steps_of(*[small] * 20, every=30.0, load=900.0, around="MmBackward0")))
    [bigger] = [item for item in result.advice if item.id == "bigger_batch"]
    assert bigger.estimated_gain > 1.2
    assert result.together and all(bigger.id not in combination.ids for combination in result.together)


EXCHANGE = ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 300, "nccl:all_to_all")
REDUCE = ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 300, "nccl:all_reduce")


def test_an_exchange_grows_with_the_batch_and_a_reduction_does_not():
    """Of 1060 us per step, 300 us are the collective's, and 60 us pass before it; the product grows too."""
    exchanging, reducing = (
        costs(steps_of(SHORT, collective, half(700), every=60.0, sync=True, around="MmBackward0"))
        for collective in (EXCHANGE, REDUCE)
    )
    gain = exchanging["bigger_batch"].estimated_gain
    assert gain < 1.1
    assert reducing["bigger_batch"].estimated_gain == approx(gain * 2060 / 1760, rel=0.03)


@pytest.mark.parametrize(
    ("builder", "cost", "reason"),
    [
        (steps_of(*[half(30)] * 8, every=200.0, sync=True), "cuda_graphs", "; or torch.compile the model instead: "),
        (steps_of(*[SGEMM] * 4, ADD, load=500.0), "mixed_precision", "; without that cost the CPU bounds the step"),
        (steps_of(REDUCE, half(100), SHORT, around="MmBackward0"), "overlap_communication",
         "; what is overlapped still takes its time, and no step takes less"),
    ],
)  # fmt: skip
def test_an_estimate_far_from_its_cost_has_its_reason(builder, cost, reason):
    assert reason in advice(builder)[cost].do


def test_what_is_fused_is_gone_where_no_operator_was_recorded_too():
    def adding(builder, begin):
        for index in range(6):
            builder.launch(ADD[0], begin + 1 + index * 4, 3, begin * 16 + 15 + index * 80, 79)

    assert costs(repeated(adding, 30))["compile"].estimated_gain > 2


# Waits.


def test_a_wait_costs_what_the_gpu_could_have_done_while_the_next_batch_is_loaded():
    """A step: 500 us of loading, 45 of launches, and a wait of 365 until four kernels have run.

    Without waits the CPU loads while they run, so a step takes 545 us; but nothing follows the last one's kernels.
    """
    waits = costs(steps_of(*[SGEMM] * 4, load=500.0, sync=True))["no_hidden_syncs"]
    gain = 4 * 910 / (4 * 545 + 365)
    assert waits.estimated_gain == approx(gain, rel=0.02)
    assert waits.estimated_gain <= waits.predicted_gain == approx(gain, rel=0.04)
    assert "the CPU waits for the GPU 1x per step" in waits.why


@pytest.mark.parametrize("copies", [False, True])
def test_a_wait_beside_which_another_stream_works_costs_nothing(copies):
    """As long for the CPU as in the test before: 600 us of 1000. Copying back and waiting for it is one wait."""

    def waiting(builder, begin):
        op = builder.op("aten::mm", begin, 40)
        builder.launch(SGEMM[0], begin + 5, 4, begin + 12, 985, op=op, stream=20)
        builder.launch(SGEMM[0], begin + 15, 4, begin + 25, 610, op=op)
        if copies:
            builder.copy(begin + 40, 598, begin + 636, 1, 8, name="Memcpy DtoH (Device -> Pageable)")
        builder.wait(begin + (639 if copies else 40), begin + (641 if copies else 640))

    waits = costs(repeated(waiting, 1000))["no_hidden_syncs"]
    assert waits.share_of_step < 0.02
    assert waits.predicted_gain == approx(1.0, abs=0.02)
    assert "the CPU waits for the GPU 1x per step" in waits.why
