"""Every route of both tabs with hostile names, arguments and results: an answer, and nothing from outside.

The seed of what fails is in the test's name. `-m thorough` tries many more.
"""

import json
import os
import random
import urllib.parse

import pytest
from support import make_result, until, write_run
from support.board import HOSTILE, both_tabs, distributed_traces, only_kernels
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
    """{"walkthrough" or "profiler": the routes of the tab} on `logs`."""
    with both_tabs(folder / "logs", folder / "cache") as (walkthrough, profiler):
        yield {"walkthrough": walkthrough.get_plugin_apps(), "profiler": profiler.get_plugin_apps()}


@pytest.fixture(scope="module")
def runs(tabs):
    """{run: its traces}, as the Walkthrough tab lists them."""
    return {run["key"]: run["traces"] for run in get(tabs, "walkthrough", "/runs")[1]["runs"]}


def get(tabs, tab, route, query=()):
    """(status, content) of an answer, which is checked: JSON or what its type says, never from outside."""
    answer = Client(tabs[tab][route]).get(f"{route}?{urllib.parse.urlencode(query)}", buffered=True)
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


def test_every_run_of_a_hostile_name_opens_in_both_tabs(tabs, runs):
    assert len(runs) == len(NAMES) + 4
    assert runs["links"] == ["1.pt.trace.json", "0.pt.trace.json"]
    for query in ({"run": run, "trace": trace} for run, traces in runs.items() for trace in traces):
        until(lambda query=query: get(tabs, "walkthrough", "/digest", query)[1].get("steps"), query)
        assert get(tabs, "walkthrough", "/trace", query)[0] == 200
    names = json.loads(get(tabs, "profiler", "/runs")[1])["runs"]
    one_line = [run for run, traces in runs.items() if traces and "\n" not in "".join(traces)]  # the plugin's pattern
    assert sorted(names) == sorted(one_line)
    for run in names:
        (worker, *_) = json.loads(get(tabs, "profiler", "/workers", {"run": run, "view": "Overview"})[1])
        for route in ("/overview", "/trace"):
            assert get(tabs, "profiler", route, {"run": run, "worker": worker, "span": "default"})[0] == 200


def arguments(chosen, runs, outside):
    """Arguments of a request: runs and traces that are there, others' names, traversal, and garbage."""
    names = [os.fsdecode(name).encode(errors="replace").decode() for name in NAMES]
    traversal = [f"{outside}/w.pt.trace.json", f"file://{outside}/w.pt.trace.json", "../outside", "..%2foutside/w"]
    traversal += ["links/../../outside", "linked", "l.pt.trace.json", "../../outside/w.pt.trace.json", "w"]
    query = {}
    for name in chosen.sample(ARGUMENTS, chosen.randint(0, 12)):
        there = [trace for traces in runs.values() for trace in traces] if name == "trace" else list(runs)
        query[name] = chosen.choice(chosen.choice((there, names, traversal, NUMBERS)))
    if chosen.random() < 0.7:
        run = chosen.choice(list(runs))
        worker = next(iter(runs[run]), "").removesuffix(".pt.trace.json")
        query |= {"run": run, "worker": worker, "span": "default"}
        if chosen.random() < 0.2:  # compared with itself
            query |= {"exp_run": run, "exp_worker": worker, "exp_span": "default"}
    return query


@pytest.mark.parametrize("tab", ["walkthrough", "profiler"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 40))])
def test_fuzzed_arguments_are_answered_and_nothing_from_outside_is(tabs, runs, folder, tab, seed):
    chosen = random.Random(f"{tab} {seed}")
    routes = sorted(tabs[tab])
    for number in range(300):
        route = routes[number % len(routes)]
        status, _ = get(tabs, tab, route, arguments(chosen, runs, folder / "outside"))
        assert status in (200, 202, 400, 404), route


@pytest.mark.parametrize("tab", ["walkthrough", "profiler"])
def test_no_route_answers_another_site_another_name_or_a_post(tabs, tab):
    for route, app in tabs[tab].items():
        assert Client(app).post(route, data=b"{}").status_code == 405
        for headers, word in (
            ({"Sec-Fetch-Site": "cross-site"}, "another site"),
            ({"Host": "rebound.example:6006"}, "WALKTHROUGH_HOSTS=rebound.example"),
        ):
            refused = Client(app).get(route, headers=headers)
            assert (refused.status_code, list(refused.json)) == (403, ["error"]), route
            assert word in refused.json["error"]
            assert refused.headers["X-Content-Type-Options"] == "nosniff"
