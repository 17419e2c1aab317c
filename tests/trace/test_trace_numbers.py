"""What is computed from a trace, each number on a trace small enough to compute by hand."""

import json
from itertools import pairwise

import numpy as np
import pytest
from support.trace_builder import V100, TraceBuilder, run_ahead, two_steps

from walkthrough.advice.gains import ALIKE, advise
from walkthrough.advice.report import report
from walkthrough.advice.verdict import bound
from walkthrough.trace.analysis import analyze
from walkthrough.trace.communication import communication
from walkthrough.trace.idle import idle, longest_stall
from walkthrough.trace.kernels import unit_name
from walkthrough.trace.reader import read
from walkthrough.trace.steps import steps
from walkthrough.trace.timeline import lanes

ERAS = pytest.mark.parametrize("era", ["2021", "today"])


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


@pytest.fixture
def trace(tmp_path):
    return lambda builder: read(builder.write(tmp_path / "made.pt.trace.json.gz"))


@ERAS
def test_a_step_is_divided_among_its_roles(analysis, era):
    result = analysis(two_steps(era)).steps
    assert result.names == ["3", "4"]
    assert result.mean_us == 1000
    assert result.mean_breakdown_us == {
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
def test_a_gpu_is_busy_while_a_kernel_runs(analysis, era):
    [gpu] = analysis(two_steps(era)).gpus
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
        "queued": 0,
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
    builder = TraceBuilder()
    builder.step(1, 0, 50_000)
    builder.launch("k", 0, 30_000, 30_000, 100)
    builder.launch("k", 40_000, 10, 40_020, 100)
    read_back = trace(builder)
    causes = idle(read_back, steps(read_back), 0).causes_us
    assert (causes["setup"], causes["launch"]) == (30_000, 10)


def test_a_step_lasts_until_the_device_work_that_it_launched_has_ended(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    builder.launch("k", 50, 10, 70, 80)  # ends at 150, when the next step has long begun
    builder.step(2, 100, 100)
    builder.launch("k", 110, 10, 150, 40)
    result = analysis(builder).steps
    assert (result.duration.tolist(), result.mean_breakdown_us["kernel"]) == ([150, 50], (80 + 40) / 2)


def test_a_step_begins_after_device_work_from_before_the_first(analysis):
    builder = TraceBuilder()
    builder.launch("k", -50, 10, -20, 50)  # launched before the steps, ends at 30
    builder.step(1, 0, 100)
    builder.launch("k", 50, 10, 70, 20)
    assert analysis(builder).steps.duration.tolist() == [70]


@ERAS
def test_where_the_cpu_runs_ahead_the_first_step_begins_when_the_work_of_earlier_ones_ends(analysis, era):
    """Although its own copy, in a stream of its own, is done before."""
    result = analysis(run_ahead(era))
    assert result.steps.duration.tolist() == [1000, 1000, 1000]
    assert result.steps.mean_breakdown_us["kernel"] == 990
    assert result.gpus[0].utilization == pytest.approx(0.99)
    assert (result.steps.cpu_end - result.steps.cpu_start).tolist() == [100, 100, 100]
    assert result.step_bytes == 1000  # of the copies that the steps call, although they run before


def test_a_kernel_in_a_stream_of_its_own_does_not_let_the_first_step_begin_early(analysis):
    """As a loader that also converts the next batch in the stream in which it copies it."""
    builder = run_ahead()
    _, converting = builder.launch("k", 16, 2, 70, 5)
    converting["tid"] = 20
    assert analysis(builder).steps.duration.tolist() == [1000, 1000, 1000]


def test_the_first_step_does_not_wait_for_earlier_work_that_runs_beside_its_own(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    builder.launch("k", 10, 10, 30, 20)
    calling, other = builder.launch("k", 0, 1, 20, 15)  # launched before the trace, in a stream without own work
    builder.events.remove(calling)
    other["tid"] = 8
    assert analysis(builder).steps.duration.tolist() == [100]


def test_a_gpu_does_not_wait_for_the_cpu_where_its_next_kernel_is_launched_already(analysis):
    """Whatever the CPU does meanwhile: here it waits for the GPU, as the profiler does where it stops."""
    builder = run_ahead()
    builder.add("runtime", "cudaDeviceSynchronize", 320, 4680, correlation=-2)
    result = analysis(builder)
    [waits] = result.idle
    assert {cause: us for cause, us in waits.causes_us.items() if us} == {"queued": 3 * 10}
    assert advised(result, "10_no_hidden_syncs").share_of_step == 0


def test_a_call_that_copies_holds_up_no_gpu_whose_next_kernel_is_launched_already(trace):
    builder = run_ahead()
    builder.add("runtime", "cudaMemcpyAsync", 320, 4680, correlation=-2)
    read_back = trace(builder)
    assert idle(read_back, steps(read_back), 0).causes_us["copy"] == 0


def test_a_gpu_waits_for_itself_from_a_launch_to_its_kernel_whatever_the_cpu_does(trace):
    """20 µs are left for the launch; what comes before them is the CPU's. Moment by moment, not gap by gap."""
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 110)
    builder.launch("k", 100, 10, 500, 500)
    builder.add("runtime", "cudaStreamSynchronize", 110, 890, correlation=-2)
    read_back = trace(builder)
    waits = idle(read_back, steps(read_back), 0)
    assert {cause: us for cause, us in waits.causes_us.items() if us} == {
        "launch": 110, "synchronisation": 20, "queued": 500 - 130
    }  # fmt: skip
    assert waits.causes_us["queued"] / waits.total_us == pytest.approx(370 / 500)
    stall = longest_stall(read_back, [waits])
    assert stall
    assert (stall.us, stall.work, stall.call) == (370, "k", "cudaLaunchKernel")


def test_a_copy_that_is_queued_keeps_the_gpu_from_waiting_for_the_cpu_too(trace):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.copy(0, 10, 330, 70, 1000, name="Memcpy HtoD (Pinned -> Device)")
    builder.launch("k", 390, 5, 400, 600)
    read_back = trace(builder)
    causes = idle(read_back, steps(read_back), 0).causes_us
    assert (causes["queued"], causes["copy"]) == (300, 70 + 10)


def test_between_the_kernels_of_a_cuda_graph_the_gpu_waits_for_itself(analysis):
    """One call launches them all. Meanwhile the CPU is in a call that copies a result back, which is not to blame."""
    builder = graph_replay()
    builder.copy(120, 700, 806, 5, 4, name="Memcpy DtoH (Device -> Pageable)")
    result = analysis(builder)
    [waits] = result.idle
    assert waits.causes_us["queued"] == 2 * 200
    stall = longest_stall(result.trace, [waits])
    assert stall and stall.call == "cudaGraphLaunch"
    assert "leave results on the GPU" not in [advice.title for advice in advise(result).advice]
    assert "is launched already" in advise(result).verdict


def graph_replay():
    """A step of 820 µs that launches one CUDA graph of three kernels, each 100 µs long and 200 µs after the last."""
    builder = TraceBuilder()
    builder.step(1, 0, 820)
    _, first = builder.launch("k", 90, 10, 105, 100, call="cudaGraphLaunch")
    for at in (405, 705):
        builder.events.append(first | {"ts": at})
    return builder


def test_the_timeline_begins_where_the_cpu_begins_the_first_step(analysis):
    timeline = lanes(analysis(run_ahead()))
    assert [step["start"] for step in timeline["steps"]] == [2000, 3000, 4000]
    [calls] = [lane for lane in timeline["lanes"] if lane["kind"] == "runtime"]
    assert calls["start"][0] == 10


def test_the_timeline_marks_when_each_finding_is(analysis):
    result = analysis(two_steps())
    timeline = lanes(result, [(finding.what, finding.when) for finding in advise(result).findings])
    marks = [lane for lane in timeline["lanes"] if lane["kind"] == "finding"]
    assert marks == timeline["lanes"][: len(advise(result).findings)]
    assert [lane["label"] for lane in marks] == [finding.what for finding in advise(result).findings]
    [copies] = [lane for lane in marks if lane["label"] == "copies that the CPU waits for"]
    assert (copies["start"], copies["duration"]) == ([200, 1200], [50, 50])
    assert {timeline["names"][name] for name in copies["name"]} == {"copies that the CPU waits for"}
    assert "when" not in report(result)["findings"][0]


def test_last_steps_whose_kernels_are_missing_are_left_out(analysis):
    builder = TraceBuilder()
    for number in range(5):
        builder.step(number, number * 100, 100)
        for call in range([10, 10, 10, 7, 0][number]):  # the fourth has 70 % of them, the last none
            builder.launch("k", number * 100 + call * 5, 2, number * 100 + call * 5 + 3, 1)
    assert analysis(builder).steps.names == ["0", "1", "2"]


def test_without_step_marks_the_operators_are_the_one_step(analysis):
    builder = TraceBuilder()
    builder.op("aten::mm", 100, 50)
    builder.op("aten::add", 300, 100)
    result = analysis(builder).steps
    assert (result.names, result.mean_us, result.marked) == (["0"], 300, False)
    assert result.mean_breakdown_us["cpu_exec"] == 150


def test_the_device_copies_of_step_marks_are_no_steps(analysis):
    builder = two_steps()
    builder.add("gpu_user_annotation", "ProfilerStep#3", 10_330, 400, tid=7, pid=0)
    assert analysis(builder).steps.names == ["3", "4"]


def test_a_cpu_trace_has_no_gpus_and_null_for_their_numbers(analysis):
    builder = TraceBuilder(devices=[])
    builder.step(1, 0, 100)
    builder.loading(0, 30)
    builder.op("aten::mm", 40, 50)
    result = report(analysis(builder))
    assert result["gpus"] == []
    assert result["eligible_kernel_share"] is None
    assert result["steps"]["breakdown_us"]["dataloader"] == 30
    assert result["steps"]["breakdown_us"]["cpu_exec"] == 50
    assert result["memory"] == {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "devices": []}


def test_operators_of_a_cpu_trace_count_without_what_runs_inside_them(analysis):
    builder = TraceBuilder(devices=[])
    builder.step(1, 0, 200)
    builder.op("aten::linear", 0, 100)
    builder.op("aten::addmm", 20, 50)
    builder.op("aten::copy_", 30, 10)
    builder.op("aten::addmm", 150, 5)
    builder.op("aten::copy_", 20, 10, tid=2)
    result = analysis(builder).operators
    assert [(operator.name, operator.count, operator.us) for operator in result] == [
        ("aten::linear", 1, 50), ("aten::addmm", 2, 45), ("aten::copy_", 2, 20)
    ]  # fmt: skip


def test_overlapping_kernels_count_once_for_the_time_and_together_for_the_sms(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    builder.launch("k", 0, 1, 10, 40, **{"blocks per SM": 0.75, "est. achieved occupancy %": 20})
    builder.launch("k", 1, 1, 30, 40, **{"blocks per SM": 0.5, "est. achieved occupancy %": 60})
    [gpu] = analysis(builder).gpus
    assert gpu.utilization == pytest.approx(0.6)
    assert gpu.sm_efficiency == pytest.approx((20 * 0.75 + 20 * 1.0 + 20 * 0.5) / 100)  # at most 1 where both run
    assert gpu.occupancy_percent == pytest.approx(40)


def test_tables_count_what_the_steps_launched_and_the_json_the_whole_trace(analysis):
    builder = two_steps()
    builder.launch("before", 9000, 10, 9050, 500)
    builder.copy(9100, 10, 9120, 30, 70)
    builder.op("aten::mm", 9200, 100)
    result = analysis(builder)
    assert [(kernel.count, kernel.us) for kernel in result.tables.kernels] == [(2, 800)]
    assert (result.tables.copies["h2d"].count, result.tables.copies["h2d"].bytes) == (2, 2_000_000)
    whole = report(result)
    assert whole["kernels"] == {"count": 3, "total_us": 1300}
    assert whole["copies"]["h2d"]["count"] == 3


def test_a_kernel_belongs_to_the_step_that_launched_it(analysis):
    builder = run_ahead()  # its first two kernels are those of steps before the trace
    assert [(kernel.count, kernel.us) for kernel in analysis(builder).tables.kernels] == [(6, 3 * 990)]
    assert [(kernel.count, kernel.us) for kernel in analysis(builder).all_tables.kernels] == [(8, 3 * 990 + 1995)]


def test_operators_before_the_steps_are_not_in_the_table(analysis):
    builder = TraceBuilder(devices=())
    builder.op("aten::before", 0, 50)
    builder.step(1, 100, 100)
    builder.op("aten::mm", 110, 50)
    result = analysis(builder)
    assert [operator.name for operator in result.operators] == ["aten::mm"]


def test_each_gpu_has_its_own_numbers(analysis):
    builder = TraceBuilder(devices=[V100, V100 | {"id": 1, "name": "Other"}])
    builder.step(1, 0, 100)
    builder.launch("k", 0, 1, 10, 50)
    builder.launch("k", 1, 1, 10, 20, device=1)
    result = analysis(builder)
    assert [(gpu.id, gpu.name, gpu.utilization) for gpu in result.gpus] == [(0, "Tesla V100", 0.5), (1, "Other", 0.2)]
    assert [waits.total_us for waits in result.idle] == [50, 80]


def test_tensor_cores_are_shares_of_the_time_that_operators_launched(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    mm, add, outer = builder.op("aten::mm", 0, 50), builder.op("aten::add", 60, 20), builder.op("aten::linear", 100, 90)
    inner = builder.op("aten::addmm", 110, 50)
    builder.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 10, 5, 200, 100, op=mm)
    builder.launch("volta_sgemm_128x64_nn", 20, 5, 300, 200, op=mm)
    builder.launch("void at::native::vectorized_elementwise_kernel<4>", 65, 5, 500, 300, op=add)
    builder.launch("volta_sgemm_128x64_nn", 120, 5, 800, 50, op=inner)
    builder.launch("void at::native::vectorized_elementwise_kernel<4>", 170, 5, 850, 50, op=outer)
    builder.launch("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", 950, 5, 960, 500)  # by no operator: not counted
    result = analysis(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(100 / 700)
    # aten::linear is not the innermost eligible operator, aten::addmm is.
    assert result.tensor_cores.eligible_share == pytest.approx((100 + 200 + 50) / 700)
    assert advised(result, "01_amp").share_of_step == pytest.approx((200 + 50) / result.steps.mean_us)


def test_the_kernels_of_a_cuda_graph_count_although_no_operator_launched_them(analysis):
    """One that is no operator's as well; of a graph's kernels the matrix products could use Tensor Cores."""
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    add = builder.op("aten::add", 0, 20)
    builder.launch("void at::native::vectorized_elementwise_kernel<4>", 5, 5, 15, 100, op=add)
    _, first = builder.launch("volta_h884gemm_128x128", 30, 5, 200, 300, call="cudaGraphLaunch")
    builder.events.append(first | {"name": "volta_sgemm_128x64_nn", "ts": 500, "dur": 200})
    builder.events.append(first | {"name": "void at::native::vectorized_elementwise_kernel<4>", "ts": 700, "dur": 200})
    builder.launch("volta_h884gemm_128x128", 40, 5, 900, 50)  # by no operator and no graph: not counted
    result = analysis(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(300 / 800)
    assert result.tensor_cores.eligible_share == pytest.approx(500 / 800)
    assert advised(result, "01_amp").share_of_step == pytest.approx(200 / 1000)


def test_kernels_are_linked_by_containment_where_the_ids_name_no_operator(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 100)
    builder.op("aten::add", 200, 100, tid=2)
    builder.op("aten::mul", 200, 100, tid=3)
    builder.launch("volta_sgemm_128x64_nn", 10, 5, 100, 30)
    builder.launch("void at::native::vectorized_elementwise_kernel<4>", 210, 5, 300, 70, tid=2)
    for event in builder.events:
        if "correlation" in event["args"]:
            event["args"]["External id"] = 999_999 + event["args"]["correlation"]
    assert analysis(builder).tensor_cores.eligible_share == pytest.approx(0.3)


def test_an_unknown_kernel_is_neither_a_yes_nor_a_no(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    op = builder.op("aten::mm", 0, 50)
    builder.launch("somebodys_gemm", 10, 5, 60, 30, op=op)
    result = analysis(builder)
    assert result.gpus[0].tensor_core_share is None
    assert result.tensor_cores.unknown == {0: 1.0}
    builder.launch("volta_h884gemm_128x128", 20, 5, 90, 10, op=op)
    result = analysis(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(0.25)
    assert result.tensor_cores.unknown[0] == pytest.approx(0.75)


def test_a_gpu_from_before_tensor_cores_uses_none(analysis):
    builder = TraceBuilder(devices=[V100 | {"computeMajor": 6}])
    builder.step(1, 0, 100)
    builder.launch("somebodys_gemm", 10, 5, 60, 30, op=builder.op("aten::mm", 0, 50))
    result = analysis(builder)
    assert (result.gpus[0].tensor_core_share, result.tensor_cores.unknown[0]) == (0, 0)
    assert "no Tensor Cores" in advised(result, "01_amp").why


def test_copies_are_counted_by_direction_and_kind_of_memory(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 10_000)
    builder.copy(0, 10, 20, 100, 1_000_000)
    builder.copy(200, 10, 220, 50, 500_000, name="Memcpy HtoD (Pinned -> Device)")
    builder.copy(300, 10, 320, 10, 4, name="Memcpy DtoH (Device -> Pageable)")
    builder.copy(400, 10, 420, 10, 64, name="Memcpy DtoD (Device -> Device)")
    builder.copy(-500, 10, -400, 10, 2_000_000)  # before the step
    result = analysis(builder)
    h2d = result.all_tables.copies["h2d"]
    assert (h2d.count, h2d.bytes, h2d.us) == (3, 3_500_000, 160)
    assert (h2d.pinned_bytes, h2d.pageable_bytes) == (500_000, 3_000_000)
    assert h2d.gigabytes_per_second == pytest.approx(3_500_000 / 160e-6 / 1e9)
    assert result.step_bytes == 1_500_000
    assert result.all_tables.copies["d2h"].pageable_bytes == 4
    assert result.all_tables.copies["d2d"].bytes == 64


def test_memory_has_its_peak_and_the_top_allocations_there(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::conv2d", 0, 100)
    builder.op("aten::empty", 10, 20)
    builder.op("aten::relu", 200, 100)
    builder.memory(15, 500, 1500, 4000, address=0xA)
    builder.memory(50, 100, 1600, 4000, address=0xB)
    builder.memory(150, -100, 1500, 4000, address=0xB)
    builder.memory(210, 700, 2200, 5000, address=0xC)
    builder.memory(400, 30, 2230, 5000, address=0xD)  # the peak, outside of any operator
    builder.memory(500, -700, 1530, 6000, address=0xC)
    builder.memory(20, 64, 64, address=0xE, device=None)
    gpu, cpu = analysis(builder).memory
    assert (gpu.device, gpu.peak_allocated, gpu.peak_reserved, gpu.growth) == (0, 2230, 6000, 1230)
    assert gpu.allocated.tolist() == [1500, 1600, 1500, 2200, 2230, 1530]
    assert gpu.at_peak == {"aten::relu": 700, "aten::conv2d": 500, "outside of any operator": 30}
    assert (cpu.peak_allocated, cpu.peak_reserved, cpu.at_peak) == (64, None, {"aten::conv2d": 64})


def test_memory_without_totals_has_its_growth_only(analysis):
    builder = TraceBuilder("2021")
    builder.step(1, 0, 1000)
    for ts, change in ((1, 100), (2, 200), (3, -150), (4, 20)):
        builder.memory(ts, change)
    result = analysis(builder)
    assert (result.memory[0].peak_allocated, result.memory[0].growth) == (None, 300)
    assert report(result)["memory"]["peak_allocated_bytes"] is None


def test_collectives_are_exposed_where_no_other_kernel_runs(trace):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 1, 100, 300)
    builder.launch("k", 2, 1, 250, 50)
    builder.launch("k", 4, 1, 350, 100)
    read_back = trace(builder)
    result = communication(read_back, steps(read_back))
    assert (result.count, result.us, result.hidden_us, result.exposed_us) == (1, 300, 100, 200)


def test_a_kernel_with_the_id_of_a_collective_is_communication(analysis):
    builder = TraceBuilder("2021")
    builder.step(1, 0, 1000)
    op = builder.op("nccl:all_reduce", 10, 20)
    builder.launch("ncclKernel_AllReduce_RING_LL_Sum_float", 12, 3, 100, 300, op=op)
    assert analysis(builder).steps.mean_breakdown_us["communication"] == 20 + 300


def test_amd_traces_are_read(analysis):
    builder = TraceBuilder(devices=[{"id": 0, "name": "AMD Instinct MI300X"}])
    builder.step(1, 0, 1000)
    op = builder.op("aten::mm", 0, 100)
    builder.launch("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1", 10, 5, 100, 300, op=op, call="hipLaunchKernel")
    builder.launch("CopyHostToDevice", 400, 10, 420, 30, kind="copy", call="hipMemcpyWithStream", bytes=1000)
    for event in builder.events:
        event["cat"] = {"cuda_runtime": "hip_runtime"}.get(event["cat"], event["cat"])
    result = analysis(builder)
    assert result.gpus[0].utilization == pytest.approx(0.3)
    assert result.gpus[0].tensor_core_share == 1
    assert unit_name(result.trace) == "Matrix cores"
    assert result.all_tables.copies["h2d"].bytes == 1000
    assert result.steps.mean_breakdown_us["runtime"] == 5 + 10


NVIDIA, ROCM, HIP = {"id": 0, "name": "NVIDIA H100", "warpSize": 32}, {"id": 0, "name": "", "warpSize": 64}, "60443483"


@pytest.mark.parametrize(
    ("device", "header", "call", "amd"),
    [
        (NVIDIA, {}, "cudaLaunchKernel", False),
        (None, {}, "cudaLaunchKernel", False),
        (ROCM, {}, "cudaLaunchKernel", True),
        (None, {"hip_runtime_version": HIP}, "cudaLaunchKernel", True),
        (None, {}, "hipExtModuleLaunchKernel", True),
    ],
)
@pytest.mark.parametrize("number", [0, 2])  # ROCm often numbers a device otherwise than its properties
def test_amd_is_recognised_by_what_is_recorded(analysis, device, header, call, amd, number):
    builder = TraceBuilder(devices=[device] if device else [])
    builder.header |= header
    op = builder.op("aten::mm", 0, 100)
    builder.launch("Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1", 10, 5, 100, 300, op=op, call=call, device=number)
    result = analysis(builder)
    assert unit_name(result.trace) == ("Matrix cores" if amd else "Tensor Cores")
    assert result.gpus[0].name == (device and device["name"])
    assert result.gpus[0].tensor_core_share == 1
    assert result.tensor_cores.fp32_matrix.all() == amd  # by Tensile's name, which is of no NVIDIA GPU


@pytest.mark.parametrize(
    "device",
    [{"name": "AMD Radeon RX 6800", "computeMajor": 10}, {"name": "AMD Instinct MI50/MI60", "computeMajor": 9}],
)
def test_an_old_amd_gpu_has_no_matrix_cores(analysis, device):
    builder = TraceBuilder(devices=[{"id": 0, **device}])
    op = builder.op("aten::mm", 0, 100)
    builder.launch("attn_fwd", 10, 5, 100, 300, op=op, call="hipLaunchKernel")
    assert analysis(builder).gpus[0].tensor_core_share == 0


def test_kernels_of_a_graph_count_in_the_share_of_matrix_cores(analysis):
    builder = TraceBuilder()
    op = builder.op("aten::add", 0, 100)
    builder.launch("void at::native::vectorized_elementwise_kernel<4>", 10, 5, 100, 100, op=op)
    builder.launch("volta_h884gemm_128x128", 150, 5, 200, 300, call="cudaGraphLaunch")
    result = analysis(builder)
    assert result.gpus[0].tensor_core_share == pytest.approx(0.75)
    assert result.tensor_cores.eligible_share == pytest.approx(0.75)


def test_kernels_by_kind_are_those_of_the_steps_and_of_the_optimizer(analysis):
    builder = TraceBuilder()
    for number, begin in enumerate((0, 1000)):
        builder.step(number, begin, 1000)
        builder.launch("volta_sgemm_128x64_nn", begin + 10, 5, begin + 20, 100)
        builder.launch("at::native::vectorized_elementwise_kernel<4, A>", begin + 130, 5, begin + 140, 50)
        builder.op("Optimizer.step#SGD.step", begin + 300, 100, kind="annotation")
        builder.launch("at::native::vectorized_elementwise_kernel<4, A>", begin + 310, 5, begin + 320, 60)
        builder.launch("ncclDevKernel_AllGather", begin + 330, 5, begin + 390, 30)
    late, _ = builder.launch("volta_sgemm_128x64_nn", 2300, 5, 2310, 400)
    builder.events.remove(late)
    result = analysis(builder)
    assert result.kinds_us == {"matrix product": 100, "optimizer": 60, "elementwise": 50, "collective": 30}
    assert report(result)["kinds"] == result.kinds_us


def test_advice_is_amdahls_bound_and_names_the_step(analysis):
    result = analysis(two_steps())
    by_step = {advice.step: advice for advice in advise(result).costs if advice.step}
    assert by_step["04_multiprocess_loading"].predicted_gain == pytest.approx(1000 / 800)
    assert by_step["01_amp"].predicted_gain == pytest.approx(1000 / 600)
    assert by_step["02_bigger_batch"].share_of_step == pytest.approx((90 + 200) / 1000)  # and half the SMs idle
    assert by_step["02_bigger_batch"].predicted_gain is None  # more samples: the replay gains more than the share
    assert by_step["05_pinned_memory"].predicted_gain == pytest.approx(1000 / 950)
    assert by_step["03_reduced_h2d_copy"].predicted_gain == pytest.approx(1 / (1 - 0.05 * 0.75))
    left = [advice.remaining for advice in advise(result).advice if advice.step != "02_bigger_batch"]
    assert all(before <= after * ALIKE for before, after in pairwise(left))
    assert all(item.estimated_gain <= item.predicted_gain for item in advise(result).advice if item.predicted_gain)
    # The CPU is not at work in 340-740, beside the kernel: so a shorter kernel is of no use.
    assert by_step["01_amp"].estimated_gain == pytest.approx(1, abs=0.01)
    assert by_step["04_multiprocess_loading"].estimated_gain == pytest.approx(1.25, rel=0.01)


def test_layout_conversions_waits_and_launches_are_what_the_later_steps_treat(analysis):
    conversions = advised(analysis(amp_trace("volta_sgemm_128x64_nn")), "09_channels_last")
    assert conversions.share_of_step == pytest.approx(0.6)
    assert conversions.predicted_gain == pytest.approx(1 / 0.4)
    result = analysis(two_steps())
    assert advised(result, "09_channels_last").predicted_gain is None  # no layout conversions: the gain is unknown
    launches = result.idle[0].causes_us["launch"] / 2000
    assert advised(result, "13_compile").share_of_step == pytest.approx(launches)
    assert advised(result, "08_on_device_data").predicted_gain is None  # the training process loads: change that first


def test_data_on_the_device_saves_what_workers_and_copies_leave(analysis):
    builder = two_steps()
    for event in builder.events:
        event["name"] = event["name"].replace("_SingleProcess", "_MultiProcessing")
    result = analysis(builder)
    for step in ("07_small_images", "08_on_device_data"):
        assert advised(result, step).predicted_gain == pytest.approx(1000 / (1000 - 200 - 50))


def test_pinned_copies_that_block_the_gpu_are_to_start_earlier(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.copy(0, 5, 5, 195, 1000, name="Memcpy HtoD (Pinned -> Device)")
    builder.launch("k", 100, 10, 200, 800)
    early = advised(analysis(builder), "06_prefetch_stream")
    assert early.title == "Prefetch on a side stream"
    assert early.share_of_step == pytest.approx(0.2, abs=0.01)


def test_a_copy_called_in_a_step_counts_for_it_although_it_runs_beside_earlier_kernels(analysis):
    """As a prefetching loader copies: in a stream of its own, while the GPU is behind the CPU."""
    builder = TraceBuilder()
    for number, begin in ((1, 0), (2, 1000)):
        builder.step(number, begin, 400)
        builder.copy(begin + 10, 5, begin + 20, 100, 1000, name="Memcpy HtoD (Pinned -> Device)")
        builder.launch("k", begin + 200, 10, begin + 600, 800)
    assert analysis(builder).steps.duration.tolist() == [1400, 1000]  # the second copy begins inside the first step
    assert analysis(builder).step_bytes == 1000


def test_with_nothing_left_to_gain_the_verdict_names_the_bound(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    op = builder.op("aten::mm", 0, 20)
    builder.launch("volta_h884gemm_128x128", 5, 5, 10, 985, op=op)
    result = analysis(builder)
    assert advise(result).advice == []
    assert "compute-bound: kernels fill 98% of the step" in advise(result).verdict


@pytest.mark.parametrize(
    "computing_us, collective_us, bound",
    [
        (200, 760, "kernels that compute fill 20% of the step, communication alone 76%; try first: Compare the ranks"),
        (
            965,
            20,
            "compute-bound: kernels that compute fill 96% of the step, communication alone 2%, 98% of all kernels'",
        ),
        (980, 5, "compute-bound: kernels fill 98% of the step, 99% of their time matrix work"),
    ],
)
def test_the_verdict_counts_what_communicates_apart_where_that_takes_long_enough(
    analysis, computing_us, collective_us, bound
):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    op = builder.op("aten::mm", 0, 20)
    builder.launch("volta_h884gemm_128x128", 5, 5, 10, computing_us, op=op)
    record = builder.op("record_param_comms", 21, 10)
    builder.launch("ncclDevKernel_AllReduce", 22, 5, 10 + computing_us, collective_us, op=record)
    result = analysis(builder)
    assert advise(result).verdict.startswith(bound)
    assert result.steps.mean_breakdown_us["kernel"] == computing_us + collective_us  # as the profiler plugin counts


def test_a_gpu_that_mostly_communicates_is_never_compute_bound(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    op = builder.op("aten::mm", 0, 20)
    builder.launch("volta_h884gemm_128x128", 5, 5, 10, 600, op=op)
    builder.launch("ncclDevKernel_AllReduce", 22, 5, 610, 380)
    result = analysis(builder)
    text = bound(result.typical)
    assert text == "kernels that compute fill 60% of the step, communication alone 38%, and nothing else stands out"


def test_the_json_is_the_fixed_interface(analysis):
    result = json.loads(json.dumps(report(analysis(two_steps())), allow_nan=False))
    fixed = "file steps gpus kernels eligible_kernel_share copies memory advice findings kinds"
    assert set(fixed.split()) <= result.keys()
    assert {"count", "names", "mean_us", "typical_us", "breakdown_us"} <= result["steps"].keys()
    shares = {"utilization", "sm_efficiency", "occupancy_percent", "tensor_core_share"}
    assert {"id", "name"} | shares <= result["gpus"][0].keys()
    assert result["kernels"] == {"count": 2, "total_us": 800}
    assert list(result["copies"]) == ["h2d", "d2h", "d2d"]
    assert list(result["copies"]["h2d"]) == ["count", "bytes", "us", "pinned_bytes", "pageable_bytes"]
    assert {"peak_allocated_bytes", "peak_reserved_bytes"} <= result["memory"].keys()
    gains = {"share_of_step", "predicted_gain", "estimated_gain"}
    assert {"id", "step", "title", "why"} | gains <= result["advice"][0].keys()


def test_nanoseconds_are_kept_in_times_since_1970(trace):
    builder = TraceBuilder()
    begin = 1_712_195_495_519_689.0
    builder.step(1, begin, 100)
    builder.launch("k", begin, 1, begin + 10, 1.764)
    assert trace(builder).kernels.duration == pytest.approx([1.764], rel=1e-9)
    assert np.isfinite(trace(builder).kernels.start).all()


def advised(analysis, step):
    return next(advice for advice in advise(analysis).costs if advice.step == step)


def amp_trace(convolution, helper="void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    op = builder.op("aten::cudnn_convolution", 0, 50)
    builder.launch(convolution, 0, 10, 20, 380, op=op)
    builder.launch(helper, 10, 10, 400, 600, op=op)
    return builder


@pytest.mark.parametrize(
    "convolution",
    [
        "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<__half, __half, __half, float>",
    ],
)
def test_a_convolution_in_half_precision_and_what_prepares_it_are_not_advised_to_use_it(analysis, convolution):
    assert advised(analysis(amp_trace(convolution)), "01_amp").share_of_step == 0


def test_a_depthwise_convolution_in_float32_can_only_move_fewer_bytes(analysis):
    amp = advised(analysis(amp_trace("void at::native::conv_depthwise2d_forward_kernel<3, float, int>")), "01_amp")
    assert amp.share_of_step == 0
    assert amp.predicted_gain == pytest.approx(1 / (1 - 0.38 / 2))


def test_half_precision_may_also_halve_the_bytes_of_other_kernels(analysis):
    builder = amp_trace("volta_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>")
    amp = advised(analysis(builder), "01_amp")
    assert amp.share_of_step == pytest.approx(0.38)
    assert amp.predicted_gain == pytest.approx(1 / (1 - 0.38 - 0.6 / 2))


def test_an_amd_gpu_has_no_tensor_cores_to_advise(analysis):
    builder = amp_trace("volta_sgemm_128x64_nn")
    builder.header["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}]
    assert advised(analysis(builder), "01_amp").share_of_step == 0


def test_the_wait_after_a_synchronisation_counts_for_it(analysis):
    """For as long as the CPU waited: 450 us in each step. To the next kernel are 500, and to the end 100."""
    builder = TraceBuilder()
    for begin in (0, 1000):
        builder.step(begin // 1000, begin, 1000)
        builder.op("aten::add", begin, 400)
        builder.launch("k", begin + 385, 10, begin + 400, 500)
        builder.add("runtime", "cudaStreamSynchronize", begin + 450, 450, correlation=-2)
    advice = next(advice for advice in advise(analysis(builder)).costs if advice.title == "Remove synchronisations")
    assert advice.share_of_step == pytest.approx((450 + 100) / 2000)


def test_a_kernel_without_a_device_runs_on_that_of_its_row(analysis):
    builder = two_steps()
    for event in builder.events:
        event["args"].pop("device", None)
    assert [gpu.id for gpu in analysis(builder).gpus] == [0]


def test_few_kernels_and_no_advice_are_not_called_compute_bound(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch("volta_h884gemm_128x128", 0, 10, 10, 985)
    assert "compute-bound" in advise(analysis(builder)).verdict
    builder.events[-1]["name"] = "k"
    assert "of kernels whose names do not tell what they do" in advise(analysis(builder)).verdict
    builder.events[-1]["dur"] = 400
    result = analysis(builder)
    assert "bound" not in advise(result).verdict


def test_copies_of_a_mark_are_not_further_steps(analysis, trace):
    builder = two_steps()
    for event in [event for event in builder.events if event["name"].startswith("ProfilerStep")]:
        builder.events.append(dict(event))
        builder.events.append(event | {"pid": 0, "tid": 7})
    assert analysis(builder).steps.names == ["3", "4"]
    for event in [event for event in builder.events if event["name"] == "ProfilerStep#3"][:1]:
        builder.events.append(event | {"tid": 2, "ts": event["ts"] + 100})
    result = analysis(builder)
    assert result.steps.names == ["3", "4"]
    assert any("2 threads mark steps" in warning for warning in result.trace.warnings)


def test_a_copy_for_one_gpu_does_not_block_the_other(analysis):
    builder = TraceBuilder(devices=(V100, V100 | {"id": 1}))
    builder.step(1, 0, 1000)
    builder.copy(0, 100, 5, 90, 1000)
    builder.launch("k", 100, 10, 200, 800)
    builder.launch("k", 100, 10, 0, 1000, device=1)
    assert advised(analysis(builder), "05_pinned_memory").share_of_step == pytest.approx(0.1 / 2)


def test_copies_of_unknown_size_are_pinned_by_their_name(analysis):
    for kind, step in (("Pageable", "05_pinned_memory"), ("Pinned", "06_prefetch_stream")):
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        _, copy = builder.copy(0, 100, 5, 90, 1000, name=f"Memcpy HtoD ({kind} -> Device)")
        del copy["args"]["bytes"]
        builder.launch("k", 100, 10, 200, 800)
        advice = [advice.step for advice in advise(analysis(builder)).advice]
        assert set(advice) & {"05_pinned_memory", "06_prefetch_stream"} == {step}


def test_totals_beyond_all_range_are_no_totals(analysis):
    builder = two_steps()
    builder.memory(10_100, 64, 64, 128, address=1)
    for ts, beyond in ((10_200, "inf"), (10_300, 1e308), (10_400, -1e308)):
        builder.memory(ts, beyond, beyond, beyond, address=ts)
    [memory] = analysis(builder).memory
    assert (memory.peak_allocated, memory.peak_reserved, memory.growth) == (64, 128, 64)
