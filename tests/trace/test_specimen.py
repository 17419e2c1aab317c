"""docs/specimen: a made-up trace whose every number a reader can compute by hand, as the comments here do.

A step is 1000 us: 0-300 loading, 320-350 the call that copies, 350-450 the copy, 480-500 the first launch, then four
kernels of 100 us each, 500-900, without a gap, and 900-1000 nothing. All three steps are alike.
"""

import pytest
from support import ROOT

from walkthrough.advice.gains import advise
from walkthrough.trace.analysis import analyze

SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"


@pytest.fixture(scope="module")
def analysis():
    return analyze(SPECIMEN)


def test_step_breakdown(analysis):
    assert analysis.steps.names == ["1", "2", "3"]
    assert analysis.steps.duration.tolist() == [1000, 1000, 1000]
    assert analysis.steps.mean_breakdown_us == {
        "kernel": 4 * 100,  # 500-900
        "memcpy": 100,  # 350-450
        "memset": 0,
        "communication": 0,
        "runtime": 30
        + 20,  # cudaMemcpyAsync 320-350, the first cudaLaunchKernel 480-500; the others run beside kernels
        "dataloader": 300,  # 0-300
        "cpu_exec": 20 + 30,  # aten::to before its call 300-320, the forward before its launch 450-480
        "other": 100,  # 900-1000
    }


def test_tensor_cores_and_the_planted_fault(analysis):
    assert analysis.gpus[0].tensor_core_share == pytest.approx(100 / 400)  # turing_fp16_s1688gemm of four kernels
    assert analysis.tensor_cores.eligible_share == pytest.approx(200 / 400)  # aten::mm, forward and backward
    names = {kernel.name: kernel.tensor_cores for kernel in analysis.all_tables.kernels}
    assert names["volta_sgemm_128x64_nt"] is False  # the backward product, in float32: the fault
    [amp] = [advice for advice in advise(analysis).costs if advice.step == "01_amp"]
    assert amp.share_of_step == pytest.approx(0.1)
    assert amp.predicted_gain == pytest.approx(1 / (1 - 0.1))  # the optimizer's kernel stays in float32


def test_why_the_gpu_waits(analysis):
    [idle] = analysis.idle
    assert {cause: us / 3 for cause, us in idle.causes_us.items() if us} == {
        "copy": 30 + 100,  # the call 320-350, the copy 350-450, for which cudaStreamSynchronize waits
        "dataloader": 300,
        "launch": 20 + 50,  # 300-320, 450-500
        "other": 100,
    }


def test_the_best_advice_is_to_load_in_processes(analysis):
    first = advise(analysis).advice[0]
    assert (first.step, first.predicted_gain) == ("04_multiprocess_loading", pytest.approx(1 / 0.7))
