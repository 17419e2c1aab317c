"""docs/specimen: a made-up trace whose every number a reader can compute by hand, as the comments here do.

A step is 1000 us: 0-300 loading, 320-350 the call that copies, 350-450 the copy, 480-500 the first launch, then four
kernels of 100 us each, 500-900, without a gap, and 900-1000 nothing. All three steps are alike.
"""

import json
import math

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
    for kernel in [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]:
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
    first = advise(analysis).advice[0]
    assert (first.step, first.predicted_gain) == ("04_multiprocess_loading", pytest.approx(1 / 0.7))
