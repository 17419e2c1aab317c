"""What is computed from a trace, each number on a trace small enough to compute by hand."""

import json

import numpy as np
import pytest
from pytest import approx
from support import ROOT
from support.trace_builder import V100, TraceBuilder, analyzed, costs, one_step, repeated, run_ahead, two_steps

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report
from walkthrough.trace.analysis import analyze
from walkthrough.trace.idle import longest_stall
from walkthrough.trace.timeline import lanes

ERAS = pytest.mark.parametrize("era", ["2021", "today"])
PINNED, BACK = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)"


def waits_of(builder):
    """The `Idle` of the one GPU."""
    [waits] = analyzed(builder).idle
    return waits


def causes(builder):
    """{cause: µs} of why GPU 0 runs no kernel, without those that are none."""
    return {cause: us for cause, us in waits_of(builder).causes_us.items() if us}


# Steps.


@ERAS
def test_a_step_is_divided_among_its_roles_and_a_gpu_is_busy_while_a_kernel_runs(era):
    result = analyzed(two_steps(era))
    assert (result.steps.names, result.steps.mean_us) == (["3", "4"], 1000)
    assert result.steps.mean_breakdown_us == {
        **{"kernel": 400, "memcpy": 30, "memset": 0, "communication": 0},
        "runtime": 20 + 10 + 40,  # the copy's call but for the copy, the launch, the synchronisation
        "dataloader": 200,
        "cpu_exec": 20 + 60,  # the first operator but for the launch and the kernel, and the second
        "other": 1000 - 400 - 30 - 70 - 200 - 80,
    }
    [gpu] = result.gpus
    assert (gpu.id, gpu.name, gpu.tensor_core_share) == (0, "Tesla V100", 0)
    assert (gpu.utilization, gpu.sm_efficiency, gpu.occupancy_percent) == approx((0.4, 0.4 * 0.5, 40))


def kernels_in(count, *kernels):
    """Steps of 100 µs. kernels: (when its call of 10 µs begins, None for no call; when it begins, µs, stream)."""
    builder = repeated(lambda builder, begin: None, 100, count)
    for call, at, us, stream in kernels:
        calling, _ = builder.launch("k", call or 0, 10, at, us, stream=stream)
        if call is None:
            builder.events.remove(calling)
    return builder


def missing_kernels(of_fourth):
    """Five steps of 100 µs: so many kernels of the fourth are recorded, ten of each before it, none of the last."""
    counts = enumerate([10, 10, 10, of_fourth, 0])
    calls = [100 * number + 5 * at for number, count in counts for at in range(count)]
    return kernels_in(5, *[(call, call + 3, 1, 7) for call in calls])


def converting_while_copying():
    """A kernel of the first step's runs in the stream in which it copies, before the earlier ones end."""
    builder = run_ahead()
    builder.launch("k", 16, 2, 70, 5, stream=20)
    return builder


@pytest.mark.parametrize(
    ("builder", "us"),
    [
        (kernels_in(2, (50, 70, 80, 7), (110, 150, 40, 7)), [150, 50]),
        (kernels_in(1, (-50, -20, 50, 7), (50, 70, 20, 7)), [70]),  # the earlier one ends at 30
        (kernels_in(1, (None, 20, 15, 8), (10, 30, 20, 7)), [100]),  # in a stream without own work, beside it
        (run_ahead(), [1000] * 3),  # although its own copy, in a stream of its own, is done before
        (converting_while_copying(), [1000] * 3),
        (missing_kernels(8), [100] * 4),
        (missing_kernels(7), [100] * 3),  # less than 80 %
    ],
)
def test_a_step_lasts_from_the_end_of_earlier_device_work_to_the_end_of_its_own(builder, us):
    assert analyzed(builder).steps.duration.tolist() == us


@ERAS
def test_where_the_cpu_runs_ahead_what_a_step_launches_is_its_own(era):
    result = analyzed(run_ahead(era))
    assert (result.steps.mean_breakdown_us["kernel"], result.gpus[0].utilization) == (990, approx(0.99))
    assert (result.steps.cpu_end - result.steps.cpu_start).tolist() == [100, 100, 100]
    assert result.step_bytes == 1000  # of the copies that the steps call, although they run before
    assert [(kernel.count, kernel.us) for kernel in result.tables.kernels] == [(6, 3 * 990)]
    assert [(kernel.count, kernel.us) for kernel in result.all_tables.kernels] == [(8, 3 * 990 + 1995)]
    assert [step["start"] for step in lanes(result)["steps"]] == [2000, 3000, 4000]


def test_copies_of_a_mark_are_not_further_steps():
    builder = two_steps()
    builder.add("gpu_user_annotation", "ProfilerStep#3", 10_330, 400, tid=7, pid=0)
    for event in [event for event in builder.events if event["name"].startswith("ProfilerStep")]:
        builder.events += [dict(event), event | {"pid": 0, "tid": 7}]
    assert analyzed(builder).steps.names == ["3", "4"]
    mark = next(event for event in builder.events if event["name"] == "ProfilerStep#3")
    builder.events.append(mark | {"tid": 2, "ts": mark["ts"] + 100})
    result = analyzed(builder)
    assert result.steps.names == ["3", "4"]
    assert any("2 threads mark steps" in warning for warning in result.trace.warnings)


# Why a GPU waits.


@ERAS
def test_each_cause_of_waiting_has_its_time_and_they_sum_to_the_whole(era):
    waits = waits_of(two_steps(era))
    assert waits.total_us == 2 * 600
    assert waits.causes_us == {
        **{"copy": 2 * 50, "queued": 0, "dataloader": 2 * 200, "synchronisation": 2 * 40, "setup": 0},
        "launch": 2 * (30 + 60),  # the first operator until its kernel begins, and the second
        "other": 2 * (600 - 50 - 200 - 40 - 90),
    }
    gaps = zip(waits.start - waits.start[0], waits.end - waits.start[0], strict=True)
    assert list(gaps) == [(0, 330), (730, 1330), (1730, 2000)]
    assert waits.by_gap.sum(axis=0).tolist() == [330, 600, 270]


@pytest.mark.parametrize(
    ("cause", "least_us", "begins"),
    [
        ("dataloader", 0, [0]),  # 200 us of the first time and of the second, most of the first alone
        ("synchronisation", 0, [730, 1730]),  # most of none
        ("synchronisation", 300, [730]),
        ("launch", 330, [0, 730]),
        ("queued", 0, []),
    ],
)
def test_a_cause_is_marked_where_a_gpu_waits_mostly_for_it_or_for_want_of_that_partly(cause, least_us, begins):
    result = analyzed(two_steps())
    found = result.while_idle(cause, least_us)
    assert (found.start - result.idle[0].start[0]).tolist() == begins


def test_a_launch_that_loads_code_is_setting_up_and_not_launch_bound():
    builder = one_step(50_000)
    builder.launch("k", 0, 30_000, 30_000, 100)
    builder.launch("k", 40_000, 10, 40_020, 100)
    found = causes(builder)
    assert (found["setup"], found["launch"]) == (30_000, 10)


def test_a_mark_around_an_optimizer_is_in_part_python_and_no_operator():
    builder = one_step()
    builder.op("Optimizer.step#SGD.step", 0, 400)
    builder.launch("k", 480, 10, 500, 500)
    assert causes(builder) == {"launch": 10, "other": 490}


def test_a_gpu_does_not_wait_for_the_cpu_where_its_next_kernel_is_launched_already():
    """Whatever the CPU does meanwhile: here it waits for the GPU, as the profiler does where it stops, or copies."""
    for call in ("cudaDeviceSynchronize", "cudaMemcpyAsync"):
        builder = run_ahead()
        builder.wait(320, 5000, call)
        assert causes(builder) == {"queued": 3 * 10}
        assert costs(builder)["no_hidden_syncs"].share_of_step == 0


def test_a_gpu_waits_for_itself_from_a_launch_to_its_kernel_whatever_the_cpu_does():
    """20 µs are left for the launch; what comes before them is the CPU's. Moment by moment, not gap by gap."""
    builder = one_step()
    builder.op("aten::mm", 0, 110)
    builder.launch("k", 100, 10, 500, 500)
    builder.wait(110, 1000)
    assert causes(builder) == {"launch": 110, "synchronisation": 20, "queued": 500 - 130}
    result = analyzed(builder)
    stall = longest_stall(result.trace, result.idle)
    assert stall and (stall.us, stall.work, stall.call, stall.first) == (370, "k", "cudaLaunchKernel", True)


def test_a_copy_that_is_queued_keeps_the_gpu_from_waiting_for_the_cpu_too():
    builder = one_step()
    builder.copy(0, 10, 330, 70, 1000, name=PINNED)
    builder.launch("k", 390, 5, 400, 600)
    found = causes(builder)
    assert (found["queued"], found["copy"]) == (300, 70 + 10)


def test_between_the_kernels_of_a_cuda_graph_the_gpu_waits_for_itself():
    """One call launches them all. Meanwhile the CPU is in a call that copies a result back, which is not to blame."""
    builder = one_step(820)
    _, first = builder.launch("k", 90, 10, 105, 100, call="cudaGraphLaunch")
    builder.events += [first | {"ts": at} for at in (405, 705)]
    builder.copy(120, 700, 806, 5, 4, name=BACK)
    result = analyzed(builder)
    assert result.idle[0].causes_us["queued"] == 2 * 200
    stall = longest_stall(result.trace, result.idle)
    assert stall and stall.call == "cudaGraphLaunch"


# Devices, operators, copies, memory.


def test_a_cpu_trace_has_no_gpus_and_null_for_their_numbers():
    result = report(analyzed(one_step(devices=[])))
    assert (result["gpus"], result["eligible_kernel_share"]) == ([], None)
    assert result["memory"] == {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "devices": []}


def test_operators_of_a_cpu_trace_count_in_the_steps_without_what_runs_inside_them():
    builder = TraceBuilder(devices=[])
    builder.op("aten::before", -50, 50)
    builder.step(1, 0, 200)
    rows = ("linear", 0, 100, 1), ("addmm", 20, 50, 1), ("copy_", 30, 10, 1), ("addmm", 150, 5, 1), ("copy_", 20, 10, 2)
    for name, at, us, thread in rows:
        builder.op(f"aten::{name}", at, us, tid=thread)
    assert [(row.name, row.count, row.us) for row in analyzed(builder).operators] == [
        ("aten::linear", 1, 50), ("aten::addmm", 2, 45), ("aten::copy_", 2, 20)
    ]  # fmt: skip


def test_overlapping_kernels_count_once_for_the_time_and_together_for_the_sms():
    builder = one_step(100)
    builder.launch("k", 0, 1, 10, 40, **{"blocks per SM": 0.75, "est. achieved occupancy %": 20})
    builder.launch("k", 1, 1, 30, 40, **{"blocks per SM": 0.5, "est. achieved occupancy %": 60})
    [gpu] = analyzed(builder).gpus
    efficiency = (20 * 0.75 + 20 * 1.0 + 20 * 0.5) / 100  # at most 1 where both run
    assert (gpu.utilization, gpu.sm_efficiency, gpu.occupancy_percent) == approx((0.6, efficiency, 40))


def test_each_gpu_has_its_own_numbers():
    builder = one_step(1000, devices=[V100, V100 | {"id": 1, "name": "Other"}])
    builder.copy(0, 100, 5, 90, 1000)
    builder.launch("k", 100, 10, 200, 500)
    builder.launch("k", 101, 10, 0, 200, device=1)
    builder.copy(115, 2, 800, 50, 64, name="Memcpy DtoD (Device -> Device)")
    result = analyzed(builder)
    assert [(gpu.id, gpu.name, gpu.utilization) for gpu in result.gpus] == [(0, "Tesla V100", 0.5), (1, "Other", 0.2)]
    assert [(waits.total_us, waits.causes_us["copy"]) for waits in result.idle] == [(500, 100 + 2 + 50), (800, 0)]
    assert costs(builder)["pinned_memory"].share_of_step == approx(0.1 / 2)  # a copy for one does not block the other


def test_copies_are_counted_by_direction_and_kind_of_memory():
    builder = one_step(10_000)
    builder.copy(0, 10, 20, 100, 1_000_000)
    builder.copy(200, 10, 220, 50, 500_000, name=PINNED)
    builder.copy(300, 10, 320, 10, 4, name=BACK)
    builder.copy(400, 10, 420, 10, 64, name="Memcpy DtoD (Device -> Device)")
    builder.copy(-500, 10, -400, 10, 2_000_000)  # before the step
    result = analyzed(builder)
    copies = result.all_tables.copies
    h2d = copies["h2d"]
    assert (h2d.count, h2d.us) == (3, 160)
    assert (h2d.bytes, h2d.pinned_bytes, h2d.pageable_bytes) == (3_500_000, 500_000, 3_000_000)
    assert h2d.gigabytes_per_second == approx(3_500_000 / 160e-6 / 1e9)
    assert (result.step_bytes, copies["d2h"].pageable_bytes, copies["d2d"].bytes) == (1_500_000, 4, 64)
    assert result.tables.copies["h2d"].count == 2


INTEL = ["Memcpy M2D (MEMORY(Unknown) -> DEVICE)", "Memcpy D2M (DEVICE -> MEMORY(Unknown))", "Memcpy D2D (DEVICE)"]


@pytest.mark.parametrize("names", [INTEL, ["CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"]])
def test_copies_of_other_makers_have_directions(names):
    builder = TraceBuilder(devices=[])
    for place, name in enumerate(names):
        builder.copy(place * 100, 10, place * 100 + 20, 50, place + 1, name=name)
    copies = analyzed(builder).all_tables.copies
    assert {name: row.bytes for name, row in copies.items()} == {"h2d": 1, "d2h": 2, "d2d": 3}


def test_memory_has_its_peak_and_the_top_allocations_there():
    builder = one_step()
    for name, at, us in (("conv2d", 0, 100), ("empty", 10, 20), ("relu", 200, 100)):
        builder.op(f"aten::{name}", at, us)
    for ts, change, total, reserved, address in (
        (15, 500, 1500, 4000, 0xA),
        (50, 100, 1600, 4000, 0xB),
        (150, -100, 1500, 4000, 0xB),
        (210, 700, 2200, 5000, 0xC),
        (400, 30, 2230, 5000, 0xD),  # the peak, outside of any operator
        (500, -700, 1530, 6000, 0xC),
    ):
        builder.memory(ts, change, total, reserved, address=address)
    builder.memory(20, 64, 64, address=0xE, device=None)
    gpu, cpu = analyzed(builder).memory
    assert (gpu.device, gpu.peak_allocated, gpu.peak_reserved, gpu.growth) == (0, 2230, 6000, 1230)
    assert gpu.allocated.tolist() == [1500, 1600, 1500, 2200, 2230, 1530]
    assert gpu.at_peak == {"aten::relu": 700, "aten::conv2d": 500, "outside of any operator": 30}
    assert (cpu.peak_allocated, cpu.peak_reserved, cpu.at_peak) == (64, None, {"aten::conv2d": 64})


def test_memory_without_totals_has_its_growth():
    builder = one_step(era="2021")
    for ts, change in ((1, 100), (2, 200), (3, -150), (4, 20)):
        builder.memory(ts, change)
    [memory] = analyzed(builder).memory
    assert (memory.peak_allocated, memory.growth) == (None, 300)


def test_nanoseconds_are_kept_in_times_since_1970():
    builder, begin = TraceBuilder(), 1_712_195_495_519_689.0
    builder.step(1, begin, 100)
    builder.launch("k", begin, 1, begin + 10, 1.764)
    kernels = analyzed(builder).trace.kernels
    assert kernels.duration == approx([1.764], rel=1e-9)
    assert np.isfinite(kernels.start).all()


def test_a_kernel_with_the_id_of_a_collective_is_communication():
    builder = one_step(era="2021")
    op = builder.op("nccl:all_reduce", 10, 20)
    builder.launch("ncclKernel_AllReduce_RING_LL_Sum_float", 12, 3, 100, 300, op=op)
    assert analyzed(builder).steps.mean_breakdown_us["communication"] == 20 + 300


def test_the_specimen_of_the_docs_has_the_numbers_and_the_fault_that_it_was_written_with():
    """A step is 1000 us: 0-300 loading, 320-350 the call that copies, 350-450 the copy, 480-500 the first launch.

    Then four kernels of 100 us each without a gap, and 900-1000 nothing. The backward product is in float32.
    """
    result = analyze(ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json")
    assert result.steps.duration.tolist() == [1000, 1000, 1000]
    assert {role: us for role, us in result.steps.mean_breakdown_us.items() if us} == {
        "kernel": 400, "memcpy": 100, "runtime": 30 + 20, "dataloader": 300, "cpu_exec": 20 + 30, "other": 100,
    }  # fmt: skip
    [gpu] = result.gpus
    assert (gpu.sm_efficiency, gpu.occupancy_percent) == approx(((3 + 0.5) / 10, (50 + 100 + 50 + 25) / 4))
    assert (gpu.tensor_core_share, result.tensor_cores.eligible_share) == approx((100 / 400, 200 / 400))
    advised = advise(result)
    assert {item.id: item.share_of_step for item in advised.costs}["mixed_precision"] == approx(0.1)
    assert (advised.advice[0].step, advised.advice[0].predicted_gain) == ("04_multiprocess_loading", approx(1 / 0.7))


def test_kernels_by_kind_are_those_of_the_steps_and_of_the_optimizer():
    def working(builder, begin):
        builder.launch("volta_sgemm_128x64_nn", begin + 10, 5, begin + 20, 100)
        builder.launch("at::native::vectorized_elementwise_kernel<4, A>", begin + 130, 5, begin + 140, 50)
        builder.op("Optimizer.step#SGD.step", begin + 300, 100, kind="annotation")
        builder.launch("at::native::vectorized_elementwise_kernel<4, A>", begin + 310, 5, begin + 320, 60)
        builder.launch("ncclDevKernel_AllGather", begin + 330, 5, begin + 390, 30)

    builder = repeated(working, steps=2)
    builder.events.remove(builder.launch("volta_sgemm_128x64_nn", 2300, 5, 2310, 400)[0])
    result = analyzed(builder)
    assert result.kinds_us == {"matrix product": 100, "optimizer": 60, "elementwise": 50, "collective": 30}
    assert report(result)["kinds"] == result.kinds_us


def test_the_timeline_marks_when_each_finding_is():
    result = analyzed(two_steps())
    found = [(finding.what, finding.when) for finding in advise(result).findings]
    timeline = lanes(result, found)
    marks = timeline["lanes"][: len(found)]
    assert [(lane["kind"], lane["label"]) for lane in marks] == [("finding", what) for what, _ in found]
    [copies] = [lane for lane in marks if lane["label"] == "copies that the CPU waits for"]
    assert (copies["start"], copies["duration"]) == ([200, 1200], [50, 50])
    assert [timeline["names"][name] for name in copies["name"]] == [copies["label"]] * 2


def test_the_json_is_the_fixed_interface():
    builder = two_steps()
    builder.launch("before", 9000, 10, 9050, 500)  # kernels and copies are those of the whole trace
    builder.copy(9100, 10, 9120, 30, 70)
    result = json.loads(json.dumps(report(analyzed(builder)), allow_nan=False))
    for value, keys in (
        (result, "file steps gpus kernels eligible_kernel_share copies memory advice findings kinds"),
        (result["steps"], "count names mean_us typical_us breakdown_us"),
        (result["gpus"][0], "id name utilization sm_efficiency occupancy_percent tensor_core_share"),
        (result["memory"], "peak_allocated_bytes peak_reserved_bytes"),
        (result["advice"][0], "id step title why share_of_step predicted_gain estimated_gain"),
    ):
        assert set(keys.split()) <= value.keys()
    assert result["kernels"] == {"count": 3, "total_us": 1300}
    h2d = {"count": 3, "bytes": 2_000_070, "us": 90, "pinned_bytes": 0, "pageable_bytes": 2_000_070}
    assert (list(result["copies"]), result["copies"]["h2d"]) == (["h2d", "d2h", "d2d"], h2d)
