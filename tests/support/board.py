"""A real TensorBoard on a folder of runs, for the tests of its pages."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from support import ROOT, make_result, write_run
from support.trace_builder import V100, TraceBuilder, two_steps

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
PROFILER = "/data/plugin/pytorch_profiler"
WALKTHROUGH = "/data/plugin/walkthrough"


def hostile_trace():
    """Every name of it tries to be HTML, a script or an order to a terminal."""
    made = TraceBuilder(devices=[V100 | {"name": HOSTILE}])
    for number, begin in ((1, 0), (2, 1000)):
        made.step(number, begin, 1000)
        op = made.op(f"aten::{HOSTILE}", begin, 500)
        made.launch(f"void {HOSTILE}<script>document.title='hacked'</script>", begin + 10, 5, begin + 20, 300, op=op)
        made.copy(begin + 600, 10, begin + 610, 50, 1000, name=f"Memcpy HtoD {HOSTILE}")
        made.memory(begin + 20, 1000, 2000 + number, 4000, address=number)
    return made


def distributed_traces():
    """{file name: trace} of two ranks with a collective."""
    found = {}
    for rank in range(2):
        made = TraceBuilder(rank=rank)
        for number in (1, 2):
            begin = number * 10_000
            made.step(number, begin, 9_000)
            op = made.op("aten::mm", begin, 500)
            made.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, 4_000, op=op)
            record = made.op("record_param_comms", begin + 2_000, 300)
            record["args"] |= {"Collective name": "allreduce", "In msg nelems": 1_000, "dtype": "Float"}
            made.op("nccl:all_reduce", begin + 2_050, 100, kind="annotation")
            made.launch("ncclDevKernel_AllReduce", begin + 2_100, 20, begin + 3_000, 2_000 + rank * 500, op=record)
        found[f"host{rank}_{100 + rank}.1700000000000.pt.trace.json"] = made
    return found


def fill(logdir):
    """Runs of every kind in a log folder; returns it."""
    windows = {"00_baseline": 100.0, "04_multiprocess_loading": 120.0}
    for step, speed in windows.items():
        result = make_result(step, windows=[speed] * 5)
        two_steps().write(write_run(logdir / "ladder", result) / result.trace)
    for recorded in sorted((ROOT / "tests" / "data").glob("*.trace.json.gz")):
        folder = logdir / recorded.name.split(".")[0]
        folder.mkdir()
        shutil.copy(recorded, folder)
    runs = {
        "gpu": {"w.pt.trace.json.gz": two_steps()},
        "of 2021": {"w.pt.trace.json": two_steps("2021")},
        "hostile": {"w.pt.trace.json": hostile_trace()},
        "distributed": distributed_traces(),
        "odd [name] ünï": {"w [1].pt.trace.json.gz": two_steps()},
    }
    for name, traces in runs.items():
        (logdir / name).mkdir()
        for file, trace in traces.items():
            trace.write(logdir / name / file)
    (logdir / "broken").mkdir()
    (logdir / "broken" / "w.pt.trace.json.gz").write_bytes(b"\x1f\x8bbroken")
    return logdir


class Board:
    """`tensorboard` on some folder, from `start` to `stop`."""

    def __init__(self, logdir, *words, environment=None):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.log = Path(str(logdir) + ".log").open("w+b")  # noqa: SIM115
        program = Path(sys.executable).with_name("tensorboard")
        where = [] if any("logdir" in str(word) for word in words) else ["--logdir", str(logdir)]
        self.process = subprocess.Popen(
            [sys.executable, program, *where, "--port", str(self.port), *words],
            stdout=self.log,
            stderr=self.log,
            env=os.environ | (environment or {}),
        )

    def text(self):
        """What it has printed."""
        self.log.seek(0)
        return self.log.read().decode()

    def url(self, path):
        return f"http://localhost:{self.port}{path}"

    def get(self, path):
        """(status, headers, body) of a page."""
        try:
            with urllib.request.urlopen(self.url(path), timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path):
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)

    def until(self, ready, what):
        """Ask `ready` again and again until it returns something true, which is returned."""
        ends = time.monotonic() + 300
        while time.monotonic() < ends:
            assert self.process.poll() is None, self.text()
            try:
                if found := ready():
                    return found
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.3)
        raise AssertionError(f"{what} never came: {self.text()}")

    def runs_loaded(self):
        """The names of torch-tb-profiler's runs, once it has loaded all."""

        def ready():
            found = self.json(f"{PROFILER}/runs")
            return found["runs"] if not found["loading"] and found["runs"] else None

        return self.until(ready, "the profiler's runs")

    def digest(self, run, **more):
        """The Walkthrough tab's answer about a run, once it is there."""
        query = urllib.parse.urlencode({"run": run, **more})

        def ready():
            found = self.json(f"{WALKTHROUGH}/digest?{query}")
            return found if found.get("state") != "reading" else None

        return self.until(ready, f"the digest of {run}")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
