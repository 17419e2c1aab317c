"""The plugin by itself: whom it answers; what fails takes nothing else away; ranks whose traces are samples."""

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
from support import in_rounds, make_limit, make_result, write_run
from support.trace_builder import two_steps
from werkzeug import wrappers
from werkzeug.test import Client

from walkthrough.compare import roofs
from walkthrough.results import result
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


def test_names_of_the_users_own_are_answered_and_a_refusal_is_a_short_text(monkeypatch):
    assert is_allowed("hub.example:443", None, False, ["other", " Hub.example "])
    assert is_allowed("hub.example", None, False, ["*"])
    assert not is_allowed("hub.example", None, False, [""])
    app = guarded(lambda environ, start_response: [b"secret"], None)
    (text,) = app({"HTTP_HOST": "<b>\r\nx-" + 500 * "y"}, lambda *_: None)
    assert b"<" not in text and len(json.loads(text)["error"]) < 500
    monkeypatch.setenv("WALKTHROUGH_HOSTS", "hub.example,proxy")
    assert app({"HTTP_HOST": "proxy:80"}, None) == [b"secret"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/digest", ("same-origin", "empty"), 200),
        ("/digest", ("none", "document"), 200),
        ("/digest", ("cross-site", "document"), 403),
        ("/page.html", ("cross-site", "iframe"), 403),
        ("/page.html", ("cross-site", "document"), 200),  # a link that was copied
    ],
)
def test_what_the_page_of_another_site_asks_for_is_refused(path, headers, status):
    site, destination = headers
    app = guarded(wrappers.Response("secret"), None)
    answer = Client(app).get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": destination})
    assert (answer.status_code, "secret" in answer.text) == (status, status == 200)
    assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"]


@pytest.fixture
def tab(tmp_path, monkeypatch):
    """The plugin on the runs in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tab = plugin.WalkthroughPlugin(SimpleNamespace(logdir=str(tmp_path), flags=None))
    yield tab
    tab.answers.close()


@pytest.fixture
def get(tab):
    """get(route, **query): the answer to a request."""
    apps = tab.get_plugin_apps()
    return lambda route, **query: Client(apps[f"/{route}"]).get(f"/{route}", query_string=query)


def test_a_ladder_has_what_compare_says_of_it(tmp_path, get):
    idle = {"needs": "a GPU", "notes": ["no GPU: so", "of all"]}
    changes = {
        "00_baseline": {"windows": [100.0] * 5, "notes": ["of all"]},
        "04_multiprocess_loading": {"windows": [120.0] * 5},
        "05_pinned_memory": idle,
        "06_prefetch": idle,
        "07_small_images": {"windows": [170.0, 240.0, 300.0]},
    }
    for step, change in changes.items():
        write_run(tmp_path / "ladder", make_result(step, **change))
    answer = get("ladders").json
    (ladder,) = answer["ladders"]
    base, loading, pinned, _, small = ladder["rows"]
    assert (loading["step"], loading["run"]) == ("04_multiprocess_loading", "ladder/04_multiprocess_loading")
    assert (base["relative"]["ratio"], loading["gain"]["ratio"]) == (1.0, pytest.approx(1.2))
    assert [row["relative"]["resolved"] for row in (base, loading)] == [True, True]  # the baseline is not grey
    assert (pinned["acts"], pinned["needs"], pinned["gain"], pinned["relative"]) == (False, "needs a GPU", None, None)
    assert (base["acts"], base["needs"], pinned["notes"]) == (True, None, ["of all"])
    assert (small["gain"]["ratio"], small["relative"]["ratio"]) == (pytest.approx(2.0), pytest.approx(2.4))
    assert (small["low"], small["high"], small["windows"], small["rounds"]) == (170, 300, 3, 1)
    assert [warning[:31] for warning in ladder["warnings"]] == ["UNSTEADY: the windows of 07 dif"]
    assert (small["has_trace"], small["batch_size"], small["samples_per_second"]["median"]) == (False, 32, 240)
    assert answer["original"]["relative"]["05_pinned_memory"] == 5.05


def test_a_row_has_its_shares_of_the_peaks_that_limit_measured_and_null_without_them(tmp_path, get):
    write_run(tmp_path, make_result(windows=[100.0] * 5))

    def shares():
        ((row,),) = (ladder["rows"] for ladder in get("ladders").json["ladders"])
        return row["share_of_arithmetic_peak"], row["share_of_memory_roof"]

    step_bytes = [{"precision": "float32", "fixed": 0.0, "per_image": 200.0}]
    counted = {"precision": "float32", "flops_per_image": 1_000, "step_bytes": step_bytes}
    assert shares() == (None, None)
    result.write_json(tmp_path / roofs.FILE, make_limit(**counted).as_json())
    assert shares() == pytest.approx((1_000 * 100 / 1e9, 200 * 100 / 1e8))
    result.write_json(tmp_path / roofs.FILE, make_limit(**counted, model="another").as_json())
    assert shares() == (None, None)


def test_any_two_runs_of_a_setup_have_a_ratio_of_the_rounds_that_both_keep(tmp_path, get):
    two_steps().write(tmp_path / "gpu.pt.trace.json")
    in_rounds(tmp_path, "00_a", {1: [100.0] * 5, 2: [100.0] * 5})
    in_rounds(tmp_path, "01_b", {1: [110.0] * 5, 2: [130.0] * 5, 3: [500.0] * 5})
    write_run(tmp_path, make_result("02_c", windows=[50.0] * 5, batch_size=64))
    write_run(tmp_path, make_result("03_d", model="another"))
    answer = get("ratio", before="00_a", after="01_b").json
    assert (answer["ratio"]["ratio"], answer["ratio"]["rounds"]) == (pytest.approx((1.1 * 1.3) ** 0.5), 2)
    answer = get("ratio", before="00_a", after="02_c").json
    assert answer["ratio"]["ratio"] == pytest.approx(0.5)
    assert (answer["speeds"], answer["batch_sizes"]) == ([100, 50], [32, 64])
    for before in ("00_a", "03_d", tmp_path.name):
        assert get("ratio", before=before, after="00_a").json["ratio"] is None
    (tmp_path / "01_b" / "runs" / "1.json").write_text("torn")
    assert get("ratio", before="00_a", after="01_b").json["ratio"]["rounds"] == 1


@pytest.mark.parametrize(
    "route",
    [
        *("digest?run=nowhere", "trace?run=gpu&trace=../gpu/w.pt.trace.json", "ranks?run=../gpu"),
        *("lanes?run=gpu&first=-1", "lanes?run=gpu&first=2&last=1", "ratio?before=gpu&after=nowhere"),
        *("event?run=gpu&name=k&pid=1&at=1", "event?run=gpu&name=k&pid=1&tid=1&at=nan&duration=1"),
    ],
)
def test_what_is_not_there_is_404_and_one_line(tmp_path, get, route):
    (tmp_path / "gpu").mkdir()
    two_steps().write(tmp_path / "gpu" / "w.pt.trace.json")
    route, _, query = route.partition("?")
    answer = get(route, **dict(parse_qsl(query)))
    assert (answer.status_code, list(answer.json)) == (404, ["error"])


@pytest.fixture
def compared(monkeypatch):
    """compared(**reports): what the tab says of a run whose traces of these names have these reports."""
    sent = {}
    monkeypatch.setattr(plugin, "_answer", lambda _, kind, path: sent[path.name.partition(".")[0]])

    def compare(**reports):
        for name, report in reports.items():
            sent[name] = ("ready", gzip.compress(json.dumps(report).encode())) if isinstance(report, dict) else report
        run = SimpleNamespace(training=[Path(f"{name}.pt.trace.json") for name in reports])
        return plugin.compared(run, SimpleNamespace(reading=3))

    return compare


def report_of(rank, exposed_us=100.0, **changes):
    times = {"us": 500.0, "exposed_us": exposed_us, "hidden_us": 500.0 - exposed_us, "do": "fewer bytes"}
    typical = {"mean_us": 1000.0, "median_us": 1000.0, "breakdown_us": dict.fromkeys(ROLES, 100.0)}
    typical |= {"parts_us": {}, "communication": times}
    collectives = {"1": {"ncclDevKernel_AllReduce": [exposed_us]}}
    report = {"rank": rank, "gpus": [{}], "collectives": collectives, "partial": False, "sampled": False}
    return report | {"typical": typical, "advice": [], "bound": "a verdict"} | changes


def test_ranks_that_cannot_be_compared_are_left_out_by_name(compared, monkeypatch):
    monkeypatch.setattr(plugin, "RANKS_BYTES", 2**20)
    reports = {
        "bomb": ("ready", gzip.compress(b'{"collectives": {' + b" " * 2**20)),
        "nameless": report_of(None),
        "part": report_of(1, partial=True),
        "torn": ("failed", "it is damaged"),
    }
    answer = compared(**reports)
    assert (answer["state"], answer["ranks"]) == ("ready", [])
    assert answer["problems"] == [
        "bomb.pt.trace.json is left out: the ranks have too many numbers to compare",
        "nameless.pt.trace.json is left out: it names no rank",
        "part.pt.trace.json is left out: a part of it is missing",
        "torn.pt.trace.json is left out: it is damaged",
    ]
    assert compared(**reports | {"torn": ("reading", None)}) == {"state": "reading", "reading": 3}


def test_who_waits_is_said_of_the_newest_traces_and_not_of_samples(compared):
    late = report_of(1, 400.0)
    answer = compared(late=late, early=report_of(0), old=report_of(0, 300.0))
    traces = [(0, "early.pt.trace.json"), (1, "late.pt.trace.json")]
    assert [(row["rank"], row["trace"]) for row in answer["ranks"]] == traces
    assert [row["wait_us"] for row in answer["ranks"]] == [0, 300]
    assert (answer["stragglers"], answer["no_waits"]) == ([0], "")
    assert "rank 0" in answer["advice"]
    answer = compared(late=late, early=report_of(0, sampled=True))
    assert [row["wait_us"] for row in answer["ranks"]] == [None, None]
    assert (answer["stragglers"], answer["advice"]) == ([], "")
    assert "missing" in answer["no_waits"]


def test_an_answer_that_is_no_json_is_an_error_in_json():
    def fails(request):
        raise ZeroDivisionError

    for answer in (fails, lambda request: {"speed": float("inf")}):
        got = Client(plugin.json_app(answer)).get("/")
        assert (got.status_code, got.json) == (500, {"error": "a defect of the page: see TensorBoard's log"})


def test_the_list_of_runs_is_sent_again_only_where_it_has_changed(tmp_path, tab, get):
    path = two_steps().write(tmp_path / "a.pt.trace.json")
    first = get("runs").json
    tab.runs._rescan()
    assert get("runs", known=first["version"]).json == first | {"runs": None}
    os.utime(path, (1, 1))
    tab.runs._rescan()
    second = get("runs", known=first["version"]).json
    assert second["version"] != first["version"]
    assert second["runs"][0]["versions"] != first["runs"][0]["versions"]
