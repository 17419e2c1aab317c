"""Every route of both tabs with hostile names, arguments and results: an answer, and nothing from outside.

The seed of what fails is in the test's name. `-m thorough` tries many more.
"""

import json
import os
import random
import time
import urllib.parse
import warnings
from copy import deepcopy
from types import SimpleNamespace

import pytest
from support import make_result, write_run
from support.board import HOSTILE, PATIENCE, distributed_traces
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
VALUES = [
    *(None, True, "", HOSTILE, "\ud800", "x" * 10**5, 0, -1, 0.0, 5e-324, 1e-300, 1e308, -1e308, 10**400, 2**63),
    *([], {}),
    *([1e308, 1e308, 1e-308], [5e-324] * 5, [1.0] * 10_000, [[[]]] * 9, {"median": 1e308, "windows": [1e308] * 5}),
]
TEXTS = (b"", b"{", b"null", b"[" * 10**5, b"\xff\xfe{}", b'{"schema": NaN}', b'{"schema": ' + b"9" * 5000 + b"}")


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
    assert (status, len(runs)) == (200, len(NAMES) + 2)
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
def test_no_route_answers_another_site_or_a_post(tabs, tab):
    for route, app in tabs[tab][1].items():
        for site, status in (("cross-site", 403), ("same-origin", None), ("same-site", None), ("none", None)):
            answer = Client(app).get(route, headers={"Sec-Fetch-Site": site}, buffered=True)
            assert (answer.status_code == 403) == (status == 403), route
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        refused = Client(app).get(route, headers={"Sec-Fetch-Site": "cross-site"}).json
        assert "another site" in refused["error"]
        assert Client(app).post(route, data=b"{}").status_code == 405


def mutated(chosen, value):
    """The bytes of a result with one to three values replaced, left out or added; or no result at all."""
    if chosen.random() < 0.1:
        return chosen.choice(TEXTS)
    value = json.loads(json.dumps(value))
    for _ in range(chosen.randint(1, 3)):
        holder = value
        while nested := [key for key, inner in holder.items() if isinstance(inner, dict) and inner]:
            if chosen.random() < 0.5:
                break
            holder = holder[chosen.choice(nested)]
        key = chosen.choice([*holder, "unknown"])
        if chosen.random() < 0.1:
            holder.pop(key, None)
        else:
            holder[key] = deepcopy(chosen.choice(VALUES))
    text = json.dumps(value).encode()
    return text[: chosen.randint(0, len(text))] if chosen.random() < 0.05 else text


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 60))])
def test_fuzzed_results_take_no_good_run_away(tmp_path, monkeypatch, seed):
    from walkthrough.tensorboard.plugin import WalkthroughPlugin

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen, logs = random.Random(seed), tmp_path / "logs"
    good = [make_result(f"0{number}_good", windows=[100.0 + number] * 5) for number in range(2)]
    for result in good:
        two_steps().write(write_run(logs / "good", result) / result.trace)
    write_run(logs / "mixed", good[0])
    hostile = [
        write_run(logs / where, make_result(f"{number}_bad")) for where in ("bad", "mixed") for number in range(3)
    ]
    walkthrough = WalkthroughPlugin(SimpleNamespace(logdir=str(logs), flags=None))
    tabs = {"walkthrough": (walkthrough, walkthrough.get_plugin_apps())}
    try:
        for _ in range(25):
            for path in hostile:
                (path / record.FILE).write_bytes(mutated(chosen, make_result(path.name).as_json()))
            walkthrough.runs._rescan()
            runs = get(tabs, "walkthrough", "/runs")[1]["runs"]
            assert {"good/00_good", "good/01_good", "mixed/00_good"} <= {run["key"] for run in runs if run["step"]}
            answer = get(tabs, "walkthrough", "/ladders")[1]
            shown = [row["run"] for ladder in answer["ladders"] for row in ladder["rows"]]
            assert {"good/00_good", "good/01_good"} <= set(shown)
            assert "mixed/00_good" in shown or any("mixed: " in problem for problem in answer["problems"])
            names = [run["key"] for run in runs]
            for before, after in ((chosen.choice(names), chosen.choice(names)) for _ in range(5)):
                get(tabs, "walkthrough", "/ratio", {"before": before, "after": after})
    finally:
        walkthrough.answers.close()
