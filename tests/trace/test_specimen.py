"""docs/specimen: a made-up trace whose every number a reader can compute by hand, as the comments here do.

A step is 1000 us: 0-300 loading, 320-350 the call that copies, 350-450 the copy, 480-500 the first launch, then four
kernels of 100 us each, 500-900, without a gap, and 900-1000 nothing. All three steps are alike.
"""

import json
import math
import subprocess
import sys

import pytest
from support import ROOT

from walkthrough.advice.gains import advise
from walkthrough.trace.analysis import analyze

SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
MIB = 2**20
BREAKDOWN = {  # us of a step, in order of precedence: what no earlier role covers
    "kernel": 4 * 100,  # 500-900
    "memcpy": 100,  # 350-450
    "memset": 0,
    "communication": 0,
    "runtime": 30 + 20,  # cudaMemcpyAsync 320-350, the first cudaLaunchKernel 480-500; the others run beside kernels
    "dataloader": 300,  # 0-300
    "cpu_exec": 20 + 30,  # aten::to before its call 300-320, the forward before its launch 450-480
    "other": 100,  # 900-1000
}


@pytest.fixture(scope="module")
def trace():
    return json.loads(SPECIMEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def analysis():
    return analyze(SPECIMEN)


def kernels_of(trace):
    return [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]


def test_it_is_marked_as_made_up_and_readable_in_an_editor(trace):
    assert trace["traceName"] == "made up by hand: not measured"
    assert [device["name"] for device in trace["deviceProperties"]] == ["made-up GPU"]
    assert len(trace["traceEvents"]) < 200
    lines = SPECIMEN.read_text(encoding="utf-8").splitlines()
    assert sum('"ph": ' in line for line in lines) == len(trace["traceEvents"])  # one per line
    assert all(line.count('"ph": ') <= 1 for line in lines)


def test_step_breakdown(analysis):
    assert analysis.steps.names == ["1", "2", "3"]
    assert analysis.steps.duration.tolist() == [1000, 1000, 1000]
    assert analysis.steps.mean_breakdown_us == BREAKDOWN
    assert sum(BREAKDOWN.values()) == 1000


def test_how_busy_the_gpu_is(analysis):
    [gpu] = analysis.gpus
    assert gpu.utilization == pytest.approx(400 / 1000)
    # blocks per SM are 4, 128, 4 and 0.5; at most 1 counts: 100 us each at 1, 1, 1 and 0.5, in a step of 1000 us
    assert gpu.sm_efficiency == pytest.approx((100 + 100 + 100 + 50) / 1000)
    assert gpu.occupancy_percent == pytest.approx((50 + 100 + 50 + 25) / 4)  # kernels of equal length weigh alike


def test_blocks_and_occupancy_of_each_kernel_follow_from_its_launch(trace):
    [gpu] = trace["deviceProperties"]
    for kernel in kernels_of(trace):
        launch, threads = kernel["args"], kernel["args"]["block"][0]
        blocks = math.prod(launch["grid"]) / gpu["numSms"]
        fitting = gpu["regsPerMultiprocessor"] // (launch["registers per thread"] * threads)  # blocks in one SM
        if launch["shared memory"]:
            fitting = min(fitting, gpu["sharedMemPerMultiprocessor"] // launch["shared memory"])
        most = gpu["maxThreadsPerMultiprocessor"]
        assert launch["blocks per SM"] == blocks
        assert launch["warps per SM"] == blocks * threads / gpu["warpSize"]
        assert launch["est. achieved occupancy %"] == 100 * min(blocks * threads, fitting * threads, most) / most


def test_tensor_cores_and_the_planted_fault(analysis):
    assert analysis.gpus[0].tensor_core_share == pytest.approx(100 / 400)  # turing_fp16_s1688gemm of four kernels
    assert analysis.tensor_cores.eligible_share == pytest.approx(200 / 400)  # aten::mm, forward and backward
    assert {kernel.name.split("<")[0]: kernel.tensor_cores for kernel in analysis.all_tables.kernels} == {
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": True,
        "void at::native::vectorized_elementwise_kernel": False,
        "volta_sgemm_128x64_nt": False,  # the backward product, in float32: the fault
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel": False,
    }
    [amp] = [advice for advice in advise(analysis).costs if advice.step == "01_amp"]
    assert amp.share_of_step == pytest.approx(0.1)
    assert amp.predicted_gain == pytest.approx(1 / (1 - 0.1))  # the optimizer's kernel stays in float32


def test_copies(analysis):
    to_the_gpu = analysis.all_tables.copies["h2d"]
    assert (to_the_gpu.count, to_the_gpu.bytes, to_the_gpu.us) == (3, 3 * MIB, 300)
    assert to_the_gpu.pageable_bytes == 3 * MIB  # 1024 rows of 512 halves a step
    assert to_the_gpu.gigabytes_per_second == pytest.approx(1_048_576 / 100e-6 / 1e9)
    assert analysis.all_tables.copies["d2h"].count == analysis.all_tables.copies["d2d"].count == 0


def test_memory_at_its_peak(analysis):
    [gpu] = analysis.memory
    before, batch, product, rectified, gradient = 8, 1, 4, 4, 4  # MiB; "before": weights and momentum, 4 each
    assert gpu.peak_allocated == (before + batch + product + rectified + gradient) * MIB == 21 * MIB
    assert gpu.growth == (21 - before) * MIB
    assert gpu.peak_reserved == 40 * MIB
    assert gpu.at_peak == {"aten::mm": 8 * MIB, "aten::relu": 4 * MIB, "outside of any operator": 1 * MIB}
    assert gpu.allocated[-1] == before * MIB


def test_why_the_gpu_waits(analysis):
    [idle] = analysis.idle
    assert idle.total_us == 3 * 600
    assert {cause: us / 3 for cause, us in idle.causes_us.items()} == {
        "copy": 30 + 100,  # the call 320-350, the copy 350-450
        "queued": 0,
        "dataloader": 300,
        "synchronisation": 0,  # cudaStreamSynchronize 350-450 waits for the copy and counts as that
        "setup": 0,
        "launch": 20 + 50,  # 300-320, 450-500
        "other": 100,
    }


def test_the_best_advice_is_to_load_in_processes(analysis):
    assert advise(analysis).advice[0].step == "04_multiprocess_loading"
    assert advise(analysis).advice[0].predicted_gain == pytest.approx(1 / 0.7)


@pytest.fixture(scope="module")
def views():
    """What TensorBoard's profiler tab shows, see tests/support/by_tensorboard.py."""
    pytest.importorskip("torch_tb_profiler")
    program = [sys.executable, str(ROOT / "tests" / "support" / "by_tensorboard.py"), str(SPECIMEN)]
    finished = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)[0]["views"]


def test_the_overview_shows_the_same(views):
    [step] = views["overview"]["performance"]
    assert (step["name"], step["value"]) == ("Average Step Time", 1000)
    names = ("Kernel", "Memcpy", "Memset", "Runtime", "DataLoader", "CPU Exec", "Other")
    ours = [us for role, us in BREAKDOWN.items() if role != "communication"]
    assert {part["name"]: part["value"] for part in step["children"]} == dict(zip(names, ours, strict=True))
    shown = {line["title"]: line["value"] for line in views["gpu_summary"]}
    assert shown == {
        "GPU 0:": "",
        "Name": "made-up GPU",
        "Memory": "1.0 GB",
        "Compute Capability": "7.5",
        "GPU Utilization": "40.0 %",
        "Est. SM Efficiency": "35.0 %",
        "Est. Achieved Occupancy": "56.25 %",
        "Kernel Time using Tensor Cores": "25.0 %",
    }


def test_the_gpu_kernel_view_shows_the_same(views):
    assert dict(views["tc_pie"]["total"]["rows"]) == {"Using Tensor Cores": 0.25, "Not Using Tensor Cores": 0.75}
    by_name = {row[0].split("<")[0].split("::")[-1]: row[1:] for row in views["kernel_table"]["data"]["rows"]}
    assert by_name == {  # Tensor Cores Used, Calls, Total, Mean, Max, Min Duration, Mean Blocks Per SM, Occupancy
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": ["Yes", 3, 300, 100, 100, 100, 4, 50],
        "vectorized_elementwise_kernel": ["No", 3, 300, 100, 100, 100, 128, 100],
        "volta_sgemm_128x64_nt": ["No", 3, 300, 100, 100, 100, 4, 50],
        "multi_tensor_apply_kernel": ["No", 3, 300, 100, 100, 100, 0.5, 25],
    }
    columns = [column["name"] for column in views["kernel_op_table"]["data"]["columns"]]
    rows = [dict(zip(columns, row, strict=True)) for row in views["kernel_op_table"]["data"]["rows"]]
    shown = ("Operator", "Kernel Uses Tensor Cores", "Op is Tensor Cores eligible")
    assert sorted(tuple(row[name] for name in shown) for row in rows) == [
        ("aten::_foreach_add_", "No", "No"),
        ("aten::mm", "No", "Yes"),
        ("aten::mm", "Yes", "Yes"),
        ("aten::relu", "No", "No"),
    ]


def test_the_memory_view_shows_the_same(views):
    assert views["names"] == ["Overview", "Operator", "Kernel", "Trace", "Memory"]
    assert views["memory_curve"]["metadata"]["peaks"] == {"GPU0": f"Peak Memory Usage: {21 * 1024:.1f}KB"}
    columns = [column["name"].removesuffix(" (KB)") for column in views["memory"]["columns"]]
    rows = {row[0]: dict(zip(columns, row, strict=True)) for row in views["memory"]["rows"]["GPU0"]}
    product = rows["aten::mm"]
    assert (product["Calls"], product["Self Allocation Count"], product["Self Allocation Size"]) == (6, 6, 6 * 4 * 1024)
    batch = rows["aten::empty_strided"]
    assert (batch["Self Size Increase"], batch["Allocation Size"]) == (3 * 1024, 3 * 1024)
    assert rows["aten::to"]["Size Increase"] == 3 * 1024
    assert rows["aten::to"]["Self Size Increase"] == 0
