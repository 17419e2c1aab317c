"""The texts of `explain`, whole: one file in golden/ for each kind of trace. `make golden-texts` writes them anew."""

import os
from pathlib import Path

import pytest
from support import ROOT, make_result, write_run
from support.trace_builder import TraceBuilder, run_ahead, two_steps

GOLDEN = Path(__file__).parent / "golden"
RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


def inference():
    """Two batches of a model in evaluation: no backward pass, no optimizer."""
    builder = TraceBuilder()
    for number, begin in ((1, 0), (2, 2000)):
        builder.step(number, begin, 2000)
        builder.copy(begin + 10, 40, begin + 20, 30, 600_000)
        for layer in range(60):
            at = begin + 100 + 25 * layer
            op = builder.op("aten::linear", at, 20)
            builder.launch("ampere_sgemm_128x64_tn", at + 5, 5, at + 12, 6, op=op)
        builder.add("runtime", "cudaDeviceSynchronize", begin + 1700, 30)
    return builder


def copies_only():
    builder = TraceBuilder()
    for number, begin in ((1, 0), (2, 2000)):
        builder.step(number, begin, 2000)
        op = builder.op("aten::copy_", begin + 5, 1995)
        builder.copy(begin + 10, 1990, begin + 20, 1970, 24_000_000, op=op)
    return builder


def without_steps():
    builder = two_steps()
    builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep#")]
    return builder


def outlying_step():
    builder = TraceBuilder()
    for number, (begin, length) in enumerate(((0, 1000), (1000, 1000), (2000, 5000), (7000, 1000))):
        builder.step(number, begin, length)
        op = builder.op("aten::mm", begin + 100, 100)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 110, 10, begin + 200, 500, op=op)
    return builder


def rank(number):
    builder = TraceBuilder(rank=number)
    for step, begin in ((1, 0), (2, 1000)):
        builder.step(step, begin, 1000)
        op = builder.op("aten::mm", begin, 50)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, 300 + 200 * number, op=op)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32", begin + 60, 10, begin + 400 + 200 * number,
                       500 - 200 * number)  # fmt: skip
    return builder


def one(builder, *words):
    return lambda folder: [builder().write(folder / "made.pt.trace.json"), *words]


def before_and_after(folder):
    return [two_steps().write(folder / "before.json"), outlying_step().write(folder / "after.json")]


def ranks(folder):
    for number in range(2):
        rank(number).write(folder / f"host_{number}.1700000000{number}00.pt.trace.json")
    return [folder]


def runs(folder):
    for step, speed in {"00_baseline": 100.0, "04_multiprocess_loading": 120.0, "05_pinned_memory": 200.0}.items():
        result = make_result(step, windows=[speed] * 5)
        two_steps().write(write_run(folder, result) / result.trace)
    return [folder]


CASES = {  # what is written into an empty folder, and the words of the command
    "cpu": lambda _: [RECORDED],
    "cpu_all": lambda _: [RECORDED, "--all"],
    "gpu": one(two_steps),
    "gpu_all": one(two_steps, "--all"),
    "gpu_runs_ahead": one(run_ahead),
    "inference": one(inference),
    "inference_all": one(inference, "--all"),
    "copies_only": one(copies_only),
    "without_steps": one(without_steps),
    "outlying_step": one(outlying_step),
    "outlying_step_all": one(outlying_step, "--all"),
    "before_and_after": before_and_after,
    "ranks": ranks,
    "runs": runs,
}


@pytest.fixture
def text_of(tmp_path, run):
    """text_of(case): what `explain` prints of it in a pipe."""
    return lambda case: run(*CASES[case](tmp_path))[0]


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_the_golden_one(case, text_of):
    text, path = text_of(case), GOLDEN / f"{case}.txt"
    if "REGENERATE" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_there_is_no_golden_text_of_something_else():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("runs", "ranks")])
def test_a_text_fits_its_screen(case, text_of):
    lines = text_of(case).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 25 or case.endswith("_all")


@pytest.mark.parametrize("case", ["inference", "inference_all"])
def test_inference_is_never_called_training(case, text_of):
    assert "train" not in text_of(case).lower()
