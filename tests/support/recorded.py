"""A record made by hand, as `python -m walkthrough record` writes one, and ways to spoil it."""

import gzip
import json

from support.results import make_result
from support.trace_builder import TraceBuilder
from walkthrough.compare.rounds import merged
from walkthrough.records import record as records
from walkthrough.results import result as record
from walkthrough.results.environment import Environment
from walkthrough.results.events import write_events

STEPS = ["00_baseline", "01_amp"]
TRACE = "00_baseline/00_baseline.1795000000001.pt.trace.json.gz"
EVENTS = "00_baseline/events.out.tfevents.1795000000.00_baseline.1795000000001"
GPU = {"id": 0, "name": "Test GPU", "computeMajor": 9, "computeMinor": 0}
ENVIRONMENT = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.1", "python": "3.12.3"}
ENVIRONMENT |= {"platform": "Linux-6.18.44-fc-v657-x86_64-with-glibc2.36", "cpu": "CPU @ 1.90GHz", "cores": 16}
MEDIANS = {"median/step_ms": 1.0, "median/images_per_second": 32_001.0}
POINTS = [("loss", 1, 2.3), ("loss", 2, 3.6), ("first_step_seconds", 1, 1.5)]


def a_result(step, run):
    """One run of a step of 1 ms on 32 images."""
    speed = 32_000.0 + run
    return make_result(
        step,
        windows=[speed - 2, speed - 1, speed, speed + 1, speed + 2],
        step_ms=record.StepTime(1.0, 0.9, 1.2),
        trace=f"{step}.1795000000001.pt.trace.json.gz",
        environment=Environment(**ENVIRONMENT, git="0123456789ab"),
        started=f"2026-01-01T00:0{run}:00+00:00",
    )


def a_trace(result):
    """Three steps that copy a batch to the GPU and convolve it."""
    builder = TraceBuilder(devices=[GPU])
    for number in (2, 3, 4):
        begin = number * 2000
        builder.step(number, begin, 1500)
        builder.copy(begin + 10, 20, begin + 20, 200, result.batch_bytes)
        op = builder.op("aten::conv2d", begin + 300, 100)
        op["args"]["Input Dims"] = [[result.batch_size, 3, result.image_size, result.image_size], [32, 3, 3, 3], []]
        builder.launch(
            "void at::native::(anonymous namespace)::conv<float>()", begin + 310, 10, begin + 330, 900, op=op
        )
    return builder.json | {"traceName": result.trace.removesuffix(".gz")}


def write_trace(path, trace):
    path.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0))


def sum_up(folder):
    """Write what `record` derives from the runs: each step's result, and the page."""
    for step in STEPS:
        record.write_result(folder / step / record.FILE, merged(record.read_runs(folder / step)))
    records.write_page(folder)


def make_record(folder):
    """Two runs of two steps."""
    settings = {"words": ["--workers", "8"], "seed": 0, "quick": False, "device": "Test GPU"}
    header = {"schema": 2, "settings": settings, "environment": ENVIRONMENT, "code": "0123456789abcdef" * 4}
    for step in STEPS:
        (folder / step / "runs").mkdir(parents=True)
        for run in (1, 2):
            record.write_result(folder / step / "runs" / f"{run}.json", a_result(step, run))
        write_trace(folder / step / a_result(step, 1).trace, a_trace(a_result(step, 1)))
        events = folder / step / f"events.out.tfevents.1795000000.{step}.1795000000001"
        write_events(events, POINTS, {"precision": "float32", "workers": 0}, MEDIANS)
    record.write_json(folder / "record.json", header)
    sum_up(folder)
    return folder


def edit(path, change):
    """Change the object in a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    record.write_json(path, value)


def edit_trace(path, change):
    """Change the object in a trace."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    change(trace)
    write_trace(path, trace)


def tree(folder):
    """What a folder holds: {path: its bytes, or False for a folder}."""
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}
