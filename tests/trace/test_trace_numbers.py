"""What is computed from a trace, each number on a trace small enough to compute by hand."""

import json

import numpy as np
import pytest
from support.trace_builder import V100, TraceBuilder, two_steps

from common.trace.communication import communication
from common.trace.idle import idle
from common.trace.reader import read
from common.trace.steps import steps
from common.trace.summary import summarize

ERAS = pytest.mark.parametrize("era", ["2021", "today"])


@pytest.fixture
def summary(tmp_path):
    """summary(builder): of the trace that a builder made."""
    return lambda made: summarize(made.write(tmp_path / "made.pt.trace.json.gz"))


@pytest.fixture
def trace(tmp_path):
    return lambda made: read(made.write(tmp_path / "made.pt.trace.json.gz"))


@ERAS
def test_a_step_is_divided_among_its_roles(summary, era):
    cut = summary(two_steps(era)).steps
    assert cut.names == ["3", "4"]
    assert cut.mean_us == 1000
    assert cut.mean_breakdown_us == {
        "kernel": 400,
        "memcpy": 30,
        "memset": 0,
        "communication": 0,
        "runtime": 20 + 10 + 40,  # the copy's call but for the copy, the launch, the synchronisation
        "dataloader": 200,
        "cpu_exec": 20 + 60,  # the first operator but for the launch and the kernel, and the second
        "other": 1000 - 400 - 30 - 70 - 200 - 80,
    }


@ERAS
def test_a_gpu_is_busy_while_a_kernel_runs(summary, era):
    [gpu] = summary(two_steps(era)).gpus
    assert (gpu.id, gpu.name) == (0, "Tesla V100")
    assert gpu.utilization == pytest.approx(0.4)
    assert gpu.sm_efficiency == pytest.approx(0.4 * 0.5)
    assert gpu.occupancy_percent == pytest.approx(40)
    assert gpu.tensor_core_share == 0


@ERAS
def test_each_cause_of_waiting_has_its_time_and_they_sum_to_the_whole(trace, era):
    read_back = trace(two_steps(era))
    waits = idle(read_back, steps(read_back), 0)
    assert waits.total_us == 2 * 600
    assert waits.causes_us == {
        "copy": 2 * 50,
        "dataloader": 2 * 200,
        "synchronisation": 2 * 40,
        "setup": 0,
        "launch": 2 * (30 + 60),  # the first operator until its kernel begins, and the second
        "other": 2 * (600 - 50 - 200 - 40 - 90),
    }
    assert list(zip(waits.start - waits.start[0], waits.end - waits.start[0], strict=True)) == [
        (0, 330), (730, 1330), (1730, 2000)
    ]  # fmt: skip
    assert waits.by_gap.sum(axis=0).tolist() == [330, 600, 270]


def test_a_launch_that_loads_code_is_setting_up_and_not_launch_bound(trace):
    made = TraceBuilder()
    made.step(1, 0, 50_000)
    made.launch("k", 0, 30_000, 30_000, 100)
    made.launch("k", 40_000, 10, 40_020, 100)
    read_back = trace(made)
    causes = idle(read_back, steps(read_back), 0).causes_us
    assert (causes["setup"], causes["launch"]) == (30_000, 10)


def test_a_step_lasts_until_the_device_work_that_it_launched_has_ended(summary):
    made = TraceBuilder()
    made.step(1, 0, 100)
    made.launch("k", 50, 10, 70, 80)  # ends at 150, when the next step has long begun
    made.step(2, 100, 100)
    made.launch("k", 110, 10, 150, 40)
    cut = summary(made).steps
    assert (cut.duration.tolist(), cut.mean_breakdown_us["kernel"]) == ([150, 50], (80 + 40) / 2)


def test_a_step_begins_after_device_work_from_before_the_first(summary):
    made = TraceBuilder()
    made.launch("k", -50, 10, -20, 50)  # launched before the steps, ends at 30
    made.step(1, 0, 100)
    made.launch("k", 50, 10, 70, 20)
    assert summary(made).steps.duration.tolist() == [70]


def test_last_steps_whose_kernels_are_missing_are_left_out(summary):
    made = TraceBuilder()
    for number in range(5):
        made.step(number, number * 100, 100)
        for call in range([10, 10, 10, 7, 0][number]):  # the fourth has 70 % of them, the last none
            made.launch("k", number * 100 + call * 5, 2, number * 100 + call * 5 + 3, 1)
    assert summary(made).steps.names == ["0", "1", "2"]


def test_without_step_marks_the_operators_are_the_one_step(summary):
    made = TraceBuilder()
    made.op("aten::mm", 100, 50)
    made.op("aten::add", 300, 100)
    cut = summary(made).steps
    assert (cut.names, cut.mean_us, cut.marked) == (["0"], 300, False)
    assert cut.mean_breakdown_us["cpu_exec"] == 150


def test_the_device_copies_of_step_marks_are_no_steps(summary):
    made = two_steps()
    made.add("gpu_user_annotation", "ProfilerStep#3", 10_330, 400, tid=7, pid=0)
    assert summary(made).steps.names == ["3", "4"]


def test_a_cpu_trace_has_no_gpu_and_says_so_with_null(summary):
    made = TraceBuilder(devices=[])
    made.step(1, 0, 100)
    made.loading(0, 30)
    made.op("aten::mm", 40, 50)
    found = summary(made).as_json()
    assert found["gpus"] == []
    assert found["eligible_kernel_share"] is None
    assert found["steps"]["breakdown_us"]["dataloader"] == 30
    assert found["steps"]["breakdown_us"]["cpu_exec"] == 50
    assert found["memory"] == {"peak_allocated_bytes": None, "peak_reserved_bytes": None}


def test_operators_of_a_cpu_trace_count_without_what_runs_inside_them(summary):
    made = TraceBuilder(devices=[])
    made.step(1, 0, 200)
    made.op("aten::linear", 0, 100)
    made.op("aten::addmm", 20, 50)
    made.op("aten::copy_", 30, 10)
    made.op("aten::addmm", 150, 5)
    made.op("aten::copy_", 20, 10, tid=2)
    found = summary(made).operators
    assert [(each.name, each.count, each.us) for each in found] == [
        ("aten::linear", 1, 50), ("aten::addmm", 2, 45), ("aten::copy_", 2, 20)
    ]  # fmt: skip


def test_overlapping_kernels_count_once_for_the_time_and_together_for_the_sms(summary):
    made = TraceBuilder()
    made.step(1, 0, 100)
    made.launch("k", 0, 1, 10, 40, **{"blocks per SM": 0.75, "est. achieved occupancy %": 20})
    made.launch("k", 1, 1, 30, 40, **{"blocks per SM": 0.5, "est. achieved occupancy %": 60})
    [gpu] = summary(made).gpus
    assert gpu.utilization == pytest.approx(0.6)
    assert gpu.sm_efficiency == pytest.approx((20 * 0.75 + 20 * 1.0 + 20 * 0.5) / 100)  # at most 1 where both run
    assert gpu.occupancy_percent == pytest.approx(40)


def test_gpus_are_told_apart(summary):
    made = TraceBuilder(devices=[V100, V100 | {"id": 1, "name": "Other"}])
    made.step(1, 0, 100)
    made.launch("k", 0, 1, 10, 50)
    made.launch("k", 1, 1, 10, 20, device=1)
    found = summary(made)
    assert [(gpu.id, gpu.name, gpu.utilization) for gpu in found.gpus] == [(0, "Tesla V100", 0.5), (1, "Other", 0.2)]
    assert [each.total_us for each in found.idle] == [50, 80]


def test_tensor_cores_are_shares_of_the_time_that_operators_launched(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    mm, add, outer = made.op("aten::mm", 0, 50), made.op("aten::add", 60, 20), made.op("aten::linear", 100, 90)
    inner = made.op("aten::addmm", 110, 50)
    made.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 10, 5, 200, 100, op=mm)
    made.launch("volta_sgemm_128x64_nn", 20, 5, 300, 200, op=mm)
    made.launch("void at::native::vectorized_elementwise_kernel<4>", 65, 5, 500, 300, op=add)
    made.launch("volta_sgemm_128x64_nn", 120, 5, 800, 50, op=inner)
    made.launch("void at::native::vectorized_elementwise_kernel<4>", 170, 5, 850, 50, op=outer)
    made.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 950, 5, 960, 500)  # by no operator: not counted
    found = summary(made)
    assert found.gpus[0].tensor_core_share == pytest.approx(100 / 700)
    # aten::linear is not the innermost eligible operator, aten::addmm is.
    assert found.tensor_cores.eligible_share == pytest.approx((100 + 200 + 50) / 700)
    assert found.levers[1].step == "01_amp"
    assert found.levers[1].share_of_step == pytest.approx((200 + 50) / found.steps.mean_us)


def test_kernels_are_linked_by_containment_where_the_ids_name_no_operator(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.op("aten::mm", 0, 100)
    made.op("aten::add", 200, 100, tid=2)
    made.op("aten::mul", 200, 100, tid=3)
    made.launch("volta_sgemm_128x64_nn", 10, 5, 100, 30)
    made.launch("void at::native::vectorized_elementwise_kernel<4>", 210, 5, 300, 70, tid=2)
    for event in made.events:
        if "correlation" in event["args"]:
            event["args"]["External id"] = 999_999 + event["args"]["correlation"]
    assert summary(made).tensor_cores.eligible_share == pytest.approx(0.3)


def test_an_unknown_kernel_is_neither_a_yes_nor_a_no(summary):
    made = TraceBuilder()
    made.step(1, 0, 100)
    op = made.op("aten::mm", 0, 50)
    made.launch("somebodys_gemm", 10, 5, 60, 30, op=op)
    found = summary(made)
    assert found.gpus[0].tensor_core_share is None
    assert found.tensor_cores.unknown == {0: 1.0}
    made.launch("volta_h884gemm_128x128", 20, 5, 90, 10, op=op)
    found = summary(made)
    assert found.gpus[0].tensor_core_share == pytest.approx(0.25)
    assert found.tensor_cores.unknown[0] == pytest.approx(0.75)


def test_a_gpu_from_before_tensor_cores_uses_none(summary):
    made = TraceBuilder(devices=[V100 | {"computeMajor": 6}])
    made.step(1, 0, 100)
    made.launch("somebodys_gemm", 10, 5, 60, 30, op=made.op("aten::mm", 0, 50))
    found = summary(made)
    assert (found.gpus[0].tensor_core_share, found.tensor_cores.unknown[0]) == (0, 0)
    assert "no Tensor Cores" in found.levers[1].why


def test_copies_are_counted_by_direction_and_kind_of_memory(summary):
    made = TraceBuilder()
    made.step(1, 0, 10_000)
    made.copy(0, 10, 20, 100, 1_000_000)
    made.copy(200, 10, 220, 50, 500_000, name="Memcpy HtoD (Pinned -> Device)")
    made.copy(300, 10, 320, 10, 4, name="Memcpy DtoH (Device -> Pageable)")
    made.copy(400, 10, 420, 10, 64, name="Memcpy DtoD (Device -> Device)")
    made.copy(-500, 10, -400, 10, 2_000_000)  # before the step
    found = summary(made)
    h2d = found.copies["h2d"]
    assert (h2d.count, h2d.bytes, h2d.us, h2d.pinned_bytes, h2d.pageable_bytes) == (
        3,
        3_500_000,
        160,
        500_000,
        3_000_000,
    )
    assert h2d.gigabytes_per_second == pytest.approx(3_500_000 / 160e-6 / 1e9)
    assert found.step_bytes == 1_500_000
    assert found.copies["d2h"].pageable_bytes == 4
    assert found.copies["d2d"].bytes == 64


def test_memory_has_its_peak_and_who_held_it(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.op("aten::conv2d", 0, 100)
    made.op("aten::empty", 10, 20)
    made.op("aten::relu", 200, 100)
    made.memory(15, 500, 1500, 4000, address=0xA)
    made.memory(50, 100, 1600, 4000, address=0xB)
    made.memory(150, -100, 1500, 4000, address=0xB)
    made.memory(210, 700, 2200, 5000, address=0xC)
    made.memory(400, 30, 2230, 5000, address=0xD)  # the peak, outside of any operator
    made.memory(500, -700, 1530, 6000, address=0xC)
    made.memory(20, 64, 64, address=0xE, device=None)
    gpu, cpu = summary(made).memory
    assert (gpu.device, gpu.peak_allocated, gpu.peak_reserved, gpu.growth) == (0, 2230, 6000, 1230)
    assert gpu.allocated.tolist() == [1500, 1600, 1500, 2200, 2230, 1530]
    assert gpu.at_peak == {"aten::relu": 700, "aten::conv2d": 500, "outside of any operator": 30}
    assert (cpu.peak_allocated, cpu.peak_reserved, cpu.at_peak) == (64, None, {"aten::conv2d": 64})


def test_memory_without_totals_tells_its_growth_alone(summary):
    made = TraceBuilder("2021")
    made.step(1, 0, 1000)
    for ts, change in ((1, 100), (2, 200), (3, -150), (4, 20)):
        made.memory(ts, change)
    found = summary(made)
    assert (found.memory[0].peak_allocated, found.memory[0].growth) == (None, 300)
    assert found.as_json()["memory"]["peak_allocated_bytes"] is None


def test_collectives_are_exposed_where_no_other_kernel_runs(trace):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 1, 100, 300)
    made.launch("k", 2, 1, 250, 50)
    made.launch("k", 4, 1, 350, 100)
    read_back = trace(made)
    talk = communication(read_back, steps(read_back))
    assert (talk.count, talk.us, talk.hidden_us, talk.exposed_us) == (1, 300, 100, 200)


def test_a_kernel_with_the_id_of_a_collective_is_communication(summary):
    made = TraceBuilder("2021")
    made.step(1, 0, 1000)
    op = made.op("nccl:all_reduce", 10, 20)
    made.launch("ncclKernel_AllReduce_RING_LL_Sum_float", 12, 3, 100, 300, op=op)
    assert summary(made).steps.mean_breakdown_us["communication"] == 20 + 300


def test_amd_traces_are_read(summary):
    made = TraceBuilder(devices=[{"id": 0, "name": "AMD Instinct MI300X"}])
    made.step(1, 0, 1000)
    op = made.op("aten::mm", 0, 100)
    made.launch("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1", 10, 5, 100, 300, op=op, call="hipLaunchKernel")
    made.launch("CopyHostToDevice", 400, 10, 420, 30, kind="copy", call="hipMemcpyWithStream", bytes=1000)
    for event in made.events:
        event["cat"] = {"cuda_runtime": "hip_runtime"}.get(event["cat"], event["cat"])
    found = summary(made)
    assert found.gpus[0].utilization == pytest.approx(0.3)
    assert found.gpus[0].tensor_core_share is None  # Tensor Cores are NVIDIA's
    assert found.copies["h2d"].bytes == 1000
    assert found.steps.mean_breakdown_us["runtime"] == 5 + 10


def test_advice_is_amdahls_bound_and_names_the_step(summary):
    found = summary(two_steps())
    by_step = {each.step: each for each in found.levers if each.step}
    assert by_step["04_multiprocess_loading"].predicted_gain == pytest.approx(1000 / 800)
    assert by_step["01_amp"].predicted_gain == pytest.approx(1000 / 600)
    assert by_step["02_bigger_batch"].predicted_gain == pytest.approx(1000 / (1000 - 90 - 200))  # and half the SMs idle
    assert by_step["05_pinned_memory"].predicted_gain == pytest.approx(1000 / 950)
    assert by_step["03_reduced_h2d_copy"].predicted_gain == pytest.approx(1 / (1 - 0.05 * 0.75))
    gains = [each.predicted_gain for each in found.advice]
    assert gains == sorted(gains, reverse=True)
    assert found.advice[0].step == "01_amp"


def test_each_step_of_the_ladder_has_one_lever_at_most_and_every_later_one_has_its_own(summary):
    for made in (two_steps(), amp_trace("volta_sgemm_128x64_nn")):
        named = [each.step for each in summary(made).levers if each.step]
        assert len(named) == len(set(named))
        for step in ("06_channels_last", "07_no_hidden_syncs", "08_compile", "10_on_device_data"):
            assert step in named


def test_layouts_turned_over_waits_and_launches_are_what_the_later_steps_treat(summary):
    turned = advised(summary(amp_trace("volta_sgemm_128x64_nn")), "06_channels_last")
    assert turned.share_of_step == pytest.approx(0.6)
    assert turned.predicted_gain == pytest.approx(1 / 0.4)
    found = summary(two_steps())
    assert advised(found, "06_channels_last").predicted_gain is None  # nothing is turned over, and nobody can tell
    launches = next(each for each in found.idle[0].causes_us.items() if each[0] == "launch")[1] / 2000
    assert advised(found, "08_compile").share_of_step == pytest.approx(launches)
    assert advised(found, "10_on_device_data").predicted_gain is None  # the training process loads: first change that


def test_data_on_the_device_saves_what_workers_and_copies_leave(summary):
    made = two_steps()
    for event in made.events:
        event["name"] = event["name"].replace("_SingleProcess", "_MultiProcessing")
    assert advised(summary(made), "10_on_device_data").predicted_gain == pytest.approx(1000 / (1000 - 200 - 50))


def test_pinned_copies_that_hold_the_gpu_up_are_to_be_made_early(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.copy(0, 5, 5, 195, 1000, name="Memcpy HtoD (Pinned -> Device)")
    made.launch("k", 100, 10, 200, 800)
    early = advised(summary(made), "09_prefetch_stream")
    assert early.title == "copy the next batch early"
    assert early.share_of_step == pytest.approx(0.2, abs=0.01)


def test_a_copy_called_in_a_step_counts_for_it_though_it_begins_beside_the_kernels_before(summary):
    """As a prefetching loader copies: in a stream of its own, while the GPU is behind the CPU."""
    made = TraceBuilder()
    for number, begin in ((1, 0), (2, 1000)):
        made.step(number, begin, 400)
        made.copy(begin + 10, 5, begin + 20, 100, 1000, name="Memcpy HtoD (Pinned -> Device)")
        made.launch("k", begin + 200, 10, begin + 600, 800)
    assert summary(made).steps.duration.tolist() == [1400, 1000]  # the second copy begins inside the first step
    assert summary(made).step_bytes == 1000


def test_with_nothing_left_to_gain_the_verdict_says_what_bounds(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    op = made.op("aten::mm", 0, 20)
    made.launch("volta_h884gemm_128x128", 5, 5, 10, 985, op=op)
    found = summary(made)
    assert found.advice == []
    assert "compute-bound: 98% of the step is kernels" in found.verdict


def test_the_json_is_the_fixed_interface(summary):
    found = json.loads(json.dumps(summary(two_steps()).as_json(), allow_nan=False))
    assert list(found) == [
        "file", "steps", "gpus", "kernels", "eligible_kernel_share", "copies", "memory", "advice"
    ]  # fmt: skip
    assert list(found["steps"]) == ["count", "names", "mean_us", "breakdown_us"]
    assert list(found["gpus"][0]) == [
        "id", "name", "utilization", "sm_efficiency", "occupancy_percent", "tensor_core_share"
    ]  # fmt: skip
    assert found["kernels"] == {"count": 2, "total_us": 800}
    assert list(found["copies"]) == ["h2d", "d2h", "d2d"]
    assert list(found["copies"]["h2d"]) == ["count", "bytes", "us", "pinned_bytes", "pageable_bytes"]
    assert list(found["memory"]) == ["peak_allocated_bytes", "peak_reserved_bytes"]
    assert list(found["advice"][0]) == ["step", "why", "share_of_step", "predicted_gain"]


def test_nanoseconds_are_kept_in_times_since_1970(trace):
    made = TraceBuilder()
    begin = 1_712_195_495_519_689.0
    made.step(1, begin, 100)
    made.launch("k", begin, 1, begin + 10, 1.764)
    assert trace(made).kernels.duration == pytest.approx([1.764], rel=1e-9)
    assert np.isfinite(trace(made).kernels.start).all()


def advised(found, step):
    return next(each for each in found.levers if each.step == step)


def amp_trace(convolution, helper="void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    op = made.op("aten::cudnn_convolution", 0, 50)
    made.launch(convolution, 0, 10, 20, 380, op=op)
    made.launch(helper, 10, 10, 400, 600, op=op)
    return made


def test_what_prepares_a_tensor_core_kernel_is_not_advised_to_use_them(summary):
    found = summary(amp_trace("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1"))
    assert advised(found, "01_amp").share_of_step == 0


def test_a_convolution_that_already_runs_in_half_precision_is_not_advised_to(summary):
    found = summary(amp_trace("void cudnn::cnn::conv2d_grouped_direct_kernel<__half, __half, __half, float>"))
    assert advised(found, "01_amp").share_of_step == 0


def test_half_precision_may_also_halve_the_bytes_of_other_kernels(summary):
    made = amp_trace("volta_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>")
    amp = advised(summary(made), "01_amp")
    assert amp.share_of_step == pytest.approx(0.38)
    assert amp.predicted_gain == pytest.approx(1 / (1 - 0.38 - 0.6 / 2))


def test_an_amd_gpu_has_no_tensor_cores_to_advise(summary):
    made = amp_trace("volta_sgemm_128x64_nn")
    made.header["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}]
    assert advised(summary(made), "01_amp").share_of_step == 0


def test_the_wait_after_a_synchronisation_counts_for_it(summary):
    made = TraceBuilder()
    for begin in (0, 1000):
        made.step(begin // 1000, begin, 1000)
        made.op("aten::add", begin, 400)
        made.launch("k", begin + 300, 10, begin + 400, 500)
        made.add("runtime", "cudaStreamSynchronize", begin + 450, 450, correlation=-2)
    lever = next(each for each in summary(made).levers if each.title == "do not synchronise")
    assert lever.share_of_step == pytest.approx((500 + 100) / 2000)  # to the next kernel, and to the end


def test_a_kernel_without_a_device_runs_on_that_of_its_row(summary):
    made = two_steps()
    for event in made.events:
        event["args"].pop("device", None)
    assert [gpu.id for gpu in summary(made).gpus] == [0]


def test_few_kernels_and_no_advice_are_not_called_compute_bound(summary):
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.launch("k", 0, 10, 10, 985)
    assert "compute-bound" in summary(made).verdict
    made.events[-1]["dur"] = 400
    found = summary(made)
    assert "compute-bound" not in found.verdict


def test_copies_of_a_mark_are_not_further_steps(summary, trace):
    made = two_steps()
    for event in [event for event in made.events if event["name"].startswith("ProfilerStep")]:
        made.events.append(dict(event))
        made.events.append(event | {"pid": 0, "tid": 7})
    assert summary(made).steps.names == ["3", "4"]
    for event in [event for event in made.events if event["name"] == "ProfilerStep#3"][:1]:
        made.events.append(event | {"pid": 101, "ts": event["ts"] + 100})
    found = summary(made)
    assert found.steps.names == ["3", "4"]
    assert any("2 threads mark steps" in warning for warning in found.trace.warnings)


def test_a_copy_for_one_gpu_does_not_hold_the_other_up(summary):
    made = TraceBuilder(devices=(V100, V100 | {"id": 1}))
    made.step(1, 0, 1000)
    made.copy(0, 100, 5, 90, 1000)
    made.launch("k", 100, 10, 200, 800)
    made.launch("k", 100, 10, 0, 1000, device=1)
    assert advised(summary(made), "05_pinned_memory").share_of_step == pytest.approx(0.1 / 2)


def test_copies_of_unknown_size_are_pinned_by_their_name(summary):
    for kind, step in (("Pageable", "05_pinned_memory"), ("Pinned", None)):
        made = TraceBuilder()
        made.step(1, 0, 1000)
        _, copy = made.copy(0, 100, 5, 90, 1000, name=f"Memcpy HtoD ({kind} -> Device)")
        del copy["args"]["bytes"]
        made.launch("k", 100, 10, 200, 800)
        titles = {each.title: each.step for each in summary(made).levers}
        assert ("pinned memory" in titles) == (step is not None)


def test_totals_beyond_all_range_are_no_totals(summary):
    made = two_steps()
    made.memory(10_100, 64, 64, 128, address=1)
    for ts, beyond in ((10_200, "inf"), (10_300, 1e308), (10_400, -1e308)):
        made.memory(ts, beyond, beyond, beyond, address=ts)
    [each] = summary(made).memory
    assert (each.peak_allocated, each.peak_reserved, each.growth) == (64, 128, 64)
