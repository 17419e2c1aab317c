"""Every route of both tabs with hostile names, arguments and results: an answer, and nothing from outside.

The seed of what fails is in the test's name. `-m thorough` tries many more.
"""

import json
import os
import random
import time
import urllib.parse
import warnings
from types import SimpleNamespace

import pytest
from support import make_result, write_run
from support.board import HOSTILE, PATIENCE, distributed_traces, only_kernels
from support.trace_builder import two_steps
from werkzeug.test import Client

from walkthrough.results import result as record

pytest.importorskip("torch_tb_profiler")
pytestmark = pytest.mark.xdist_group("tensorboard")
CANARY = "canary-5d41402abc4b"
NAMES = [  # of folders and files, as bytes
    *(HOSTILE.replace("/", "").encode(), b'it\'s "quoted" & <b>bold<b>', b"a\nb\r\tc", b"\x1b[31mred\x07"),
    b"%2e%2e%2f",
    *(b"%00", b"x" * 200, b"no utf-8 \xff\xfe\x80", b"half \xed\xa0\x80", "\u202egnp.nur".encode(), b"__proto__"),
    *(b"constructor", b"   ", b"run&trace=1#?;=+", b"up\\..\\..", "😀 ünï".encode(), b"null", b"-rf", b"{{7*7}}${7*7}"),
]
NUMBERS = ("", "-1", "0", "1", "default", "1e999", "nan", "9" * 400, "٣", "0x10", "1.5", "%00", "true", "[]", "{}")
ARGUMENTS = (
    *("run", "trace", "before", "after", "first", "last", "name", "pid", "tid", "at", "duration", "known"),
    *("worker", "span", "view", "group_by", "op_name", "input_shape", "start_ts", "end_ts", "time_metric"),
    *("memory_metric", "exp_run", "exp_worker", "exp_span", "path"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds `logs`, with a run of each hostile name, and next to it what nobody may see."""
    folder = tmp_path_factory.mktemp("fuzzed")
    outside = folder / "outside"
    for path in (outside / "w.pt.trace.json", outside / "runs" / "1.json", outside / record.FILE):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps({"traceEvents": [], "schema": 2, "step": CANARY, "name": CANARY}))
    logs = folder / "logs"
    for number, name in enumerate(NAMES):
        run = logs / os.fsdecode(name)
        run.mkdir(parents=True)
        two_steps().write(run / os.fsdecode(NAMES[-number] + b".pt.trace.json"))
    (logs / "links").mkdir()
    for rank, trace in enumerate(distributed_traces().values()):
        trace.write(logs / "links" / f"{rank}.pt.trace.json")
    for link in (logs / "links" / "l.pt.trace.json", logs / "links" / record.FILE, logs / "linked"):
        link.symlink_to(outside if link.name == "linked" else outside / "w.pt.trace.json")
    odd = two_steps()
    odd.op("aten::\ud800", 10, 5)
    for name, trace in {"kernels": only_kernels(), "surrogates": odd}.items():
        (logs / name).mkdir()
        trace.write(logs / name / "w.pt.trace.json")
    step = write_run(logs / "ladder", make_result("00_baseline"))
    (step / "runs").symlink_to(outside / "runs")
    for path in logs.rglob("*.trace.json"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def tabs(folder):
    """{"walkthrough" or "profiler": (the plugin, its routes)} on `logs`, in this process."""
    context = SimpleNamespace(logdir=str(folder / "logs"), flags=None)
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch-tb-profiler's: it was written for the pandas of 2021
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        from torch_tb_profiler.plugin import TorchProfilerPlugin

        from walkthrough.tensorboard import profiler_plugin
        from walkthrough.tensorboard.plugin import WalkthroughPlugin

        profiler_plugin.patch()
        walkthrough, profiler = WalkthroughPlugin(context), TorchProfilerPlugin(context)
        try:
            loading = profiler.walkthrough_loading
            until(lambda: loading.names() and not loading.loading)
            yield {"walkthrough": (walkthrough, walkthrough.get_plugin_apps())} | {
                "profiler": (profiler, profiler.get_plugin_apps())
            }
        finally:
            walkthrough.answers.close()
            loading.answers.close()


def until(ready):
    """What `ready` returns, once it is true."""
    ends = time.monotonic() + PATIENCE
    while not (answer := ready()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return answer


def get(tabs, tab, route, query=()):
    """(status, content) of an answer, which is checked: JSON or what its type says, never from outside."""
    answer = Client(tabs[tab][1][route]).get(f"{route}?{urllib.parse.urlencode(query)}", buffered=True)
    content = answer.get_data()
    assert answer.status_code != 500, (tab, route, query, content[:500])
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert CANARY.encode() not in content or CANARY in str(query)
    assert b"Traceback" not in content
    if answer.status_code >= 400:
        error = json.loads(content)
        assert list(error) == ["error"] and error["error"].isprintable()
    if tab == "walkthrough" and (answer.status_code != 200 or answer.mimetype == "application/json"):
        content = json.loads(content)
    return answer.status_code, content


def digest_of(tabs, query):
    """What the tab knows of a trace; None while it is read."""
    status, answer = get(tabs, "walkthrough", "/digest", query)
    assert status == 200
    return answer if answer.get("state") != "reading" else None


def test_every_run_of_a_hostile_name_opens_in_both_tabs(tabs):
    status, answer = get(tabs, "walkthrough", "/runs")
    runs = {run["key"]: run["traces"] for run in answer["runs"]}
    assert (status, len(runs)) == (200, len(NAMES) + 4)
    assert runs["links"] == ["1.pt.trace.json", "0.pt.trace.json"]
    for run, traces in runs.items():
        for trace in traces:
            query = {"run": run, "trace": trace}
            digest = until(lambda query=query: digest_of(tabs, query))
            assert digest["steps"], query
            assert get(tabs, "walkthrough", "/trace", query)[0] == 200
    names = json.loads(get(tabs, "profiler", "/runs")[1])["runs"]
    one_line = [
        run for run, traces in runs.items() if traces and "\n" not in "".join(traces)
    ]  # as the plugin's pattern
    assert sorted(names) == sorted(one_line)
    for run in names:
        (worker, *_) = json.loads(get(tabs, "profiler", "/workers", {"run": run, "view": "Overview"})[1])
        query = {"run": run, "worker": worker, "span": "default"}
        assert get(tabs, "profiler", "/overview", query)[0] == 200
        assert get(tabs, "profiler", "/trace", query)[0] == 200


def arguments(chosen, tabs, folder):
    """Arguments of a request: runs and traces that are there, others' names, traversal, and garbage."""
    runs = [*tabs["walkthrough"][0].runs.latest().values()]
    names = [os.fsdecode(name).encode(errors="replace").decode() for name in NAMES]
    outside = [
        str(folder / "outside" / "w.pt.trace.json"),
        "../outside",
        "..%2foutside/w",
        "links/../../outside",
        "linked",
    ]
    outside += ["l.pt.trace.json", "../../outside/w.pt.trace.json", "w", f"file://{folder}/outside/w.pt.trace.json"]
    query = {}
    for name in chosen.sample(ARGUMENTS, chosen.randint(0, 12)):
        there = [trace for run in runs for trace in run.traces] if name == "trace" else [run.name for run in runs]
        query[name] = chosen.choice(chosen.choice((there, names, outside, NUMBERS)))
    if runs and chosen.random() < 0.7:
        run = chosen.choice(runs)
        worker = next(iter(run.traces), "").removesuffix(".pt.trace.json")
        query |= {"run": run.name, "worker": worker, "span": "default"}
        if chosen.random() < 0.2:  # compared with itself
            query |= {"exp_run": run.name, "exp_worker": worker, "exp_span": "default"}
    return query


@pytest.mark.parametrize("tab", ["walkthrough", "profiler"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 40))])
def test_fuzzed_arguments_are_answered_and_nothing_from_outside_is(tabs, folder, tab, seed):
    chosen = random.Random(f"{tab} {seed}")
    routes = sorted(tabs[tab][1])
    for number in range(300):
        route = routes[number % len(routes)]
        status, _ = get(tabs, tab, route, arguments(chosen, tabs, folder))
        assert status in (200, 202, 400, 404), route


@pytest.mark.parametrize("tab", ["walkthrough", "profiler"])
def test_no_route_answers_another_site_another_name_or_a_post(tabs, tab):
    for route, app in tabs[tab][1].items():
        for site, status in (("cross-site", 403), ("same-origin", None), ("same-site", None), ("none", None)):
            answer = Client(app).get(route, headers={"Sec-Fetch-Site": site}, buffered=True)
            assert (answer.status_code == 403) == (status == 403), route
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        refused = Client(app).get(route, headers={"Sec-Fetch-Site": "cross-site"}).json
        assert "another site" in refused["error"]
        assert Client(app).post(route, data=b"{}").status_code == 405
        rebound = Client(app).get(route, headers={"Host": "rebound.example:6006"})
        assert (rebound.status_code, list(rebound.json)) == (403, ["error"])
        assert "WALKTHROUGH_HOSTS=rebound.example" in rebound.json["error"]
