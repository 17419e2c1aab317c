"""A real TensorBoard on a folder of runs, for the tests of its pages."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import PATIENCE, ROOT, make_result, until, write_run
from support.trace_builder import V100, TraceBuilder, two_steps

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
PROFILER = "/data/plugin/pytorch_profiler"
WALKTHROUGH = "/data/plugin/walkthrough"
KERNEL = "volta_sgemm_128x64_nn"  # of `with_python`
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the environment is not asked


def hostile_trace():
    """Every name in it tries to be HTML, a script or a terminal's control sequence."""
    builder = TraceBuilder(devices=[V100 | {"name": HOSTILE}])
    for number, begin in ((1, 0), (2, 1000)):
        builder.step(number, begin, 1000)
        op = builder.op(f"aten::{HOSTILE}", begin, 500)
        builder.launch(f"void {HOSTILE}<script>document.title='hacked'</script>", begin + 10, 5, begin + 20, 300, op=op)
        builder.copy(begin + 600, 10, begin + 610, 50, 1000, name=f"Memcpy HtoD {HOSTILE}")
        builder.memory(begin + 20, 1000, 2000 + number, 4000, address=number)
    return builder


def distributed_traces():
    """{file name: trace} of two ranks with a collective."""
    traces = {}
    for rank in range(2):
        builder = TraceBuilder(rank=rank)
        for number in (1, 2):
            begin = number * 10_000
            builder.step(number, begin, 9_000)
            op = builder.op("aten::mm", begin, 500)
            builder.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, 4_000, op=op)
            record = builder.op("record_param_comms", begin + 2_000, 300)
            record["args"] |= {"Collective name": "allreduce", "In msg nelems": 1_000, "dtype": "Float"}
            builder.op("nccl:all_reduce", begin + 2_050, 100, kind="annotation")
            builder.launch("ncclDevKernel_AllReduce", begin + 2_100, 20, begin + 3_000, 2_000 + rank * 500, op=record)
        traces[f"host{rank}_{100 + rank}.1700000000000.pt.trace.json"] = builder
    return traces


def only_kernels():
    """A trace without operators, as some profilers of GPUs write."""
    builder = TraceBuilder()
    for begin in (0, 100):
        builder.launch(KERNEL, begin, 1, begin + 10, 50)
    builder.events = [event for event in builder.events if event["cat"] == "kernel"]
    return builder


def with_python():
    """Two steps; in each an operator below Python functions launches two kernels, and autograd's thread one."""
    builder = TraceBuilder()
    for number, begin in ((1, 10_000), (2, 11_000)):
        builder.step(number, begin, 1000)
        builder.add("python_function", "train.py(40): train", begin + 10, 900)
        builder.add("python_function", "model.py(7): forward", begin + 100, 300)
        op = builder.op("aten::mm", begin + 150, 200)
        op["args"] |= {"Input Dims": [[32, 64], [64, 10]], "Input type": ["float", "float"]}
        grid = {"grid": [8, 1, 1], "block": [128, 1, 1]}
        builder.launch(KERNEL, begin + 160, 10, begin + 260, 100, op=op, **grid)
        builder.launch("splitKreduce_kernel", begin + 200, 10, begin + 360, 20, op=op)
        for depth in range(5):
            builder.add("cuda_runtime", "cudaEventRecord", begin + 500 + depth, 50 - 2 * depth, tid=2)
        back = builder.op("MmBackward0", begin + 600, 80, tid=2)
        builder.launch("volta_sgemm_64x32_nt", begin + 610, 10, begin + 630, 150, op=back, tid=2)
        builder.memory(begin + 160, 4_000_000, 6_000_000 + 1_000_000 * number, 10_000_000, address=number)
    return builder


def fill(logdir):
    """Runs of every kind in a log folder; returns it."""
    runs = ("00_baseline", 100.0, "2026-01-01"), ("04_multiprocess_loading", 120.0, "2026-01-02")
    for step, speed, day in runs:
        result = make_result(step, windows=[speed] * 5, started=day)
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
        "python": {"w.pt.trace.json": with_python()},
        "only kernels": {"w.pt.trace.json": only_kernels()},
        "without events": {"w.pt.trace.json": TraceBuilder()},
        "odd [name] ünï": {"w [1].pt.trace.json.gz": two_steps()},
    }
    for name, traces in runs.items():
        (logdir / name).mkdir()
        for file, trace in traces.items():
            trace.write(logdir / name / file)
    (logdir / "broken").mkdir()
    (logdir / "broken" / "w.pt.trace.json.gz").write_bytes(b"\x1f\x8bbroken")
    return logdir


@contextmanager
def both_tabs(logdir, cache, flags=None):
    """(WalkthroughPlugin, TorchProfilerPlugin) in this process, once the latter has read all traces."""
    context = SimpleNamespace(logdir=str(logdir), flags=flags)
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch-tb-profiler's: it was written for the pandas of 2021
        patched.setenv("XDG_CACHE_HOME", str(cache))
        from torch_tb_profiler.plugin import TorchProfilerPlugin

        from walkthrough.tensorboard import profiler_plugin
        from walkthrough.tensorboard.plugin import WalkthroughPlugin

        profiler_plugin.patch()
        walkthrough, profiler = WalkthroughPlugin(context), TorchProfilerPlugin(context)
        loading = profiler.walkthrough_loading
        try:
            until(lambda: loading.names() and not loading.loading)
            yield walkthrough, profiler
        finally:
            walkthrough.answers.close()
            loading.answers.close()


@contextmanager
def tensorboard(logdir, cache):
    """A running `Board`, once it has found the runs. cache: an empty folder for what the tab computes."""
    program = [sys.executable, Path(sys.executable).with_name("tensorboard"), "--port", "0", "--logdir", str(logdir)]
    log = Path(f"{logdir}.log")
    with log.open("wb") as output:
        variables = os.environ | {"XDG_CACHE_HOME": str(cache)}
        process = subprocess.Popen(program, stdout=output, stderr=output, env=variables)
    try:
        board = Board(process, log, cache)
        board.until(lambda: board.json(f"{WALKTHROUGH}/runs")["runs"], "the runs of the Walkthrough tab")
        yield board
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


class Board:
    """A `tensorboard` that runs on some folder; its system chose the port."""

    def __init__(self, process, log, cache):
        self.process, self.log, self.cache = process, log, cache
        printed = r"TensorBoard \S+ at (http://\S+?)/? "
        self.address = self.until(lambda: re.search(printed, self.text()), "TensorBoard's address")[1]

    def text(self):
        """What it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def get(self, path):
        """(status, headers, body) of the answer to a request."""
        try:
            with _http.open(f"{self.address}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path):
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)

    def until(self, ready, what):
        """Call `ready` until it returns something true, which is returned; fails where TensorBoard has ended."""

        def answer():
            assert self.process.poll() is None, self.text()
            with suppress(OSError):  # it does not listen yet
                return ready()

        return until(answer, what)

    def runs_loaded(self):
        """The names of torch-tb-profiler's runs, once it has loaded all."""

        def ready():
            answer = self.json(f"{PROFILER}/runs")
            return not answer["loading"] and answer["runs"]

        return self.until(ready, "the profiler's runs")

    def tab_json(self, route, **query):
        """The Walkthrough tab's answer about a run, once it has read the trace."""
        address = f"{WALKTHROUGH}/{route}?{urllib.parse.urlencode(query)}"

        def ready():
            answer = self.json(address)
            return answer if answer.get("state") != "reading" else None

        return self.until(ready, f"the {route} of {query}")
