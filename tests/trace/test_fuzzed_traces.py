"""Damaged, odd and hostile traces, by seed: `explain` and both of the tab's answers end with an answer or one line."""

import gzip
import json
import random
from copy import deepcopy

import pytest
from support import ROOT, some_place
from support.trace_builder import TraceBuilder, run_ahead, two_steps

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report, tables
from walkthrough.explain.text import text
from walkthrough.results.errors import InputError
from walkthrough.trace import reader
from walkthrough.trace.analysis import analyze
from walkthrough.trace.timeline import lanes


def training():
    """Four steps of two ranks' training: loader, closure, collectives, memory, a CUDA graph, stacks, annotations."""
    builder = TraceBuilder(rank=1)
    builder.header["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
    builder.header["walkthrough"] = {
        "untraced_step_ms": [1.0, 1.1, 5.0, 1.0], "untraced_after_ms": [1.0, 5.0, 1.2], "epoch_step_ms": [3.0],
        "untraced_happenings": [{"step": "2", "what": "evaluation"}], "warmup": 3, "asked": {"warmup": 10, "steps": 4},
        "total_steps": 12, "cores": 4, "processes": 2, "threads": 4, "openmp": {"OMP_WAIT_POLICY": "PASSIVE"},
        "workers_cpu": 0.2, "cpu_waiting": 0.1, "asleep": 0.1, "cpus_used": 3.5,
        "optimizers": [{"name": "SGD", "steps": 4, "lead": True}], "loaders": [{"batch_size": 8, "num_workers": 2}],
        "happenings": [{"step": "2", "what": "new epoch"}],
    }  # fmt: skip
    builder.events.append({"ph": "M", "name": "thread_name", "pid": 100, "tid": 1, "args": {"name": "thread 1 (main)"}})
    for number in range(4):
        begin = number * 1000
        builder.step(number, begin, 3000 if number == 3 else 1000)
        builder.loading(begin, 150, "_MultiProcessingDataLoaderIter")
        builder.add("python_function", "train.py(7): train", begin + 150, 800)
        op = builder.op("aten::addmm", begin + 200, 60)
        op["args"] |= {"Input Dims": [[64], [8, 63], [63, 64]], "Input type": ["float", "c10::Half", "c10::Half"]}
        builder.launch("ampere_fp16_s16816gemm_align1", begin + 210, 20, begin + 240, 200, op=op)
        builder.add("annotation", "gloo:all_reduce", begin + 300, 50, tid=3)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 320, 5, begin + 450, 100)
        builder.launch("graphed", begin + 400, 9, begin + 560, 20, call="cudaGraphLaunch")
        builder.add("annotation", "Optimizer.step#SGD.step", begin + 600, 200)
        builder.op("ConvolutionBackward0", begin + 610, 100, tid=2)
        builder.memory(begin + 205, 4096, 4096 * (number + 1), 2**20, address=number)
        builder.add("runtime", "cudaStreamSynchronize", begin + 850, 90)
    return builder


SEEDS = [builder.json for builder in (two_steps(), two_steps("2021"), run_ahead(), training())]
with gzip.open(ROOT / "tests" / "data" / "cpu_stacks.pt.trace.json.gz") as recorded:
    SEEDS.append(json.load(recorded))
SEEDS[-1]["traceEvents"] = SEEDS[-1]["traceEvents"][::40]

BROKEN = [b"{", b"}", b"[", b"]", b'"', b",", b"\\", b"N/A", b"1e999", b"null", b"\xff", b"\\ud800", b"\x1f\x8b", b"\0"]
RAW = {"huge": "9" * 5000, "negative": "-" + "9" * 5000, "deep": "[" * 3000 + "]" * 3000, "long": f'"{"x<(" * 9000}"'}
ODD = [
    *(None, True, [], {}, "", "x", "-1", 0, -1, -0.0, 0.5, 1e308, -1e308, 5e-324, 2**31, 2**53, 2**63, -(2**63), 2**70),
    *("\ud800", "a\udfff", "\ud83d\ude00", "\x1b[31m\0\n\u202e", "NaN", "ProfilerStep#", "9" * 5000),
    *([[[]]], {"a": [1]}),
    *(float("nan"), float("inf"), 10**300, [2**70], [None], [1e308, "x"], *(f"@{name}@" for name in RAW)),
]
NAMES = [
    *("ProfilerStep#1", "ProfilerStep#" + "9" * 5000, "ProfilerStep#-1", "ProfilerStep#\u0663", "ProfilerStep"),
    *("Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad", "enumerate(DataLoader)#x.__next__", "aten::mm"),
    *("ncclDevKernel_AllReduce_Sum_f32", "nccl:all_reduce", "gloo:all_reduce", "cudaGraphLaunch", "cudaMalloc"),
    *("[memory]", "aten::empty", "autograd::engine::evaluate_function: A"),
    *("cudaStreamBeginCapture", "cudaStreamEndCapture"),
    *("torch/serialization.py(3): save", "cudaDeviceSynchronize", "Memcpy DtoD", "softmax_warp_forward", "aten::bmm"),
]
CATEGORIES = ["cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "python_function"]


def damaged_bytes(trace, chance):
    """Bytes flipped, lost, inserted, or from elsewhere in the file; of the text, or of the packed file."""
    text = bytearray(json.dumps(trace, indent=chance.choice([None, 1])).encode())
    packed = chance.random() < 0.3
    if packed:
        text = bytearray(gzip.compress(bytes(text), 1, mtime=0))
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(text) + 1), chance.choice([1, 1, 4, 100, 5000])
        start = chance.randrange(len(text) + 1)
        text[at : at + chance.choice([0, length])] = chance.choice(
            [bytes(chance.randrange(256) for _ in range(length)), b"", chance.choice(BROKEN), text[start : start + 300]]
        )
        if chance.random() < 0.1:
            del text[at:]
    return bytes(text) if packed or chance.random() < 0.8 else gzip.compress(bytes(text), 1)


def odd_values(trace, chance):
    """Values of any type and size in the place of others; keys that are gone, new, or there twice."""
    for _ in range(chance.randint(1, 6)):
        inside, key = some_place(trace, chance)
        if chance.random() < 0.1:
            del inside[key]
        else:
            inside[key] = deepcopy(chance.choice(ODD))
            if isinstance(inside, dict) and chance.random() < 0.1:
                inside[chance.choice(["name", "ts", "\udc00", "args", "rank"])] = deepcopy(chance.choice(ODD))
    text = json.dumps(trace).encode()
    for name, raw in RAW.items():
        text = text.replace(f'"@{name}@"'.encode(), raw.encode())
    key = chance.choice([b'"ts":', b'"name":', b'"args":', b'"traceEvents":', b'"dur":'])
    return text.replace(key, key + b" 1, " + key, 1) if chance.random() < 0.1 else text


def odd_structure(trace, chance):
    """Times that are the same, overlap or run backwards; ids used again; other names, kinds, threads and devices."""
    events = trace["traceEvents"]
    times = [event.get("ts", 0) for event in events]
    for _ in range(chance.randint(1, 8)):
        some = [event for event in chance.sample(events, chance.randint(1, min(30, len(events)))) if event.get("args")]
        kind, one = chance.randrange(9), chance.choice(times)
        for event in some:
            changes = [
                {"ts": one},
                {"ts": chance.choice(times) * chance.choice([1, -1, 1e-9, 1e9])},
                {"dur": chance.choice([0, 1e-9, 1, 1e3, 1e9, 1e15])},
                {"name": chance.choice(NAMES)},
                {"cat": chance.choice(CATEGORIES), "ph": chance.choice("XXXXiM")},
                {"tid": chance.choice([1, 7, -1, "stream 7", 2**70]), "pid": chance.choice([0, 100, "x"])},
                {"correlation": one % 3, "External id": one % 2, "finished": bool(one % 2)},
                {"device": chance.choice([0, 1, -1, 1e30, 64]), "bytes": 1e18, "Addr": one % 2},
            ]
            if kind < 6:
                event |= changes[kind]
            elif kind < 8:
                event["args"] |= changes[kind]
            else:
                events.append(dict(event, ts=event.get("ts", 0) + chance.choice([0, 1, 500])))
    return json.dumps(trace).encode()


LEVELS = {level.__name__: level for level in (damaged_bytes, odd_values, odd_structure)}


def problem(level, seed, path):
    """What is wrong with the answers for a trace of this seed: "" where all are finite; "refused" in a line."""
    chance = random.Random(seed)
    path.write_bytes(LEVELS[level](deepcopy(chance.choice(SEEDS)), chance))
    try:
        analysis = analyze(path)
        of_trace = report(analysis)
        findings = [(finding.what, finding.when) for finding in advise(analysis).findings]
        for answer in (of_trace, tables(analysis), lanes(analysis, findings)):
            json.dumps(answer, allow_nan=False, ensure_ascii=False, default=lambda number: number.item()).encode()
        text(of_trace, everything=True).encode()
        if (lines := len(text(of_trace).splitlines())) > 25:
            return f"{lines} lines"
        row = next(row for row in [*answer["lanes"], None] if not row or row["thread"] >= 0)
        if row:  # the arguments of its first event
            name, at = answer["names"][row["name"][0]], answer["file_us"] + row["start"][0]
            json.dumps(reader.event(path, name, (row["pid"], row["tid"]), at, row["duration"][0]), allow_nan=False)
    except InputError as error:
        return "a refusal of several lines" if "\n" in str(error) else "refused"
    except Exception as error:
        return f"{level}, seed {seed}: {error!r}"
    return ""


BLOCKS = [*range(7), *(pytest.param(block, marks=pytest.mark.thorough) for block in range(7, 300))]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("level", LEVELS)
def test_any_trace_ends_with_an_answer_or_one_line(tmp_path, level, block):
    found = [problem(level, seed, tmp_path / "made.json") for seed in range(10 * block, 10 * block + 10)]
    assert set(found) <= {"", "refused"}
    assert found.count("") >= (5 if level == "odd_structure" else 1)
