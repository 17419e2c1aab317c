"""torch-tb-profiler's routes answer what nobody should ask with one line of JSON, whatever the argument."""

import gzip
import json
import random
import urllib.parse

import pytest
from support.board import PROFILER, distributed_traces, only_kernels, tensorboard
from support.trace_builder import two_steps

pytest.importorskip("torch_tb_profiler")
TEXTS = [
    *("", "0", "-1", "1", "1.5", "NaN", "-inf", "1e308", "9" * 400, "9" * 5_000, "default", "All", "None", "\0", "<b>"),
    *("[]", "../../..", "ünï", "１２", "GB", "B", "ns", "0-0", "0-9", "OperationAndInputShape", "Kernel", "aten::mm"),
]
ARGUMENTS = [
    *("run", "worker", "span", "view", "group_by", "op_name", "input_shape", "start_ts", "end_ts", "memory_metric"),
    *("time_metric", "exp_run", "exp_worker", "exp_span", "path"),
]
ROUTES = [
    *("views", "workers", "spans", "overview", "operation", "operation/table", "operation/stack", "kernel"),
    *("kernel/table", "kernel/tc_pie", "trace", "distributed/gpuinfo", "distributed/overlap", "distributed/waittime"),
    *("distributed/commops", "memory", "memory_curve", "memory_events", "module", "tree", "diff", "diffnode"),
]
PROFILES = [("gpu", "w", "default"), ("kernels", "w", "default"), ("both", "host0_100", "1"), ("both", "All", "1")]


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    traces = {"gpu/w.pt.trace.json": two_steps(), "kernels/w.pt.trace.json.gz": only_kernels()}
    traces |= {f"both/{name}": builder for name, builder in distributed_traces().items()}
    for name, builder in traces.items():
        (logdir / name).parent.mkdir(exist_ok=True)
        builder.write(logdir / name)
    (logdir / "gpu" / "result.json").write_text("{}")  # a run of the Walkthrough tab, which `tensorboard` waits for
    with tensorboard(logdir, cache=tmp_path_factory.mktemp("cache")) as board:
        board.runs_loaded(3)
        yield board


def assert_answers(board, route, arguments):
    status, headers, body = board.get(f"{PROFILER}/{route}?{urllib.parse.urlencode(arguments)}")
    if headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    content = json.loads(body)
    assert status in (200, 202, 400, 404), (route, arguments, status, body)
    if status >= 400:
        assert list(content) == ["error"]
        assert content["error"].isprintable()


@pytest.mark.parametrize("route", ROUTES)
def test_arguments_of_a_profile_and_none(board, route):
    assert_answers(board, route, {})
    for run, worker, span in PROFILES:
        profile = {"run": run, "worker": worker, "span": span, "view": "Overview"}
        assert_answers(board, route, profile)
        for exp_run, exp_worker, exp_span in PROFILES:
            assert_answers(board, route, profile | {"exp_run": exp_run, "exp_worker": exp_worker, "exp_span": exp_span})


@pytest.mark.parametrize("route", ROUTES)
def test_arguments_that_nobody_should_give(board, route):
    chosen = random.Random(route)
    for _ in range(20):
        run, worker, span = chosen.choice(PROFILES)
        arguments = {"run": run, "worker": worker, "span": span, "exp_run": run, "exp_worker": worker, "exp_span": span}
        for _ in range(chosen.randint(1, 3)):
            arguments[chosen.choice(ARGUMENTS)] = chosen.choice(TEXTS)
        for name in chosen.sample(sorted(arguments), chosen.randint(0, 1)):
            del arguments[name]
        assert_answers(board, route, arguments)
