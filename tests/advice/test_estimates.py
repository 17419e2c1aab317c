"""Which advice is given, and what is estimated together."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trace_builder import V100, TraceBuilder

from walkthrough.advice.gains import advise
from walkthrough.trace.analysis import analyze


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of a trace."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def steps_of(*kernels, load=0.0, every=10.0, sync=False, device=V100, around=None):
    """Four steps on one GPU, each launching (name, µs, operator) every so many µs.

    load: µs for the DataLoader. around: an operator around all of a step's.
    """
    builder, at, end = TraceBuilder(devices=[device]), 0.0, 0.0
    for number in range(4):
        begin = at
        if load:
            builder.loading(begin, load)
        at = begin + load + 1
        if around:
            builder.op(around, at - 0.5, len(kernels) * every)
        for name, us, operator in kernels:
            op = builder.op(operator, at, every - 1)
            starts = max(at + 6, end + 1)
            builder.launch(name, at + 1, 4, starts, us, op=op)
            at, end = at + every, starts + us
        if sync:
            builder.add("runtime", "cudaStreamSynchronize", at, max(end - at, 1), correlation=-2)
            at = max(at, end)
        builder.step(number, begin, at + 2 - begin)
        at += 3
    return builder


SGEMM = ("volta_sgemm_128x64_nn", 100, "aten::mm")
ADD = ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::Half> >", 5, "aten::add")


SHORT = (ADD[0], 1, "aten::add")  # the fixed cost of a kernel: none takes less in an estimate
ADD_FP32 = ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", 100, "aten::add")
TF32 = ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", 100, "aten::mm")
A100 = {"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}
RTX_5090 = {"id": 0, "name": "NVIDIA GeForce RTX 5090", "computeMajor": 12, "computeMinor": 0}
MI210 = {"id": 0, "name": "AMD Instinct MI210", "computeMajor": 9, "computeMinor": 0, "warpSize": 64}


def titles(result):
    return [advice.title for advice in advise(result).advice]


def test_of_compiling_and_graphs_one_is_enough_where_both_gain_no_more(analysis):
    """Every kernel waits 40 us for its launch, and none can be fused."""
    result = analysis(steps_of(*[("ampere_fp16_s16816gemm", 8, "aten::mm")] * 8, every=48.0, sync=True))
    both = {advice.step: advice for advice in advise(result).costs if advice.step in ("13_compile", "15_cuda_graphs")}
    assert all(advice.estimated_gain > 1.2 for advice in both.values())
    assert len({"torch.compile the model", "Use CUDA graphs"} & set(titles(result))) == 1


def test_what_bounds_the_step_after_the_first_change_is_combined_with_it(analysis):
    """Kernels run beside the loader, so faster ones alone gain little; without the loader, nothing else is left."""
    result = analysis(steps_of(*[SGEMM] * 4, ADD, load=500.0))
    assert titles(result)[0] == "Use DataLoader workers"
    [amp] = [advice for advice in advise(result).advice if advice.step == "01_amp"]
    assert amp.estimated_gain < 1.2
    first = advise(result).together[0]
    assert first.titles == ["Use DataLoader workers", amp.title]
    assert first.estimated_gain > 2 * advise(result).advice[0].estimated_gain


def test_together_says_only_what_is_new(analysis):
    """Without its loader, the step is what one kernel in 16 bits takes."""
    result = analysis(steps_of(("ampere_fp16_s16816gemm", 1000, "aten::mm"), load=500.0, sync=True))
    assert titles(result)[0] == "Use DataLoader workers"
    for one, more in zip([advise(result).advice[0], *advise(result).together], advise(result).together, strict=False):
        assert more.estimated_gain > 1.05 * one.estimated_gain


def test_chains_of_elementwise_kernels_are_for_compiling_too(analysis):
    long_add = (ADD[0], 50, ADD[2])
    result = analysis(steps_of(("ampere_fp16_s16816gemm", 100, "aten::mm"), *[long_add] * 4))
    [compiling] = [advice for advice in advise(result).advice if advice.step == "13_compile"]
    assert compiling.why.startswith("150 us per step of elementwise kernels that could be fused")
    assert compiling.share_of_step == pytest.approx(150 / 304, rel=0.1)


def test_attention_in_parts_is_to_be_fused(analysis):
    softmax = ("void (anonymous namespace)::softmax_warp_forward<c10::Half>", 200, "aten::_softmax")
    product = ("ampere_fp16_s16816gemm", 100, "aten::bmm")
    result = analysis(steps_of(product, softmax, product))
    [fusing] = [
        advice for advice in advise(result).advice if advice.title == "Fuse attention (scaled_dot_product_attention)"
    ]
    assert fusing.estimated_gain == pytest.approx(2, rel=0.1)
    assert "Fuse attention (scaled_dot_product_attention)" not in titles(analysis(steps_of(product, product)))


def test_what_gains_nothing_and_never_will_is_not_advised(analysis):
    """A pinned copy beside the kernels of the step before: 2 % of the time at most, and the CPU takes longer anyway."""
    builder = steps_of(*[ADD] * 40, every=25.0)
    for number in range(4):
        _, copy = builder.copy(number * 1004 + 950, 5, number * 1004 + 975, 30, 1000, name="Memcpy HtoD (Pinned)")
        copy["tid"] = copy["args"]["stream"] = 20
    result = analysis(builder)
    early = next(advice for advice in advise(result).costs if advice.step == "06_prefetch_stream")
    assert early.share_of_step >= 0.02
    assert early.title not in titles(result)


def amp(result):
    return next(advice for advice in advise(result).costs if advice.step == "01_amp")


@pytest.mark.parametrize(
    ("kernel", "device", "gain"),
    [
        (SGEMM, V100, 8 * 0.25 / 0.61),  # the data sheet's ratio, by what kernels reach of it
        (SGEMM, A100, 16 * 0.25 / 0.61),
        (SGEMM, RTX_5090, 2),  # at least what half the bytes gain
        (TF32, A100, 2),
        (("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", 100, "aten::mm"), MI210, 2),
        (("Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1", 100, "aten::mm"), MI210, 2),
        (("Cijk_Ailk_Bljk_S_MX_B_UserArgs_MT128x160x64_MI16x16x1_SN", 100, "aten::mm"), MI210, 2),
        (("igemm_fwd_gtcx_nhwc_fp32_bx0_bt256x128x16", 100, "aten::convolution"), MI210, 2),
    ],
)
def test_mixed_precision_gains_what_kernels_reach_in_practice(analysis, kernel, device, gain):
    advice = amp(analysis(steps_of(SHORT, *[(kernel[0], 1000, kernel[2])] * 9, device=device)))
    assert advice.estimated_gain == pytest.approx(gain, rel=0.04)
    assert advice.estimated_gain <= (advice.predicted_gain or 0)


def test_tf32_and_float32_on_amd_are_named_as_what_they_are(analysis):
    tf32 = amp(analysis(steps_of(SHORT, TF32, SGEMM, device=A100)))
    assert "100 us of matrix work in float32 and 100 us of matrix work in TF32 per step" in tf32.why
    tensile = ("Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1", 100, "aten::mm")
    fp32 = amp(analysis(steps_of(SHORT, tensile, device=MI210)))
    assert fp32.title == "Use Matrix cores (mixed precision)"
    assert fp32.why.startswith("100 us of matrix work in float32 per step")


@pytest.mark.parametrize(
    "device",
    [
        {"id": 0, "name": "NVIDIA GeForce GTX 1660", "computeMajor": 7, "computeMinor": 5},
        {"id": 0, "name": "AMD Instinct MI50/MI60", "computeMajor": 9, "warpSize": 64},
    ],
)
def test_a_gpu_without_matrix_cores_is_not_advised_to_use_them(analysis, device):
    products = [("Cijk_Ailk_Bljk_SB_MT64x16x32_SN", 100, "aten::mm"), SGEMM]
    assert amp(analysis(steps_of(SHORT, *products, device=device))).share_of_step == 0


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernels=st.lists(
        st.tuples(st.sampled_from([SGEMM, TF32, ADD, ADD_FP32]), st.floats(2, 300)), min_size=2, max_size=12
    ),
    every=st.sampled_from([10.0, 100.0]),
    sync=st.booleans(),
)
def test_mixed_precision_is_never_estimated_beyond_its_bound(analysis, kernels, every, sync):
    program = [(name, us, operator) for (name, _, operator), us in kernels]
    advice = amp(analysis(steps_of(SHORT, *program, every=every, sync=sync, device=A100)))
    assert advice.predicted_gain is not None
    assert (advice.estimated_gain or 1.0) <= advice.predicted_gain


@pytest.mark.parametrize("name", ["Cijk_Ailk_Bljk_HHS_BH_MT64x16x32_MI16x16x1", "igemm_fwd_gtcx_nhwc_bf16_bx0"])
def test_16_bits_on_amd_gain_nothing(analysis, name):
    assert amp(analysis(steps_of(*[(name, 100, "aten::mm")] * 9, device=MI210))).share_of_step == 0


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, AddFunctor<float> >",
    ],
)
def test_what_autocast_leaves_in_float32_gains_nothing(analysis, name):
    other, batch_norm = (name, 100, "aten::x"), ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>", 100, "aten::x")
    kept, halved = (amp(analysis(steps_of(SHORT, SGEMM, *[kernel] * 8))) for kernel in (other, batch_norm))
    assert kept.estimated_gain == pytest.approx(900 / (30.5 + 800), rel=0.02)
    assert halved.estimated_gain == pytest.approx(900 / (30.5 + 400), rel=0.02)
    assert halved.predicted_gain > kept.predicted_gain > kept.estimated_gain


def test_the_optimizer_stays_in_float32(analysis):
    outside, inside = (
        amp(analysis(steps_of(SHORT, SGEMM, *[ADD_FP32] * 8, around=around))).estimated_gain
        for around in (None, "Optimizer.step#SGD.step")
    )
    assert outside > 2
    assert inside < 1.15


def test_a_copy_made_early_still_takes_its_time_beside_the_step(analysis):
    """500 us of copies, then 300 us of kernels: beside one another they take the longer."""
    builder = TraceBuilder()
    for number in range(4):
        begin = number * 830
        builder.step(number, begin, 830)
        builder.copy(begin, 4, begin + 10, 500, 1_000_000, name="Memcpy HtoD (Pinned -> Device)")
        builder.launch("k", begin + 10, 4, begin + 511, 300, op=builder.op("aten::mm", begin + 8, 8))
        builder.add("runtime", "cudaStreamSynchronize", begin + 20, 792, correlation=-2)
    early = next(advice for advice in advise(analysis(builder)).advice if advice.step == "06_prefetch_stream")
    assert early.estimated_gain == pytest.approx(830 / 500, rel=0.01)


def test_a_bigger_batch_takes_the_optimizer_no_longer(analysis):
    """450 us of the model's kernel, which leaves no room for more, as much of the optimizer's, and the rest waits."""
    builder = TraceBuilder()
    for number in range(4):
        begin = number * 1120
        builder.step(number, begin, 1120)
        at = begin
        for operator in ("aten::mm", "Optimizer.step#SGD.step"):
            op = builder.op(operator, at, 100)
            builder.launch("k", at + 90, 4, at + 96, 450, op=op, **{"blocks per SM": 4})
            builder.add("runtime", "cudaStreamSynchronize", at + 101, 446, correlation=-2)
            at += 550
    bigger = next(advice for advice in advise(analysis(builder)).costs if advice.step == "02_bigger_batch")
    assert bigger.estimated_gain == pytest.approx(2 * 1120 / (1120 + 450), rel=0.01)


def test_a_bigger_batch_is_advice_of_its_own_and_never_combined(analysis):
    """It changes what is trained; without it, the same advice would be first or second in what is combined."""
    small = ("volta_sgemm_32x32_sliced1x4_nn", 8, "aten::mm")
    result = analysis(steps_of(*[small] * 20, every=30.0, load=900.0, around="MmBackward0"))
    bigger = next(advice for advice in advise(result).advice if advice.step == "02_bigger_batch")
    assert bigger.estimated_gain > 1.2
    assert advise(result).together
    assert all(bigger.title not in combination.titles for combination in advise(result).together)


EXCHANGE = ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 300, "nccl:all_to_all")
REDUCE = ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 300, "nccl:all_reduce")


def test_an_exchange_grows_with_the_batch_and_a_reduction_does_not(analysis):
    """Of 1060 us per step, 300 us are the collective's, and 60 us pass before it; the product grows too."""
    product = ("ampere_fp16_s16816gemm", 700, "aten::mm")

    def gain(collective):
        kernels = [SHORT, collective, product]
        builder = steps_of(*kernels, every=60.0, sync=True, around="MmBackward0")
        return next(item for item in advise(analysis(builder)).costs if item.step == "02_bigger_batch").estimated_gain

    exchanging, reducing = gain(EXCHANGE), gain(REDUCE)
    assert exchanging < 1.1
    assert reducing == pytest.approx(exchanging * 2060 / 1760, rel=0.03)


def test_an_estimate_far_from_its_cost_has_its_reason(analysis):
    graphs = analysis(steps_of(*[("ampere_fp16_s16816gemm", 30, "aten::mm")] * 8, every=200.0, sync=True))
    first = next(item for item in advise(graphs).advice if item.step in ("13_compile", "15_cuda_graphs"))
    other = {"13_compile": "Use CUDA graphs", "15_cuda_graphs": "torch.compile the model"}[first.step or ""]
    assert f"; {other} instead: " in first.do

    loading = analysis(steps_of(*[SGEMM] * 4, ADD, load=500.0))
    [mixed] = [item for item in advise(loading).advice if item.step == "01_amp"]
    assert mixed.do.endswith("; without that cost the CPU bounds the step")

    alone = analysis(steps_of(REDUCE, ("ampere_fp16_s16816gemm", 100, "aten::mm"), SHORT, around="MmBackward0"))
    [overlap] = [item for item in advise(alone).advice if item.title == "Overlap communication"]
    assert overlap.do.endswith("; what is overlapped still takes its time, and no step takes less")


def test_what_is_fused_is_gone_where_no_operator_was_recorded_too(analysis):
    builder, at = TraceBuilder(), 0.0
    for number in range(4):
        builder.step(number, at, 30)
        for index in range(6):
            builder.launch(ADD[0], at + 1 + index * 4, 3, number * 480 + 15 + index * 80, 79)
        at += 30
    compiling = next(item for item in advise(analysis(builder)).costs if item.step == "13_compile")
    assert compiling.estimated_gain > 2


def test_what_the_replay_cannot_tell_from_nothing_is_not_advised(analysis):
    def loading(us):
        return analysis(steps_of(("ampere_fp16_s16816gemm", 900, "aten::mm"), load=us, sync=True))

    little = next(item for item in advise(loading(24.0)).costs if item.step == "04_multiprocess_loading")
    assert little.share_of_step >= 0.02
    assert little.title not in titles(loading(24.0))
    assert little.title in titles(loading(60.0))


def test_work_between_the_steps_marks_is_in_no_step_and_proves_no_slower_one(analysis):
    """Marks of 1 ms, and work all along the 10 ms from one to the next: less work moves into the marks."""
    builder = TraceBuilder()
    for number in range(3):
        begin = number * 10_000
        builder.step(number, begin, 1000)
        for at in range(begin + 10, begin + 9000, 90):
            op = builder.op("aten::mm", at, 60)
            builder.launch("ampere_fp16_s16816gemm_fp16_128x64_align1_nn", at + 5, 5, at + 15, 80, op=op)
    result = analysis(builder)
    assert all(cost.estimated_gain is None or cost.estimated_gain >= 1 for cost in advise(result).costs)
    assert sum(result.kinds_us.values()) <= result.steps.mean_us
    assert all(finding.us_per_step <= result.steps.mean_us for finding in advise(result).findings)
    assert {finding.id for finding in advise(result).findings} == {"misaligned_matmul"}


def test_the_optimizers_kernels_are_no_chains_that_compiling_fuses(analysis):
    result = analysis(steps_of(("ampere_fp16_s16816gemm", 100, "aten::mm"), *[ADD] * 60, around="Optimizer.step#SGD"))
    [compiling] = [advice for advice in advise(result).costs if advice.step == "13_compile"]
    assert "compiled code fuses" not in compiling.why
    found = {item.id for item in advise(result).findings}
    assert {"fusable_elementwise", "unfused_optimizer"} & found == {"unfused_optimizer"}


def waits_of(result):
    [item] = [item for item in advise(result).costs if item.id == "no_hidden_syncs"]
    return item


def test_a_wait_costs_what_the_gpu_could_have_done_while_the_next_batch_is_loaded(analysis):
    """A step: 500 us of loading, 45 of launches, and a wait of 365 until four kernels have run.

    Without waits the CPU loads while they run, so a step takes 545 us; but nothing follows the last one's kernels.
    """
    item = waits_of(analysis(steps_of(*[SGEMM] * 4, load=500.0, sync=True)))
    gain = 4 * 910 / (4 * 545 + 365)
    assert item.estimated_gain == pytest.approx(gain, rel=0.02)
    assert item.estimated_gain <= item.predicted_gain == pytest.approx(gain, rel=0.04)
    assert "the CPU waits for the GPU 1x per step" in item.why


@pytest.mark.parametrize("copies", [False, True])
def test_a_wait_beside_which_another_stream_works_costs_nothing(analysis, copies):
    """As long for the CPU as in the test before: 600 us of 1000. Copying back and waiting for it is one wait."""
    builder = TraceBuilder()
    for number in range(4):
        begin = number * 1000
        builder.step(number, begin, 1000)
        op = builder.op("aten::mm", begin, 40)
        _, other = builder.launch(SGEMM[0], begin + 5, 4, begin + 12, 985, op=op)
        other["tid"] = other["args"]["stream"] = 20
        builder.launch(SGEMM[0], begin + 15, 4, begin + 25, 610, op=op)
        if copies:
            builder.copy(begin + 40, 598, begin + 636, 1, 8, name="Memcpy DtoH (Device -> Pageable)")
        builder.add("runtime", "cudaStreamSynchronize", begin + (639 if copies else 40), 2 if copies else 600)
    item = waits_of(analysis(builder))
    assert item.share_of_step < 0.02
    assert item.predicted_gain == pytest.approx(1.0, abs=0.02)
    assert "the CPU waits for the GPU 1x per step" in item.why


def test_a_cost_too_small_for_advice_has_no_bound_that_a_replay_exceeds(analysis):
    """300 us of Python beside a kernel, so that the GPU hardly waits for it; but without it the CPU would load then."""
    builder = TraceBuilder()
    for number in range(4):
        begin = number * 1010
        builder.step(number, begin, 1008)
        op = builder.op("aten::mm", begin, 10)
        builder.launch(SGEMM[0], begin + 1, 4, begin + 7, 295, op=op)
        builder.loading(begin + 306, 700)
    [item] = [item for item in advise(analysis(builder)).costs if item.id == "host_python"]
    assert 0 < item.share_of_step < 0.02
    assert item.predicted_gain is item.estimated_gain is None
