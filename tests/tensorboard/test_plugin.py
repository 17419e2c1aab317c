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
from walkthrough.tensorboard.plugin import guarded, is_allowed
from walkthrough.trace.steps import ROLES

THIS_MACHINE = ["localhost:6006", "LocalHost.", "127.0.0.1:6006", "127.8.9.1", "[::1]:6006", "[::1", ""]
OTHERS = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "127.1@evil", "*"]


@pytest.mark.parametrize("served", [None, "localhost", "127.0.0.1", "::1", "0.0.0.0", "gpu-box"])
@pytest.mark.parametrize("bind_all", [False, True])
def test_other_names_are_refused_where_only_this_machine_is_served(served, bind_all):
    assert all(is_allowed(header, served, bind_all) for header in THIS_MACHINE)
    serves_others = bind_all or served in ("0.0.0.0", "gpu-box")
    assert {is_allowed(header, served, bind_all) for header in OTHERS} == {serves_others}


@pytest.mark.parametrize(
    ("header", "names", "allowed"),
    [
        ("hub.example:443", ["other", " Hub.example "], True),
        ("hub.example", ["*"], True),
        ("hub.example", [""], False),
    ],
)
def test_names_of_the_users_own(header, names, allowed):
    assert is_allowed(header, None, False, names) == allowed


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


@pytest.fixture
def tab(tmp_path, monkeypatch):
    """The plugin on the runs in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tab = plugin.WalkthroughPlugin(SimpleNamespace(logdir=str(tmp_path), flags=None))
    yield tab
    tab.answers.close()


def test_one_ladder_that_fails_is_named_and_the_others_are_answered(tmp_path, monkeypatch, tab):
    for folder, step in (("good", "00_a"), ("good", "01_b"), ("bad", "00_a"), ("bad", "01_worse")):
        write_run(tmp_path / folder, make_result(step))
    write_run(tmp_path / "bad", make_result("02_other", model="another"))
    ladder = rounds.ladder

    def fails(group, rounds):
        if group[-1].step == "01_worse":
            raise OverflowError("too large")
        return ladder(group, rounds)

    monkeypatch.setattr(rounds, "ladder", fails)
    answer = Client(tab.get_plugin_apps()["/ladders"]).get("/ladders").json
    shown = [[row["run"] for row in one["rows"]] for one in answer["ladders"]]
    assert shown == [["bad/02_other"], ["good/00_a", "good/01_b"]]
    assert answer["problems"] == ["bad: 00_a, 01_worse cannot be compared: too large"]


def test_the_list_of_runs_is_sent_again_only_where_it_has_changed(tmp_path, tab):
    path = two_steps().write(tmp_path / "a.pt.trace.json")
    client = Client(tab.get_plugin_apps()["/runs"])
    first = client.get("/runs").json
    tab.runs._rescan()
    assert client.get("/runs", query_string={"known": first["version"]}).json == first | {"runs": None}
    os.utime(path, (1, 1))
    tab.runs._rescan()
    second = client.get("/runs", query_string={"known": first["version"]}).json
    assert second["version"] != first["version"]
    assert second["runs"][0]["versions"] != first["runs"][0]["versions"]


def test_ranks_that_cannot_be_compared_are_left_out_by_name(monkeypatch):
    fine = {"rank": None, "gpus": [], "collectives": {}, "partial": False, "sampled": False, "typical": {}}
    fine |= {"advice": [], "bound": ""}
    answers = {
        "bomb": ("ready", gzip.compress(b'{"collectives": {' + b" " * 2**20)),
        "nameless": ("ready", gzip.compress(json.dumps(fine).encode())),
        "part": ("ready", gzip.compress(json.dumps(fine | {"rank": 1, "partial": True}).encode())),
        "torn": ("failed", "it is damaged"),
    }
    run = SimpleNamespace(training=[Path(f"{name}.pt.trace.json") for name in answers])
    monkeypatch.setattr(plugin, "RANKS_BYTES", 2**20)
    monkeypatch.setattr(plugin, "_answer", lambda _, kind, path: answers[path.name.partition(".")[0]])
    compared = plugin.compared(run, None)
    assert (compared["state"], compared["ranks"]) == ("ready", [])
    assert compared["problems"] == [
        "bomb.pt.trace.json is left out: the ranks have too many numbers to compare",
        "nameless.pt.trace.json is left out: it names no rank",
        "part.pt.trace.json is left out: a part of it is missing",
        "torn.pt.trace.json is left out: it is damaged",
    ]
    answers["torn"] = ("reading", None)
    assert plugin.compared(run, SimpleNamespace(reading=3)) == {"state": "reading", "reading": 3}


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
