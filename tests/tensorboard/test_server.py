"""The real `tensorboard` command on runs of every kind: what its tabs answer over HTTP."""

import shutil
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from support import ROOT, make_limit, make_result, run_program
from support.board import PROFILER, WALKTHROUGH, fill, tensorboard
from support.trace_builder import two_steps

from walkthrough.compare import roofs
from walkthrough.compare.rounds import ladders
from walkthrough.results import result
from walkthrough.tensorboard import plugin
from walkthrough.trace.analysis import analyze
from walkthrough.trace.kernel_names import short_name
from walkthrough.trace.steps import ROLES

pytest.importorskip("torch_tb_profiler")
pytestmark = pytest.mark.xdist_group("tensorboard")  # one start for all of them
RUNS = ["broken", "cpu", "cpu_stacks", "distributed", "gpu", "hostile", "ladder/00_baseline"]
RUNS += ["ladder/04_multiprocess_loading", "odd [name] ünï", "of 2021", "only kernels", "without events"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def board(logdir, tmp_path_factory):
    with tensorboard(logdir, cache=tmp_path_factory.mktemp("cache")) as board:
        yield board


@pytest.fixture
def new_run(board, logdir):
    """new_run(name): the folder of a new run, which is gone after the test."""
    names = []

    def make(name):
        names.append(name)
        (logdir / name).mkdir()
        return logdir / name

    yield make
    for name in names:
        shutil.rmtree(logdir / name)
    gone = lambda shown: not set(names) & set(shown)  # noqa: E731
    board.until(lambda: gone(board.runs_loaded()), "the end in the profiler's tab")
    board.until(lambda: gone(run["key"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]), "the end in ours")


def test_both_tabs_are_there_with_every_run_and_the_broken_one_is_named(board):
    assert board.runs_loaded() == [run for run in RUNS if run != "broken"]
    plugins = board.json("/data/plugins_listing")  # the profiler's tab is enabled once it has a run
    assert (plugins["walkthrough"]["enabled"], plugins["walkthrough"]["tab_name"]) == (True, "Walkthrough")
    assert plugins["pytorch_profiler"]["enabled"]
    assert "broken/w.pt.trace.json.gz cannot be read and is left out" in board.text()
    (failure,) = board.json(f"{PROFILER}/failures")["failures"]
    assert (failure["run"], failure["file"]) == ("broken", "w.pt.trace.json.gz")
    assert "nothing in it could be decompressed" in failure["reason"]
    assert [run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]] == RUNS
    broken = board.digest("broken")
    assert broken["state"] == "failed"
    assert "damaged" in broken["reason"]


@pytest.mark.parametrize("run", ["gpu", "of 2021", "odd [name] ünï", "ladder/04_multiprocess_loading"])
def test_the_tab_the_profiler_and_explain_have_the_same_numbers(board, logdir, run):
    board.runs_loaded()
    trace = next((logdir / run).glob("*.trace.json*"))
    ours = analyze(trace)
    digest = board.digest(run)
    assert digest["steps"]["breakdown_us"] == pytest.approx(ours.steps.mean_breakdown_us)
    assert digest["gpus"][0]["utilization"] == pytest.approx(ours.gpus[0].utilization)
    assert digest["gpus"][0]["tensor_core_share"] == ours.gpus[0].tensor_core_share
    assert (digest["kinds"], digest["matrix_units"]) == (ours.kinds_us, "Tensor Cores")
    assert digest["typical"]["kernels"][0]["short"] == short_name(ours.all_tables.kernels[0].name, 100)
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
    assert board.json(f"{PROFILER}/workers?run=distributed&view=Distributed") == ["All"]
    operations = board.json(f"{PROFILER}/distributed/commops?run=distributed&worker=All&span=1&view=Distributed")
    rows = next(iter(operations["data"].values()))["rows"]
    assert rows[0][:3] == ["nccl:all_reduce", 2, 8000]


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


def test_a_step_without_effect_on_the_device_says_what_it_needs_in_place_of_ratios():
    noise = make_result("05_pinned_memory", needs="a GPU", notes=["no GPU: so", "of all"])
    [ladder] = ladders([make_result(notes=["of all"]), noise, make_result("07_small_images", windows=[204.0] * 5)])
    run = SimpleNamespace(name="a run", traces={})
    base, idle, last = [plugin._row(row, run, {"of all"}) for row in ladder.rows]
    assert (idle["acts"], idle["needs"], idle["gain"], idle["relative"]) == (False, "needs a GPU", None, None)
    assert idle["notes"] == ["of all"]
    assert (base["acts"], base["needs"], base["relative"]["text"]) == (True, None, "1.00x")
    assert last["gain"]["ratio"] == last["relative"]["ratio"] == pytest.approx(2.0)


def test_a_row_has_its_shares_of_the_peaks_that_limit_measured_and_null_without_them(board, logdir):
    def shares():
        (ladder,) = board.json(f"{WALKTHROUGH}/ladders")["ladders"]
        return [[row["share_of_arithmetic_peak"], row["share_of_memory_roof"]] for row in ladder["rows"]]

    folder = logdir / "ladder"
    base = result.read_result(folder / "00_baseline" / "result.json")
    setup = {name: getattr(base.setup, name) for name in ("device", "cores", "model", "image_size")}
    known = make_limit(
        **setup, precision=base.precision, flops_per_image=1_000,
        step_bytes=[asdict(roofs.StepBytes(base.precision, 0.0, 100.0))],
    )  # fmt: skip
    nothing, path = [[None, None]] * 2, folder / roofs.FILE
    assert shares() == nothing
    try:
        result.write_json(path, known.as_json())
        assert shares()[0] == list(roofs.of_study(known).shares(base).values())
        assert None not in shares()[0]
        result.write_json(path, known.as_json() | {"setup": asdict(known.setup) | {"model": "another"}})
        assert shares() == nothing
        path.write_text("torn")
        assert shares() == nothing
    finally:
        path.unlink()


def test_any_two_runs_of_a_setup_have_a_ratio(board, logdir):
    base, loading = "ladder/00_baseline", "ladder/04_multiprocess_loading"
    answer = board.tab_json("ratio", before=loading, after=base)
    assert answer["ratio"]["text"] == "0.83x (0.83-0.83)"
    assert (answer["speeds"], answer["batch_sizes"]) == ([120.0, 100.0], [32, 32])
    assert board.tab_json("ratio", before=base, after=base)["ratio"] is None
    assert board.tab_json("ratio", before="gpu", after=base)["ratio"] is None


def test_the_ratio_is_of_the_rounds_that_both_keep(board, logdir):
    runs = {name: f"ladder/{step}" for name, step in (("before", "00_baseline"), ("after", "04_multiprocess_loading"))}
    try:
        for run in runs.values():
            (logdir / run / "runs").mkdir()
            for number in (1, 2):
                shutil.copy(logdir / run / "result.json", logdir / run / "runs" / f"{number}.json")
        assert board.tab_json("ratio", **runs)["ratio"]["rounds"] == 2
        (logdir / runs["after"] / "runs" / "1.json").write_text("torn")
        assert board.tab_json("ratio", **runs)["ratio"]["rounds"] == 1
    finally:
        for run in runs.values():
            shutil.rmtree(logdir / run / "runs")


def test_lanes_hold_the_events_of_the_steps_and_an_event_its_arguments(board):
    lanes = board.tab_json("lanes", run="gpu")
    assert [step["name"] for step in lanes["steps"]] == ["3", "4"]
    by_kind = {lane["kind"]: lane for lane in lanes["lanes"]}
    assert set(by_kind) == {"finding", "idle", "cpu", "loader", "runtime", "kernel", "copy"}
    assert (by_kind["kernel"]["start"], by_kind["kernel"]["duration"]) == ([330, 1330], [400, 400])
    copies = by_kind["copy"]
    event = {"run": "gpu", "name": lanes["names"][copies["name"][0]], "pid": copies["pid"], "tid": copies["tid"]}
    event |= {"at": lanes["file_us"] + copies["start"][0], "duration": copies["duration"][0]}
    assert board.tab_json("event", **event)["arguments"]["bytes"] > 0
    answer = board.tab_json("event", **event | {"name": "nothing"})
    assert (answer["state"], "holds no event nothing" in answer["reason"]) == ("failed", True)


def test_a_trace_can_be_downloaded_as_it_lies_there(board, logdir):
    for run, content_type in (
        ("gpu", "application/gzip"),
        ("odd [name] ünï", "application/gzip"),
        ("hostile", "application/json"),
    ):
        (path,) = (logdir / run).iterdir()
        status, headers, body = board.get(f"{WALKTHROUGH}/trace?{urllib.parse.urlencode({'run': run})}")
        assert (status, body) == (200, path.read_bytes())
        assert headers["Content-Type"] == content_type
        assert headers["Content-Disposition"] == f"attachment; filename*=UTF-8''{urllib.parse.quote(path.name)}"
        assert headers["Content-Encoding"] is None


@pytest.mark.parametrize(
    "route",
    [
        *("digest", "digest?run=nowhere", "digest?run=../../../../etc", "digest?run=gpu&trace=/etc/passwd"),
        *("digest?run=gpu&trace=../gpu/w.pt.trace.json.gz", "trace?run=gpu&trace=../gpu/w.pt.trace.json.gz"),
        *("lanes?run=%00", "lanes?run=gpu&first=-1", "lanes?run=gpu&last=all", "lanes?run=gpu&first=2&last=1"),
        *("lanes?run=gpu&first=99999999999999999999", "ratio?before=gpu&after=nowhere", "ranks?run=../gpu"),
        "event?run=gpu&name=k&pid=1&at=1&duration=1",
        "event?run=gpu&name=k&pid=1&tid=1&at=nan&duration=1",
        "event?run=gpu&name=k&pid=1&tid=1&at=1&duration=long",
        "event?run=nowhere&name=k&pid=1&tid=1&at=1&duration=1",
        *("nothing", "../../../etc/passwd"),
    ],
)
def test_nothing_outside_the_log_folder_is_answered_and_no_traceback(board, route):
    code, _, body = board.get(f"{WALKTHROUGH}/{route}")
    assert code == 404
    assert b"Traceback" not in body
    assert b"root:" not in body


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


def test_both_tabs_show_a_new_run_without_a_restart_and_its_trace_again_once_it_is_complete(board, new_run, tmp_path):
    path = new_run("zz_half") / "w.pt.trace.json"
    whole = two_steps().write(tmp_path / "later").read_bytes()

    def listed():
        return {run["key"]: run["versions"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]}.get("zz_half")

    def failures():
        return [failure for failure in board.json(f"{PROFILER}/failures")["failures"] if failure["run"] == "zz_half"]

    path.write_text("{")
    before = board.until(listed, "the run")
    assert board.digest("zz_half")["state"] == "failed"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    board.until(lambda: listed() != before, "another version")
    assert board.digest("zz_half")["warnings"][0].startswith("w.pt.trace.json is cut off")
    board.until(lambda: failures() and "cut off or damaged" in failures()[0]["reason"], "the failure")
    path.write_bytes(whole)
    digest = board.until(lambda: (found := board.digest("zz_half")) and not found["partial"] and found, "the whole")
    assert (digest["warnings"], digest["steps"]["names"]) == ([], ["3", "4"])
    board.until(lambda: "zz_half" in board.runs_loaded(), "the complete trace")
    assert board.json(f"{PROFILER}/views?run=zz_half") == ["Overview", "Operator", "Kernel", "Trace"]
    assert failures() == []


def test_answers_are_cached_and_nothing_is_written_next_to_the_traces(board, logdir):
    before = sorted(path.name for path in (logdir / "gpu").iterdir())
    board.digest("gpu")
    assert sorted(path.name for path in (logdir / "gpu").iterdir()) == before == ["w.pt.trace.json.gz"]
    cache = board.cache / "pytorch-training-walkthrough"
    board.until(lambda: list(cache.glob("*.json.gz")), "the cached answer")  # written after the answer is given


def test_many_clients_get_the_same_answers(board):
    board.digest("gpu")
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
    assert (early["rank"], early["trace"]) == (0, "host0_100.1700000000000.pt.trace.json")
    assert (early["exposed_us"], early["hidden_us"], early["wait_us"]) == (900, 1100, 0)
    assert (late["exposed_us"], late["hidden_us"], late["wait_us"]) == (1400, 1100, 500)
    assert late["parts_us"]["exposed"] == 1400
    assert answer["stragglers"] == [0]
    assert "the others wait 500.0 µs of a step (6%) for rank 0" in answer["advice"]


def test_several_log_folders(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "run").mkdir(parents=True)
        two_steps().write(tmp_path / name / "run" / "w.pt.trace.json")
    spec = f"--logdir_spec=a:{tmp_path / 'one'},b:{tmp_path / 'two'}"
    with tensorboard(tmp_path / "spec", spec, cache=tmp_path / "cache") as board:
        assert board.runs_loaded(2) == ["a/run", "b/run"]
        assert [run["name"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]] == ["a/run", "b/run"]


def test_another_version_of_the_plugin_is_not_patched(monkeypatch):
    from walkthrough import tensorboard

    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.5.0")
    with pytest.raises(tensorboard.NotPatched, match=r"0\.5\.0"):
        tensorboard.patch_profiler()


def test_tensorboard_starts_without_the_plugin(tmp_path):
    (tmp_path / "torch_tb_profiler.py").write_text("raise ImportError('not here')", encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "find = m.version\n"
        "def version(name):\n"
        "    if name == 'torch-tb-profiler':\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return find(name)\n"
        "m.version = version\n"
    )
    script = "import sys, walkthrough.tensorboard, tensorboard; from walkthrough.tensorboard import Loader; "
    script += "assert 'torch_tb_profiler' not in sys.modules; print('fine')"
    finished = run_program("-c", script, cwd=ROOT, PYTHONPATH=tmp_path)
    assert finished.stdout == "fine\n", finished.stderr
    assert "torch-tb-profiler is not patched" in finished.stderr
