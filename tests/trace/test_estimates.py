"""Which advice is given, and what is estimated together."""

import pytest
from support.trace_builder import TraceBuilder

from common.trace.summary import summarize


@pytest.fixture
def summary(tmp_path):
    """summary(builder): the `Summary` of a trace."""
    return lambda builder: summarize(builder.write(tmp_path / "made.pt.trace.json.gz"))


def steps_of(*kernels, load=0.0, every=10.0, sync=False):
    """Four steps on one V100, each launching (name, µs, operator) every so many µs; load: µs for the DataLoader."""
    builder, at, end = TraceBuilder(), 0.0, 0.0
    for number in range(4):
        begin = at
        if load:
            builder.loading(begin, load)
        at = begin + load + 1
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


def titles(result):
    return [advice.title for advice in result.advice]


def test_of_compiling_and_graphs_one_is_enough_where_both_gain_no_more(summary):
    """Every kernel waits 40 us for its launch, and none can be fused."""
    result = summary(steps_of(*[("ampere_fp16_s16816gemm", 8, "aten::mm")] * 8, every=48.0, sync=True))
    both = {advice.step: advice for advice in result.bottlenecks if advice.step in ("13_compile", "15_cuda_graphs")}
    assert all(advice.estimated_gain > 1.2 for advice in both.values())
    assert len({"compile the model", "CUDA graphs"} & set(titles(result))) == 1


def test_what_bounds_the_step_after_the_first_change_is_combined_with_it(summary):
    """Kernels run beside the loader, so faster ones alone gain little; without the loader, nothing else is left."""
    result = summary(steps_of(*[SGEMM] * 4, ADD, load=500.0))
    assert titles(result)[0] == "load in processes"
    [amp] = [advice for advice in result.advice if advice.step == "01_amp"]
    assert amp.estimated_gain < 1.2
    first = result.combined[0]
    assert first.titles == ["load in processes", amp.title]
    assert first.estimated_gain > 2 * result.advice[0].estimated_gain


def test_together_says_only_what_is_new(summary):
    """Without its loader, the step is what one kernel in 16 bits takes."""
    result = summary(steps_of(("ampere_fp16_s16816gemm", 1000, "aten::mm"), load=500.0, sync=True))
    assert titles(result)[0] == "load in processes"
    for one, more in zip([result.advice[0], *result.combined], result.combined, strict=False):
        assert more.estimated_gain > 1.05 * one.estimated_gain


def test_chains_of_elementwise_kernels_are_for_compiling_too(summary):
    long_add = (ADD[0], 50, ADD[2])
    result = summary(steps_of(("ampere_fp16_s16816gemm", 100, "aten::mm"), *[long_add] * 4))
    [compiling] = [advice for advice in result.advice if advice.step == "13_compile"]
    assert compiling.why.startswith("150 us of a step are kernels that compiled code fuses")
    assert compiling.share_of_step == pytest.approx(150 / 304, rel=0.1)


def test_attention_in_parts_is_to_be_fused(summary):
    softmax = ("void (anonymous namespace)::softmax_warp_forward<c10::Half>", 200, "aten::_softmax")
    product = ("ampere_fp16_s16816gemm", 100, "aten::bmm")
    result = summary(steps_of(product, softmax, product))
    [fusing] = [advice for advice in result.advice if advice.title == "fuse attention"]
    assert fusing.estimated_gain == pytest.approx(2, rel=0.1)
    assert "fuse attention" not in titles(summary(steps_of(product, product)))


def test_what_gains_nothing_and_never_will_is_not_advised(summary):
    """A pinned copy beside the kernels of the step before: 2 % of the time at most, and the CPU takes longer anyway."""
    builder = steps_of(*[ADD] * 40, every=25.0)
    for number in range(4):
        _, copy = builder.copy(number * 1004 + 950, 5, number * 1004 + 975, 30, 1000, name="Memcpy HtoD (Pinned)")
        copy["tid"] = copy["args"]["stream"] = 20
    result = summary(builder)
    early = next(advice for advice in result.bottlenecks if advice.step == "06_prefetch_stream")
    assert early.share_of_step >= 0.02
    assert early.title not in titles(result)
