"""The share of kernels' time on Tensor Cores, AMD's matrix cores or Intel's XMX engines, and which GPUs have them."""

import pytest
from support.trace_builder import V100, TraceBuilder, analyzed, costs, one_step

from walkthrough.trace.kernels import has_matrix_units, unit_name, vendor

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def launched(kernels, device=None, call="cudaLaunchKernel", number=0, **header):
    """The analysis of [(kernel's name, µs, operator)] on that device."""
    builder = TraceBuilder(devices=[{"id": 0, **device}] if device else [])
    builder.header |= header
    for place, (name, us, operator) in enumerate(kernels):
        op = builder.op(operator, place * 1000, 50)
        at = place * 1000 + 10
        calling, _ = builder.launch(name, at, 5, at + 10, us, op=op, call=call, device=number)
        calling["cat"] = {"c": "cuda", "h": "hip"}.get(call[0], "xpu") + "_runtime"
    return analyzed(builder)


@pytest.mark.parametrize(
    ("device", "header", "call", "maker", "units"),
    [
        ({"name": "NVIDIA H100", "computeMajor": 9, "warpSize": 32}, {}, "cudaLaunchKernel", "nvidia", "Tensor Cores"),
        (None, {}, "cudaLaunchKernel", "nvidia", "Tensor Cores"),
        ({"name": "AMD Instinct MI300X", "computeMajor": 9}, {}, "cudaLaunchKernel", "amd", "Matrix cores"),
        ({"name": "", "warpSize": 64}, {}, "cudaLaunchKernel", "amd", "Matrix cores"),
        (None, {"hip_runtime_version": "60443483"}, "cudaLaunchKernel", "amd", "Matrix cores"),
        (None, {}, "hipExtModuleLaunchKernel", "amd", "Matrix cores"),
        ({"name": "Intel(R) Data Center GPU Max 1550"}, {}, "cudaLaunchKernel", "intel", "XMX engines"),
        (None, {}, "urEnqueueKernelLaunchWithArgsExp", "intel", "XMX engines"),
        (None, {}, "zeCommandListAppendLaunchKernel", "intel", "XMX engines"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])  # ROCm often numbers a device otherwise than its properties
def test_the_maker_and_its_word_for_the_units_are_told_by_what_is_recorded(device, header, call, maker, units, number):
    tensile = "Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1"
    result = launched([(tensile, 300, "aten::mm")], device, call, number, **header)
    assert (vendor(result.trace), unit_name(result.trace)) == (maker, units)
    assert has_matrix_units(result.trace, number)
    assert result.gpus[0].name == (device and device["name"])
    assert result.gpus[0].tensor_core_share == 1
    assert result.tensor_cores.fp32_matrix.all() == (maker == "amd")


@pytest.mark.parametrize(
    ("name", "major", "has_units"),
    [
        ("NVIDIA GeForce GTX 1650", 7, False),
        ("NVIDIA GeForce MX450", 7, False),
        ("Tesla P100-PCIE-16GB", 6, False),
        ("NVIDIA TITAN V", 7, True),
        ("AMD Instinct MI50/MI60", 9, False),
        ("AMD Radeon RX 6800", 10, False),
        ("AMD Radeon RX 7900 XTX", 11, True),
        ("Intel(R) Iris(R) Xe Graphics", None, False),
        ("Intel(R) Arc(TM) B580 Graphics", None, True),
    ],
)
def test_a_gpu_without_matrix_units_is_known_by_its_name_or_compute_capability(name, major, has_units):
    result = launched([("volta_h884gemm_128x64", 100, "aten::mm")], {"name": name, "computeMajor": major})
    assert has_matrix_units(result.trace, 0) is has_units
    assert result.gpus[0].tensor_core_share == has_units
    assert result.all_tables.kernels[0].tensor_cores is has_units


def test_they_are_shares_of_the_time_that_operators_launched():
    builder = one_step()
    mm, add, outer = builder.op("aten::mm", 0, 50), builder.op("aten::add", 60, 20), builder.op("aten::linear", 100, 90)
    inner = builder.op("aten::addmm", 110, 50)
    builder.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 10, 5, 200, 100, op=mm)
    builder.launch("volta_sgemm_128x64_nn", 20, 5, 300, 200, op=mm)
    builder.launch(ELEMENTWISE, 65, 5, 500, 300, op=add)
    builder.launch("volta_sgemm_128x64_nn", 120, 5, 800, 50, op=inner)
    builder.launch(ELEMENTWISE, 170, 5, 850, 50, op=outer)
    builder.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 950, 5, 960, 500)  # by no operator: not counted
    result = analyzed(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(100 / 700)
    # aten::linear is not the innermost eligible operator, aten::addmm is.
    assert result.tensor_cores.eligible_share == pytest.approx((100 + 200 + 50) / 700)
    assert costs(builder)["mixed_precision"].share_of_step == pytest.approx((200 + 50) / result.steps.mean_us)


def test_the_kernels_of_a_cuda_graph_count_although_no_operator_launched_them():
    """One that is no operator's as well; of a graph's kernels the matrix products could use Tensor Cores."""
    builder = one_step()
    builder.launch(ELEMENTWISE, 5, 5, 15, 100, op=builder.op("aten::add", 0, 20))
    _, first = builder.launch("volta_h884gemm_128x128", 30, 5, 200, 300, call="cudaGraphLaunch")
    builder.events.append(first | {"name": "volta_sgemm_128x64_nn", "ts": 500, "dur": 200})
    builder.events.append(first | {"name": ELEMENTWISE, "ts": 700, "dur": 200})
    builder.launch("volta_h884gemm_128x128", 40, 5, 900, 50)  # by no operator and no graph: not counted
    result = analyzed(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(300 / 800)
    assert result.tensor_cores.eligible_share == pytest.approx(500 / 800)


def test_kernels_are_linked_by_containment_where_the_ids_name_no_operator():
    builder = one_step()
    for name, at, tid in (("aten::mm", 0, 1), ("aten::add", 200, 2), ("aten::mul", 200, 3)):
        builder.op(name, at, 100, tid)
    builder.launch("volta_sgemm_128x64_nn", 10, 5, 100, 30)
    builder.launch(ELEMENTWISE, 210, 5, 300, 70, tid=2)
    for event in builder.events:
        if "correlation" in event["args"]:
            event["args"]["External id"] = 999_999 + event["args"]["correlation"]
    assert analyzed(builder).tensor_cores.eligible_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("kernels", "major", "share", "unknown"),
    [
        ([("somebodys_gemm", 30)], 7, None, 1.0),
        ([("somebodys_gemm", 30), ("volta_h884gemm_128x128", 10)], 7, 0.25, 0.75),
        ([("somebodys_gemm", 30)], 6, 0, 0),  # a GPU from before Tensor Cores
    ],
)
def test_an_unknown_kernel_is_neither_a_yes_nor_a_no(kernels, major, share, unknown):
    result = launched([(name, us, "aten::mm") for name, us in kernels], V100 | {"computeMajor": major})
    assert (result.gpus[0].tensor_core_share, result.tensor_cores.unknown) == (share, {0: unknown})


def test_kernels_of_which_nothing_tells_what_they_do_are_not_counted_as_no_matrix_work():
    kernels = [("volta_sgemm_128x64_nn", 100, "aten::mm"), ("triton__0d1d2d3de", 600, "triton__0d1d2d3de")]
    kernels += [("_attn_fwd", 200, "my::attention"), (ELEMENTWISE, 100, "aten::add")]
    cores = launched(kernels).tensor_cores
    assert (cores.eligible_share, cores.unknown_kind_share) == (pytest.approx(0.3), pytest.approx(0.6))
    assert launched([("somebodys_kernel", 100, "aten::mm")]).tensor_cores.unknown_kind_share == 0  # by its operator


def test_float64_products_are_none_that_autocast_would_speed_up():
    kernels = [("volta_sgemm_128x64_nn", 100, "aten::mm"), ("volta_dgemm_128x64_nn", 100, "aten::mm")]
    kernels += [("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<double>, float>", 50, "aten::add")]
    cores = launched(kernels).tensor_cores
    assert cores.fp32_matrix.tolist() == [True, False, False]
    assert not cores.fp32_other.any()
