"""The real `tensorboard` command on runs of every kind: what its tabs answer over HTTP."""

import shutil
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import pytest
from support.board import PROFILER, WALKTHROUGH, fill, tensorboard
from support.trace_builder import two_steps
from tensorboard.plugins.base_plugin import TBLoader

from walkthrough.tensorboard import _loader as loader
from walkthrough.trace.analysis import analyze
from walkthrough.trace.steps import ROLES

pytest.importorskip("torch_tb_profiler")
pytestmark = pytest.mark.xdist_group("tensorboard")  # one start for all of them
RUNS = ["broken", "cpu", "cpu_stacks", "distributed", "gpu", "hostile", "ladder/00_baseline"]
RUNS += ["ladder/04_multiprocess_loading", "odd [name] ünï", "of 2021", "only kernels", "python", "without events"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def board(logdir, tmp_path_factory):
    with tensorboard(logdir, cache=tmp_path_factory.mktemp("cache")) as board:
        yield board


def test_both_tabs_are_there_with_every_run_and_the_broken_one_is_named(board):
    assert board.runs_loaded() == [run for run in RUNS if run != "broken"]
    plugins = board.json("/data/plugins_listing")  # the profiler's tab is enabled once it has a run
    assert (plugins["walkthrough"]["enabled"], plugins["walkthrough"]["tab_name"]) == (True, "Walkthrough")
    assert plugins["pytorch_profiler"]["enabled"]
    (failure,) = board.json(f"{PROFILER}/failures")["failures"]
    assert (failure["run"], failure["file"]) == ("broken", "w.pt.trace.json.gz")
    assert [run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]] == RUNS
    assert board.tab_json("digest", run="broken")["state"] == "failed"


def test_the_tab_the_profiler_and_explain_have_the_same_numbers(board, logdir):
    board.runs_loaded()
    ours = analyze(logdir / "gpu" / "w.pt.trace.json.gz")
    digest = board.tab_json("digest", run="gpu")
    assert digest["steps"]["breakdown_us"] == pytest.approx(ours.steps.mean_breakdown_us)
    assert digest["gpus"][0]["utilization"] == pytest.approx(ours.gpus[0].utilization)
    assert digest["gpus"][0]["tensor_core_share"] == ours.gpus[0].tensor_core_share
    assert digest["kinds"] == ours.kinds_us
    shown = board.json(f"{PROFILER}/overview?run=gpu&worker=w&span=default")
    names = {"cpu_exec": "CPU Exec", "dataloader": "DataLoader"}
    parts = {part["name"]: part["value"] for part in shown["performance"][0]["children"]}
    for role in ROLES:
        expected = ours.steps.mean_breakdown_us[role]
        assert parts.get(names.get(role, role.capitalize()), 0) == pytest.approx(expected, abs=0.51)
    figures = {figure["title"]: figure["value"] for figure in shown["gpu_metrics"]["data"]}
    utilization = float(figures["GPU Utilization"].removesuffix("%"))
    assert utilization == pytest.approx(100 * ours.gpus[0].utilization, abs=0.01)


def test_lanes_hold_the_events_of_the_steps_and_an_event_its_arguments(board):
    lanes = board.tab_json("lanes", run="gpu")
    by_kind = {lane["kind"]: lane for lane in lanes["lanes"]}
    assert (by_kind["kernel"]["start"], by_kind["kernel"]["duration"]) == ([330, 1330], [400, 400])
    copies = by_kind["copy"]
    event = {"run": "gpu", "name": lanes["names"][copies["name"][0]], "pid": copies["pid"], "tid": copies["tid"]}
    event |= {"at": lanes["file_us"] + copies["start"][0], "duration": copies["duration"][0]}
    assert board.tab_json("event", **event)["arguments"]["bytes"] > 0
    assert board.tab_json("event", **event | {"name": "nothing"})["state"] == "failed"


def test_a_trace_can_be_downloaded_as_it_lies_there(board, logdir):
    for run, content_type in {"odd [name] ünï": "application/gzip", "hostile": "application/json"}.items():
        (path,) = (logdir / run).iterdir()
        status, headers, body = board.get(f"{WALKTHROUGH}/trace?{urllib.parse.urlencode({'run': run})}")
        assert (status, body) == (200, path.read_bytes())
        assert headers["Content-Type"] == content_type
        assert headers["Content-Disposition"] == f"attachment; filename*=UTF-8''{urllib.parse.quote(path.name)}"
        assert headers["Content-Encoding"] is None


@pytest.mark.parametrize(
    "page", [f"{WALKTHROUGH}/page.html", f"{PROFILER}/index.html", f"{PROFILER}/trace_embedding.html"]
)
def test_pages_forbid_scripts_of_others_and_fetch_nothing(board, page):
    code, headers, body = board.get(page)
    assert code == 200
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert "unsafe-inline" not in policy["script-src"]
    assert "http" not in policy["script-src"]
    assert policy["default-src"] == "'self'"
    assert b"gstatic.com/charts" not in body
    assert b"cdnjs" not in body


def test_both_tabs_show_a_new_run_without_a_restart_and_its_trace_again_once_it_is_complete(board, logdir, tmp_path):
    path = logdir / "zz_half" / "w.pt.trace.json"
    path.parent.mkdir()
    whole = two_steps().write(tmp_path / "later").read_bytes()

    def listed():
        return {run["key"]: run["versions"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]}.get("zz_half")

    def failures():
        return [failure for failure in board.json(f"{PROFILER}/failures")["failures"] if failure["run"] == "zz_half"]

    path.write_text("{")
    before = board.until(listed, "the run")
    assert board.tab_json("digest", run="zz_half")["state"] == "failed"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    board.until(lambda: listed() != before, "another version")
    assert board.tab_json("digest", run="zz_half")["warnings"][0].startswith("w.pt.trace.json is cut off")
    board.until(failures, "the failure")
    path.write_bytes(whole)
    board.until(lambda: not board.tab_json("digest", run="zz_half")["partial"], "the whole")
    board.until(lambda: "zz_half" in board.runs_loaded(), "the complete trace")
    assert failures() == []
    shutil.rmtree(path.parent)
    board.until(lambda: "zz_half" not in board.runs_loaded() and not listed(), "the end of the run")


def test_many_clients_get_the_same_answers(board):
    board.tab_json("digest", run="gpu")
    board.tab_json("lanes", run="gpu")
    board.tab_json("ranks", run="distributed")
    routes = "ladders ratio?before=gpu&after=cpu digest?run=gpu lanes?run=gpu ranks?run=distributed page.html".split()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda route: board.get(f"{WALKTHROUGH}/{route}"), routes * 24))
    assert {status for status, _, _ in answers} == {200}
    assert [len({body for _, _, body in answers[at :: len(routes)]}) for at in range(len(routes))] == [1] * len(routes)


def test_the_ranks_of_a_run_side_by_side(board):
    runs = board.json(f"{WALKTHROUGH}/runs")["runs"]
    assert [run["name"] for run in runs if run["has_ranks"]] == ["distributed"]
    answer = board.tab_json("ranks", run="distributed")
    assert (answer["problems"], answer["no_waits"]) == ([], "")
    early, late = answer["ranks"]
    assert (early["exposed_us"], early["hidden_us"], early["wait_us"]) == (900, 1100, 0)
    assert (late["exposed_us"], late["hidden_us"], late["wait_us"]) == (1400, 1100, 500)
    assert answer["stragglers"] == [0]


@pytest.mark.parametrize("version", ["another", None])
def test_tensorboard_starts_without_the_profiler_or_with_a_version_that_is_not_patched(monkeypatch, caplog, version):
    def find(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", find)
    assert issubclass(loader.__wrapped__(), TBLoader)
    assert "torch-tb-profiler is not patched" in caplog.text
