"""The plugin by itself: whom it answers; what fails takes nothing else away; ranks whose traces are samples."""

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import make_result, write_run
from support.trace_builder import two_steps
from werkzeug import wrappers
from werkzeug.test import Client

from walkthrough.compare import rounds
from walkthrough.tensorboard import plugin
from walkthrough.tensorboard.plugin import guarded, host_of, is_allowed
from walkthrough.trace.steps import ROLES


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:6006", "localhost"),
        ("LocalHost.", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:6006", "::1"),
        ("[::1", "::1"),
        ("a.example:80", "a.example"),
        ("", ""),
    ],
)
def test_the_host_of_a_header(header, host):
    assert host_of(header) == host


@pytest.mark.parametrize("header", ["localhost:6006", "127.0.0.1:6006", "127.8.9.1", "[::1]:6006", "LOCALHOST", ""])
@pytest.mark.parametrize("served", [None, "localhost", "127.0.0.1", "::1", "0.0.0.0", "gpu-box"])
def test_this_machine_is_always_answered(header, served):
    assert is_allowed(header, served, False)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "127.1@evil", "*"],
)
def test_other_names_are_refused_where_only_this_machine_is_served(header):
    for served in (None, "localhost", "127.0.0.1", "::1"):
        assert not is_allowed(header, served, False)
        assert is_allowed(header, served, True)  # --bind_all
    assert is_allowed(header, "0.0.0.0", False)
    assert is_allowed(header, "gpu-box", False)


def test_names_of_the_users_own():
    assert is_allowed("hub.example:443", None, False, ["other", " Hub.example "])
    assert is_allowed("hub.example", None, False, ["*"])
    assert not is_allowed("hub.example", None, False, [""])


def test_a_refusal_holds_no_more_of_the_name_than_a_name_may_have(monkeypatch):
    monkeypatch.delenv("WALKTHROUGH_HOSTS", raising=False)
    statuses = []
    app = guarded(lambda environ, start_response: [b"secret"], None)
    (text,) = app({"HTTP_HOST": "<b>\r\nx-" + 500 * "y"}, lambda status, headers: statuses.append(status))
    assert statuses == ["403 Forbidden"]
    assert b"<" not in text
    assert len(json.loads(text)["error"]) < 500
    monkeypatch.setenv("WALKTHROUGH_HOSTS", "hub.example,proxy")
    assert app({"HTTP_HOST": "proxy:80"}, None) == [b"secret"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/digest", {}, 200),
        ("/digest", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/digest", {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, 200),
        ("/digest", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/digest", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403),
        ("/page.html", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ("/page.html", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),  # a link that was copied
    ],
)
def test_what_the_page_of_another_site_asks_for_is_refused(path, headers, status):
    app = guarded(wrappers.Response("secret"), None)
    answer = Client(app).get(path, headers=headers)
    assert (answer.status_code, "secret" in answer.text) == (status, status == 200)
    assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"]


def test_an_answer_that_is_no_json_is_an_error_in_json():
    def fails(request):
        raise ZeroDivisionError

    for answer in (fails, lambda request: {"speed": float("inf")}):
        got = Client(plugin.json_app(answer)).get("/")
        assert (got.status_code, got.json) == (500, {"error": "a defect of the page: see TensorBoard's log"})


def test_one_ladder_that_fails_is_named_and_the_others_are_answered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder, step in (("good", "00_a"), ("good", "01_b"), ("bad", "00_a"), ("bad", "01_worse")):
        write_run(tmp_path / folder, make_result(step))
    write_run(tmp_path / "bad", make_result("02_other", model="another"))
    ladder = rounds.ladder

    def fails(group, rounds):
        if group[-1].step == "01_worse":
            raise OverflowError("too large")
        return ladder(group, rounds)

    monkeypatch.setattr(rounds, "ladder", fails)
    tab = plugin.WalkthroughPlugin(SimpleNamespace(logdir=str(tmp_path), flags=None))
    try:
        answer = Client(tab.get_plugin_apps()["/ladders"]).get("/ladders").json
    finally:
        tab.answers.close()
    assert [[row["run"] for row in one["rows"]] for one in answer["ladders"]] == [
        ["bad/02_other"],
        ["good/00_a", "good/01_b"],
    ]
    assert answer["problems"] == ["bad: 00_a, 01_worse cannot be compared: too large"]


def test_the_list_of_runs_is_sent_again_only_where_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = two_steps().write(tmp_path / "a.pt.trace.json")
    tab = plugin.WalkthroughPlugin(SimpleNamespace(logdir=str(tmp_path), flags=None))
    try:
        client = Client(tab.get_plugin_apps()["/runs"])
        first = client.get("/runs").json
        tab.runs._rescan()
        assert client.get("/runs", query_string={"known": first["version"]}).json == first | {"runs": None}
        os.utime(path, (1, 1))
        tab.runs._rescan()
        second = client.get("/runs", query_string={"known": first["version"]}).json
        assert second["version"] != first["version"]
        assert second["runs"][0]["versions"] != first["runs"][0]["versions"]
    finally:
        tab.answers.close()


def test_ranks_with_more_numbers_than_memory_allows_are_left_out_by_name(monkeypatch):
    files = [Path(f"{name}.pt.trace.json") for name in ("bomb", "fine")]
    run = SimpleNamespace(training=files)
    bomb = gzip.compress(b'{"collectives": {' + b" " * 2**20)
    fine = gzip.compress(
        b'{"rank": null, "gpus": [], "collectives": {}, "partial": false, "sampled": false, "typical": {}, '
        b'"advice": [], "bound": ""}'
    )
    monkeypatch.setattr(plugin, "RANKS_BYTES", 2**20)
    monkeypatch.setattr(plugin, "_answer", lambda _, kind, path: ("ready", bomb if path is files[0] else fine))
    assert plugin.compared(run, None)["problems"] == [
        "bomb.pt.trace.json is left out: the ranks have too many numbers to compare",
        "fine.pt.trace.json is left out: it names no rank",
    ]


def _of(rank, exposed_us, sampled):
    times = {"us": 500.0, "exposed_us": exposed_us, "hidden_us": 500.0 - exposed_us, "do": "fewer bytes"}
    typical = {"mean_us": 1000.0, "median_us": 1000.0, "breakdown_us": dict.fromkeys(ROLES, 100.0)}
    typical |= {"parts_us": {}, "communication": times}
    collectives = {"1": {"ncclDevKernel_AllReduce": [exposed_us]}}
    report = {"gpus": [{}], "collectives": collectives, "sampled": sampled, "typical": typical, "advice": []}
    return report | {"bound": "a verdict", "trace": f"rank{rank}.json"}


@pytest.mark.parametrize("sampled", [False, True])
def test_who_waits_is_not_said_of_samples(sampled):
    compared = plugin._compared({0: _of(0, 100.0, sampled), 1: _of(1, 400.0, False)})
    waits = [row["wait_us"] for row in compared["ranks"]]
    if sampled:
        assert (waits, compared["stragglers"], compared["advice"]) == ([None, None], [], "")
        assert "missing" in compared["no_waits"]
    else:
        assert (compared["stragglers"], compared["no_waits"]) == ([0], "")
        assert waits[1] > waits[0] and "rank 0" in compared["advice"]
