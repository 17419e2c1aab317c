"""The texts of `explain`, whole: one file in golden/ for each kind of trace. `make golden-texts` writes them anew."""

import json
import re
from pathlib import Path

import pytest
from support import ROOT, assert_golden, make_result, write_run
from support.trace_builder import V100, TraceBuilder, one_step, repeated, run_ahead, two_steps

from walkthrough.terminal import count_text, rounded_time, size_text, time_text

GOLDEN = Path(__file__).parent / "golden"
RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


def inference():
    """Two batches of a model in evaluation: no backward pass, no optimizer."""

    def evaluating(builder, begin):
        builder.copy(begin + 10, 40, begin + 20, 30, 600_000)
        for layer in range(60):
            at = begin + 100 + 25 * layer
            op = builder.op("aten::linear", at, 20)
            builder.launch("ampere_sgemm_128x64_tn", at + 5, 5, at + 12, 6, op=op)
        builder.add("runtime", "cudaDeviceSynchronize", begin + 1700, 30)

    return repeated(evaluating, 2000, steps=2)


def copies_only():
    def copying(builder, begin):
        op = builder.op("aten::copy_", begin + 5, 1995)
        builder.copy(begin + 10, 1990, begin + 20, 1970, 24_000_000, op=op)

    return repeated(copying, 2000, steps=2)


def without_steps():
    builder = two_steps()
    builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep#")]
    return builder


def launching(*launches, length=1000, call="cudaLaunchKernel", **header):
    """A step of so many µs. launches: (name, call's start and duration, kernel's start and duration), of `aten::mm`."""
    builder = one_step(length, **header)
    op = builder.op("aten::mm", 0, length / 10)
    for launch in launches:
        builder.launch(*launch, op=op, call=call)
    return builder


def stalled():
    """A graph's kernel that begins long after its launch, as if the GPU still ran earlier work."""
    builder = one_step()
    builder.launch("k", 0, 10, 600, 400, call="cudaGraphLaunch")
    return builder


def amd_trace():
    """One step on an AMD GPU, with a kernel of a long name."""
    long = "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_" + "_".join(f"P{number}" for number in range(100))
    kernels = (long, 10, 5, 100, 300), ("SubTensorOpWithScalar1d", 20, 5, 500, 100)
    return launching(*kernels, call="hipLaunchKernel", devices=[{"id": 0, "name": "AMD Instinct MI210"}])


def no_whole_step():
    builder = one_step(devices=())
    builder.events[0]["args"]["finished"] = False
    builder.op("aten::mm", 0, 900)
    return builder


def outlying_step(*lengths):
    """Steps of these lengths, of which one kernel runs for 500 µs."""
    builder, begin = TraceBuilder(), 0
    for number, length in enumerate(lengths or (1000, 1000, 5000, 1000)):
        builder.step(number, begin, length)
        op = builder.op("aten::mm", begin + 100, 100)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 110, 10, begin + 200, 500, op=op)
        begin += length
    return builder


def epochs():
    """Three steps of 1 ms; before the second one the DataLoader ends, and its workers start for 100 ms."""
    builder, loader = TraceBuilder(devices=()), "_MultiProcessingDataLoaderIter"
    for number, (begin, at) in enumerate(((0, 0), (1000, 101_000), (102_000, 102_000))):
        builder.step(number, begin, at + 1000 - begin)
        builder.loading(at, 100, loader)
        builder.op("aten::mm", at + 100, 900)
    builder.loading(1000, 50, loader)
    return builder


RECORDING = {
    "schema": 1, "untraced_step_ms": [0.5, 0.4, 0.6], "cores": 8, "mark": "optimizer", "backwards_per_step": 73 / 3,
    "skipped": 1, "samples_per_step": 256, "moved": 2, "optimizers": [{"name": "AdamW", "steps": 2, "lead": True}],
    "loaders": [
        {"batch_size": 32, "num_workers": 4, "persistent_workers": True, "pin_memory": True, "prefetch_factor": 2},
        {"batch_size": None, "num_workers": 0},
    ],
    "happenings": [],
}  # fmt: skip


def recorded(**recording):
    """A trace in whose header `walkthrough trace` wrote this."""
    builder = two_steps()
    builder.header["walkthrough"] = recording or RECORDING
    return builder


def rank(number):
    def reducing(builder, begin):
        at, op = 400 + 200 * number, builder.op("aten::mm", begin, 50)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, at - 100, op=op)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32", begin + 60, 10, begin + at, 900 - at)

    return repeated(reducing, steps=2, rank=number)


def one(builder, *words):
    return lambda folder: [builder.write(folder / "made.pt.trace.json"), *words]


def before_and_after(folder):
    return [two_steps().write(folder / "before.json"), outlying_step().write(folder / "after.json")]


def ranks(folder):
    for number in range(2):
        rank(number).write(folder / f"host_{number}.1700000000{number}00.pt.trace.json")
    return [folder]


def ranks_of_gloo(*collectives):
    """A trace per rank of steps of 1000 µs: (start, duration) of its collective, between other work and an update."""

    def write(folder):
        for number, (start, duration) in enumerate(collectives):

            def training(builder, begin, start=start, duration=duration):
                builder.op("aten::mm", begin, 300)
                builder.op("autograd::engine::evaluate_function: MmBackward0", begin, 1)
                builder.add("annotation", "gloo:all_reduce", begin + start, duration, tid=5)
                builder.op("aten::add_", begin + 900, 100)

            builder = repeated(training, steps=2, devices=(), rank=number)
            builder.write(folder / f"host_{number}.1700000000{number}00.pt.trace.json")
        return [folder]

    return write


def ladder_in(folder, device=V100):
    """Three runs whose traces predict at most 1.25x for workers: step 04 gains less than predicted, step 05 more."""
    for step, speed in {"00_baseline": 100.0, "04_multiprocess_loading": 120.0, "05_pinned_memory": 200.0}.items():
        result, builder = make_result(step, windows=[speed] * 5), two_steps()
        builder.header["deviceProperties"] = [device]
        builder.write(write_run(folder, result) / result.trace)
    return folder


CASES = {  # what is written into an empty folder, and the words of the command
    "cpu": lambda _: [RECORDED],
    "cpu_all": lambda _: [RECORDED, "--all"],
    "gpu": one(two_steps()),
    "gpu_all": one(two_steps(), "--all"),
    "gpu_runs_ahead": one(run_ahead()),
    "inference": one(inference()),
    "inference_all": one(inference(), "--all"),
    "copies_only": one(copies_only()),
    "without_steps": one(without_steps()),
    "outlying_step": one(outlying_step()),
    "outlying_step_all": one(outlying_step(), "--all"),
    "before_and_after": before_and_after,
    "ranks": ranks,
    "ranks_gloo": ranks_of_gloo((300, 600), (700, 200)),
    "ranks_gloo_alike": ranks_of_gloo((300, 600), (310, 590)),
    "ranks_gloo_hidden": ranks_of_gloo((0, 300), (0, 300)),
    "runs": lambda folder: [ladder_in(folder)],
    "amd_all": one(amd_trace(), "--all"),
    "epochs_all": one(epochs(), "--all"),
    "no_whole_step": one(no_whole_step()),
    "recorded_all": one(recorded(), "--all"),
    "stalled_all": one(stalled(), "--all"),
    "two_lengths": one(outlying_step(1000, 9000)),
    "without_steps_all": one(without_steps(), "--all"),
}


@pytest.fixture
def text_of(tmp_path, run):
    """text_of(case): what `explain` prints of it in a pipe."""
    return lambda case: run(*CASES[case](tmp_path))[0]


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_the_golden_one(case, text_of):
    assert_golden(text_of(case), GOLDEN / f"{case}.txt")


def test_there_is_no_golden_text_of_something_else():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_a_text_fits_its_screen_and_a_pipe_gets_no_blanks_at_the_ends_of_lines():
    for path in GOLDEN.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line != line.rstrip() or len(line) > 100 or "\x1b" in line] == []
        assert len(lines) <= 25 or path.stem.endswith("_all"), path.stem


@pytest.mark.parametrize("case", ["inference", "inference_all"])
def test_inference_is_never_called_training(case):
    assert "train" not in (GOLDEN / f"{case}.txt").read_text(encoding="utf-8").lower()


# What `--json` prints.

BUILT = [two_steps(), two_steps("2021"), run_ahead(), inference(), copies_only()]
BUILT += [without_steps(), outlying_step(), rank(1)]
NUMBER = re.compile(r"\d+(?:\.\d+)?(?: (?:us|ms|s|GB/s|GB|MB|kB|B)\b|%|x)?")


def leaves(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def renderings(numbers):
    """All that a number may be printed as."""
    texts = set()
    for number in map(abs, numbers):
        texts |= {time_text(number), rounded_time(number), size_text(number), count_text(number), f"{number:.0f}"}
        texts |= {f"{number:.1%}", f"{number:.0%}", f"{number:.1f}%", f"{number:.2f}x", f"{number:.1f}x"}
        texts |= {f"{number:.1f} GB/s", time_text(number).split()[0]}
    return texts


@pytest.mark.parametrize("trace", [*BUILT, RECORDED, RECORDED.with_name("cpu_stacks.pt.trace.json.gz")])
def test_every_number_of_the_text_is_in_the_json(trace, tmp_path, run):
    trace = trace if isinstance(trace, Path) else trace.write(tmp_path / "made.json")
    report = json.loads(run(trace, "--json")[0])
    values = list(leaves(report))
    known = renderings(value for value in values if isinstance(value, int | float))
    known |= {str(number) for number in range(1, len(report["advice"]) + 1)}
    known |= {number for value in values if isinstance(value, str) for number in NUMBER.findall(value)}  # in sentences
    for words in ([], ["--all"]):
        text = " ".join(run(trace, *words)[0].partition(" · ")[2].split())  # without the file's name, nor ends of lines
        assert [number for number in NUMBER.findall(text) if number not in known | {"100%"}] == []
