"""The real `tensorboard` command on runs of every kind: what its tabs answer over HTTP."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
from dataclasses import asdict

import pytest
from support import ROOT
from support.board import PROFILER, WALKTHROUGH, fill, tensorboard
from support.trace_builder import two_steps

from common import record
from common.board import store
from common.ladder import gpu_memory
from common.trace.kernel_name import short_name
from common.trace.steps import ROLES
from common.trace.summary import summarize

pytest.importorskip("torch_tb_profiler")
pytestmark = pytest.mark.xdist_group("tensorboard")  # one start for all of them
RUNS = ["broken", "cpu", "cpu_stacks", "distributed", "gpu", "hostile", "ladder/00_baseline"]
RUNS += ["ladder/04_multiprocess_loading", "odd [name] ünï", "of 2021"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def board(logdir, tmp_path_factory):
    with tensorboard(logdir, cache=tmp_path_factory.mktemp("cache")) as board:
        yield board


def test_what_is_kept_of_a_trace_depends_on_all_code_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "findings").mkdir()
    rule = tmp_path / "findings" / "rule.py"
    hashes = set()
    monkeypatch.setattr(store, "CODE", tmp_path)
    for code in ("1", "2"):
        rule.write_text(code)
        hashes.add(store._code_hash.__wrapped__())
    assert len(hashes) == 2


def test_both_tabs_are_there(board):
    board.runs_loaded()  # the profiler's tab is enabled once it has a run
    plugins = board.json("/data/plugins_listing")
    assert plugins["walkthrough"]["enabled"]
    assert plugins["walkthrough"]["tab_name"] == "Walkthrough"
    assert plugins["pytorch_profiler"]["enabled"]


def test_the_profiler_loads_every_run_and_logs_the_broken_one(board):
    assert board.runs_loaded() == [run for run in RUNS if run != "broken"]
    assert "run broken: w.pt.trace.json.gz cannot be read" in board.text()


def test_every_run_is_listed_the_broken_one_too(board):
    assert [run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]] == RUNS
    broken = board.digest("broken")
    assert broken["state"] == "failed"
    assert "damaged" in broken["reason"]


@pytest.mark.parametrize("run", ["gpu", "of 2021", "odd [name] ünï", "ladder/04_multiprocess_loading"])
def test_the_tab_the_profiler_and_explain_have_the_same_numbers(board, logdir, run):
    board.runs_loaded()
    trace = next((logdir / run).glob("*.trace.json*"))
    ours = summarize(trace)
    digest = board.digest(run)
    assert digest["steps"]["breakdown_us"] == pytest.approx(ours.steps.mean_breakdown_us)
    assert digest["gpus"][0]["utilization"] == pytest.approx(ours.gpus[0].utilization)
    assert digest["gpus"][0]["tensor_core_share"] == ours.gpus[0].tensor_core_share
    assert (digest["kinds"], digest["matrix_units"]) == (ours.kinds, "Tensor Cores")
    assert digest["kernels"][0]["short"] == short_name(ours.kernels[0].name, 100)
    worker = trace.name.split(".")[0]
    spans = board.json(f"{PROFILER}/spans?{urllib.parse.urlencode({'run': run, 'worker': worker})}")
    query = urllib.parse.urlencode({"run": run, "worker": worker, "span": (spans or ["default"])[0]})
    shown = board.json(f"{PROFILER}/overview?{query}")
    names = {"cpu_exec": "CPU Exec", "dataloader": "DataLoader"}
    parts = {part["name"]: part["value"] for part in shown["performance"][0]["children"]}
    for role in ROLES:
        expected = ours.steps.mean_breakdown_us[role]
        assert parts.get(names.get(role, role.capitalize()), 0) == pytest.approx(expected, abs=0.51)
    figures = {figure["title"]: figure["value"] for figure in shown["gpu_metrics"]["data"]}
    utilization = float(figures["GPU Utilization"].removesuffix("%"))
    assert utilization == pytest.approx(100 * ours.gpus[0].utilization, abs=0.01)


def test_the_distributed_view_has_sizes_and_communication(board):
    board.runs_loaded()
    workers = board.json(f"{PROFILER}/workers?run=distributed&view=Distributed")
    assert workers == ["All"]
    operations = board.json(f"{PROFILER}/distributed/commops?run=distributed&worker=All&span=1&view=Distributed")
    rows = next(iter(operations["data"].values()))["rows"]
    assert rows[0][:3] == ["nccl:all_reduce", 2, 8000]


def test_several_traces_of_a_run_can_be_asked_for(board):
    first = board.digest("distributed", trace="host0_100.1700000000000.pt.trace.json")
    other = board.digest("distributed", trace="host1_101.1700000000000.pt.trace.json")
    assert first["communication"]["us"] != other["communication"]["us"]


def test_the_ladder_is_that_of_compare(board):
    answer = board.json(f"{WALKTHROUGH}/ladders")
    (ladder,) = answer["ladders"]
    assert [row["step"] for row in ladder["rows"]] == ["00_baseline", "04_multiprocess_loading"]
    assert ladder["rows"][1]["relative"]["ratio"] == pytest.approx(1.2)
    assert ladder["rows"][1]["run"] == "ladder/04_multiprocess_loading"
    assert ladder["rows"][1]["gain"]["text"] == "1.20x (1.20-1.20)"
    assert [row["relative"]["resolved"] for row in ladder["rows"]] == [True, True]  # the baseline is not grey
    assert ladder["summary"].endswith("1 of 1 (faster: 04 1.20x).")
    assert answer["original"]["relative"]["05_pinned_memory"] == 5.05


def test_the_gpu_memory_predicted_for_a_step_stands_in_its_row_and_a_broken_file_is_left_out(board, logdir):
    def predicted():
        (ladder,) = board.json(f"{WALKTHROUGH}/ladders")["ladders"]
        return [row["gpu_bytes_predicted"] for row in ladder["rows"]]

    path = logdir / "ladder" / gpu_memory.FILE
    assert predicted() == [None, None]
    base = record.read_result(logdir / "ladder" / "00_baseline" / "result.json")
    sizes = dict.fromkeys(gpu_memory.KINDS, 0) | {"activations": 2_538_000_000}
    settings = (base.model, base.image_size, base.batch_size, base.precision)
    one = gpu_memory.Prediction("00_baseline", [], *settings, 2_538_000_000, sizes, 2_867_000_000)
    fit = gpu_memory.Fit(1, gpu_memory.CONTEXT_BYTES, [one], {}, base.environment, base.started)
    try:
        record.write_json(path, asdict(fit))
        assert predicted() == [2_538_000_000, None]
        path.write_text("torn")
        assert predicted() == [None, None]
    finally:
        path.unlink()


def test_any_two_runs_of_a_setup_have_a_ratio(board, logdir):
    base, loading = "ladder/00_baseline", "ladder/04_multiprocess_loading"
    answer = board.tab_json("ratio", before=loading, after=base)
    assert answer["ratio"]["text"] == "0.83x (0.83-0.83)"
    assert (answer["speeds"], answer["batch_sizes"]) == ([120.0, 100.0], [32, 32])
    assert board.tab_json("ratio", before=base, after=base)["ratio"] is None
    assert board.tab_json("ratio", before="gpu", after=base)["ratio"] is None


def test_rounds_are_read_but_never_through_a_link(board, logdir, tmp_path):
    folders = [logdir / "ladder" / step for step in ("00_baseline", "04_multiprocess_loading")]
    for folder in folders:
        (folder / "runs").mkdir()
        for number in (1, 2):
            record.write_result(folder / "runs" / f"{number}.json", record.read_result(folder / "result.json"))
    try:
        names = dict(zip(("before", "after"), ("ladder/00_baseline", "ladder/04_multiprocess_loading"), strict=True))
        assert board.tab_json("ratio", **names)["ratio"]["rounds"] == 2
        (folders[0] / "runs").rename(tmp_path / "runs")
        (folders[0] / "runs").symlink_to(tmp_path / "runs")
        assert board.tab_json("ratio", **names)["ratio"]["rounds"] == 1
        (folders[1] / "runs" / "1.json").write_text("torn")
        assert board.tab_json("ratio", **names)["ratio"]["rounds"] == 1
    finally:
        (folders[0] / "runs").unlink(missing_ok=True)
        shutil.rmtree(folders[1] / "runs")


def test_lanes_hold_the_events_of_the_steps(board):
    lanes = board.tab_json("lanes", run="gpu")
    assert [step["name"] for step in lanes["steps"]] == ["3", "4"]
    kinds = {lane["kind"] for lane in lanes["lanes"]}
    assert kinds == {"finding", "idle", "cpu", "loader", "runtime", "kernel", "copy"}
    kernels = next(lane for lane in lanes["lanes"] if lane["kind"] == "kernel")
    assert kernels["start"] == [330, 1330]
    assert kernels["duration"] == [400, 400]


@pytest.mark.parametrize(
    ("route", "status"),
    [
        ("digest", 404),
        ("ratio?before=gpu&after=nowhere", 404),
        ("digest?run=nowhere", 404),
        ("digest?run=../../../../etc", 404),
        ("digest?run=gpu&trace=../gpu/w.pt.trace.json.gz", 404),
        ("digest?run=gpu&trace=/etc/passwd", 404),
        ("lanes?run=%00", 404),
        ("lanes?run=gpu&first=-1", 404),
        ("lanes?run=gpu&last=all", 404),
        ("lanes?run=gpu&first=2&last=1", 404),
        ("lanes?run=gpu&first=99999999999999999999", 404),
        ("nothing", 404),
        ("../../../etc/passwd", 404),
    ],
)
def test_nothing_outside_the_log_folder_is_answered_and_no_traceback(board, route, status):
    code, _, body = board.get(f"{WALKTHROUGH}/{route}")
    assert code == status
    assert b"Traceback" not in body
    assert b"root:" not in body


def test_links_are_not_followed(board, logdir, tmp_path):
    two_steps().write(tmp_path / "secret.pt.trace.json")
    (logdir / "cpu" / "link.pt.trace.json").symlink_to(tmp_path / "secret.pt.trace.json")
    (logdir / "linked").symlink_to(tmp_path)
    os.mkfifo(logdir / "cpu" / "result.json")  # opening it would block
    two_steps().write(logdir / "cpu" / "later.pt.trace.json")
    try:

        def rescanned():
            names = [trace for run in board.json(f"{WALKTHROUGH}/runs")["runs"] for trace in run["traces"]]
            return names if "later.pt.trace.json" in names else None

        names = board.until(rescanned, "the trace written next to the links")
        assert not any("link" in name or "secret" in name for name in names)
    finally:
        for name in ("link.pt.trace.json", "result.json", "later.pt.trace.json"):
            (logdir / "cpu" / name).unlink()
        (logdir / "linked").unlink()


def test_posts_are_refused_and_json_is_not_sniffed(board):
    ours = [f"{WALKTHROUGH}/{route}" for route in ("runs", "ladders", "digest?run=gpu", "page.html", "plotly.min.js")]
    for route in [*ours, f"{PROFILER}/runs", f"{PROFILER}/index.html"]:
        assert board.get(route, method="POST", body=b"{}")[0] == 405, route
    _, headers, _ = board.get(f"{WALKTHROUGH}/runs")
    assert headers["Content-Type"].startswith("application/json")
    assert headers["X-Content-Type-Options"] == "nosniff"


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


def test_a_new_run_appears_without_a_restart(board, logdir):
    folder = logdir / "zz_new"
    folder.mkdir()
    two_steps().write(folder / "w.pt.trace.json")
    try:
        board.until(
            lambda: "zz_new" in {run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]}, "the new run"
        )
        assert board.digest("zz_new")["steps"]["names"] == ["3", "4"]
    finally:
        (folder / "w.pt.trace.json").unlink()
        folder.rmdir()


def test_answers_are_cached_and_nothing_is_written_next_to_the_traces(board, logdir):
    before = sorted(path.name for path in (logdir / "gpu").iterdir())
    board.digest("gpu")
    assert sorted(path.name for path in (logdir / "gpu").iterdir()) == before == ["w.pt.trace.json.gz"]
    cache = board.cache / "pytorch-training-walkthrough"
    board.until(lambda: list(cache.glob("*.json.gz")), "the cached answer")  # written after the answer is given


def test_many_clients_get_the_same_answer(board):
    board.digest("gpu")
    answers, problems = set(), []

    def ask():
        try:
            for _ in range(25):
                answers.add(json.dumps(board.json(f"{WALKTHROUGH}/digest?run=gpu"), sort_keys=True))
        except Exception as error:
            problems.append(error)

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not problems
    assert len(answers) == 1


def test_several_log_folders(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "run").mkdir(parents=True)
        two_steps().write(tmp_path / name / "run" / "w.pt.trace.json")
    spec = f"--logdir_spec=a:{tmp_path / 'one'},b:{tmp_path / 'two'}"
    with tensorboard(tmp_path / "spec", spec, cache=tmp_path / "cache") as board:
        assert board.runs_loaded(2) == ["a/run", "b/run"]
        assert [run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]] == ["a/run", "b/run"]


def test_another_version_of_the_plugin_is_not_patched(monkeypatch):
    from common.board import profiler

    monkeypatch.setattr(profiler, "version", lambda name: "0.5.0")
    with pytest.raises(profiler.NotPatched, match=r"0\.5\.0"):
        profiler.patch()


def test_tensorboard_starts_without_the_plugin(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch_tb_profiler.py").write_text("raise ImportError('not here')", encoding="utf-8")
    (hidden / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "find = m.version\n"
        "def version(name):\n"
        "    if name == 'torch-tb-profiler':\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return find(name)\n"
        "m.version = version\n"
    )
    script = (
        "import common.board, tensorboard; from common.board import Loader; "
        "assert 'torch_tb_profiler' not in __import__('sys').modules; print('fine')"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(hidden)},
    )
    assert finished.stdout == "fine\n", finished.stderr
    assert "torch-tb-profiler is not patched" in finished.stderr
