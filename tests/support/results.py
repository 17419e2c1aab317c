"""Hand-made results. Starts without torch."""

from dataclasses import replace
from pathlib import Path

from walkthrough.compare import rounds
from walkthrough.compare.study import Study, as_json
from walkthrough.results import result as record
from walkthrough.results.environment import Environment


def make_result(step="00_baseline", windows=(100.0, 101.0, 102.0, 103.0, 104.0), **changes):
    """A `Result` made by hand."""
    values = {
        "schema": 2, "step": step, "device": "Test GPU", "device_type": "cuda", "model": "mobilenet_v2",
        "data": "cifar10", "image_size": 224, "batch_size": 32, "precision": "float32", "workers": 0,
        "pin_memory": False, "world_size": 1, "first_step_seconds": 1.5, "batch_bytes": 19_267_840, "notes": [],
        "samples_per_second": record.Throughput(sorted(windows)[len(windows) // 2], list(windows)),
        "step_ms": record.StepTime(320.0, 310.0, 330.0),
        "peak_memory_bytes": record.PeakMemory(2_510_000_000, 3_000_000_000),
        "environment": Environment("2.11.0", "13.0", "580.1", "3.12.3", "Linux", "CPU", 16, "0123456789ab"),
        "trace": "host.1.pt.trace.json.gz", "started": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return record.Result(**(values | changes))


def write_run(logdir, result):
    """Put a hand-made result where a run would have."""
    folder = Path(logdir) / result.step
    folder.mkdir(parents=True, exist_ok=True)
    record.write_result(folder / record.FILE, result)
    return folder


def around(speed):
    """Five windows whose median is `speed`."""
    return tuple(speed * share for share in (0.98, 0.99, 1.0, 1.01, 1.02))


def in_rounds(logdir, step, kept, **changes):
    """A step's folder as a record or a tour of several rounds leaves it: {round: windows}; returns its result."""
    runs = {number: make_result(step, windows=windows, **changes) for number, windows in kept.items()}
    folder = write_run(logdir, rounds.merged(list(runs.values())))
    (folder / "runs").mkdir(exist_ok=True)
    for number, run in runs.items():
        record.write_result(folder / "runs" / f"{number}.json", run)
    return record.read_result(folder / "result.json")


def ladder_of(logdir, *results):
    """The one ladder of results, by the rounds that their folders keep."""
    kept = {result.step: rounds.rounds_in(record.run_files(Path(logdir) / result.step)) for result in results}
    [ladder] = rounds.ladders(results, kept)
    return ladder


def make_limit(**changes):
    """The study `limit` made by hand, of the setup that `make_result` has; on a GPU if it has no `cores`.

    changes: of its precision, its setup's fields, or what it measured.
    """
    from studies import limit  # not at the top, as what starts without torch imports this module too

    result = make_result()
    setup = replace(result.setup, data=None)
    setup = replace(setup, **{name: changes.pop(name) for name in vars(setup) if name in changes})
    precision = changes.pop("precision", "bfloat16")

    def speed(kind, windows, step_ms, flops, moved):
        return {
            "kind": kind, "batch_size": 4, "layout": kind.split(", ")[1], "cudnn_benchmark": "cudnn" in kind,
            "compiled": kind.startswith("compiled"), "cuda_graphs": None,
            "samples_per_second": {"median": windows[len(windows) // 2], "windows": windows},
            "step_ms": {"median": step_ms, "p10": step_ms - 1, "p90": step_ms + 1}, "flops_per_second": flops,
            "mfu": flops / 1e9, "bytes_per_second": moved, "share_of_memory_roof": None,
        }  # fmt: skip

    def group(name, calls, flops, moved, elements, ms):
        return {"name": name, "calls": calls, "flops": flops, "bytes": moved, "elements": elements, "traced_ms": ms}

    measured = {
        "peak_flops": [{"what": "8 x 8", "median": 1e9, "windows": [1e9]}],
        "peak_bytes": [{"what": "1 MiB copied", "median": 1e8, "windows": [1e8]}],
        "flops_per_image": None, "step_bytes": [],
        "forward_flops_per_image": 10**6, "flops_per_step": 12 * 10**6, "bytes_per_step": 10**6,
        "speeds": [
            speed("uncompiled, contiguous", [190.0, 200.0, 210.0], 20.0, 6e8, 5e7),
            speed("compiled, channels last, cudnn.benchmark", [400.0], 10.0, 1.2e9, None),
        ],
        "not_compiled": None, "outside_ms": 1.0,
        "groups": [
            group("convolution", 3, 10**7, 10**6, 0, 15.0), group("elementwise", 5, None, 10**5, 10**4, 5.0),
        ],
        "without_formula": {
            "operators": [{"name": "aten::add_", "calls": 5}], "calls_share": 0.6, "time_share": 0.25,
        },
    } | changes  # fmt: skip
    return Study(
        name="limit", device=setup.device, setup=setup, precision=precision, seed=0, environment=result.environment,
        started=result.started, measured=measured, conclusions=limit.conclusions(measured), claims=[],
        tables={key: [as_json(row) for row in rows] for key, rows in limit.tables(measured).items()},
    )  # fmt: skip
