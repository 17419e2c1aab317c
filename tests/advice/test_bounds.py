"""What bounds a step: the verdict, and how many times faster it would be at most without each cost."""

from itertools import pairwise

import pytest
from pytest import approx
from support.trace_builder import V100, TraceBuilder, analyzed, costs, two_steps

from walkthrough.advice.gains import ALIKE, advise
from walkthrough.advice.kernel_costs import shortest_us
from walkthrough.advice.verdict import bound

SGEMM, DEPTHWISE = "volta_sgemm_128x64_nn", "void at::native::conv_depthwise2d_forward_kernel<3, float, int>"
NCHW = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"
ADD = "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>"


def one_step(**header):
    """A step of 1000 µs."""
    builder = TraceBuilder(**header)
    builder.step(1, 0, 1000)
    return builder


def computing(us, name="volta_h884gemm_128x128", collective_us=0, at=10):
    """A kernel of so many µs from `at` on, then a collective; both are launched within 30 µs."""
    builder = one_step()
    builder.launch(name, 5, 5, at, us, op=builder.op("aten::mm", 0, 20))
    if collective_us:
        record = builder.op("record_param_comms", 21, 10)
        builder.launch("ncclDevKernel_AllReduce", 22, 5, at + us, collective_us, op=record)
    return builder


@pytest.mark.parametrize(
    ("builder", "begin"),
    [
        (computing(985), "compute-bound: kernels fill 98% of the step"),
        (computing(985, "k"), "GPU-bound: kernels fill 98% of the step, 0% of their time matrix work; left to try"),
        (computing(400, "k"), "kernels fill 40% of the step"),
        (computing(200, collective_us=760),
         "kernels that compute fill 20% of the step, communication alone 76%; try first: Compare the ranks"),
        (computing(965, collective_us=20),
         "compute-bound: kernels that compute fill 96% of the step, communication alone 2%, 98% of all kernels'"),
        (computing(200, collective_us=300, at=500),
         "for the first 0.5 ms the GPU most likely still runs what was launched before the trace; in the rest kernels "
         "that compute run 38% of the time, communication alone 57%, and 40% of all kernels' time is matrix work"),
        (computing(980, collective_us=5), "compute-bound: kernels fill 98% of the step, 99% of their time matrix work"),
    ],
)  # fmt: skip
def test_the_verdict_names_what_bounds_the_step(builder, begin):
    assert advise(analyzed(builder)).verdict.startswith(begin)


def test_a_gpu_that_mostly_communicates_is_never_compute_bound():
    text = bound(analyzed(computing(600, collective_us=380)).typical)
    assert text == "kernels that compute fill 60% of the step, communication alone 38%, and nothing else stands out"


def test_advice_is_amdahls_bound():
    found = costs(two_steps())
    bounds = {
        "dataloader_workers": 1000 / 800, "mixed_precision": 1000 / 600, "pinned_memory": 1000 / 950,
        "uint8_images": 1 / (1 - 0.05 * 0.75), "channels_last": None, "data_on_device": None, "bigger_batch": None,
    }  # fmt: skip
    assert {name: found[name].predicted_gain for name in bounds} == {
        name: gain and approx(gain) for name, gain in bounds.items()
    }
    assert found["bigger_batch"].share_of_step == approx((90 + 200) / 1000)  # and half the SMs idle
    assert found["compile"].share_of_step == approx(90 / 1000)
    result = advise(analyzed(two_steps()))
    left = [item.remaining for item in result.advice if item.id != "bigger_batch"]
    assert all(before <= after * ALIKE for before, after in pairwise(left))
    # The CPU is not at work in 340-740, beside the kernel: so a shorter kernel is of no use.
    assert found["mixed_precision"].estimated_gain == approx(1, abs=0.01)
    assert found["dataloader_workers"].estimated_gain == approx(1.25, rel=0.01)


def test_a_gpu_that_only_copies_has_no_shortest_kernel():
    builder = one_step()
    builder.copy(10, 20, 40, 10, 4096)
    assert shortest_us(analyzed(builder)) == 0.0


def test_data_on_the_device_saves_what_workers_and_copies_leave():
    builder = two_steps()
    for event in builder.events:
        event["name"] = event["name"].replace("_SingleProcess", "_MultiProcessing")
    found = costs(builder)
    assert [found[name].predicted_gain for name in ("small_images", "data_on_device")] == approx([1000 / 750] * 2)


@pytest.mark.parametrize(("kind", "cost"), [("Pageable", "pinned_memory"), ("Pinned", "prefetch_stream")])
@pytest.mark.parametrize("known", [True, False])
def test_copies_that_block_the_gpu_are_pinned_or_start_earlier_by_their_name(kind, cost, known):
    """Also those of unknown size."""
    builder = one_step()
    _, copy = builder.copy(0, 100, 5, 90, 1000, name=f"Memcpy HtoD ({kind} -> Device)")
    if not known:
        del copy["args"]["bytes"]
    builder.launch("k", 100, 10, 200, 800)
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
