"""The loading of runs: children that die, files that change, what is kept, runs side by side in the Diff view."""

import gzip
import json
import os
import pickle
import warnings

import pytest
from support import PATIENCE, ROOT, until
from support.board import only_kernels
from support.trace_builder import TraceBuilder, two_steps

pytest.importorskip("torch_tb_profiler")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the plugin's own: it was written for the pandas of 2021
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    from walkthrough.tensorboard import profiler_plugin
    from walkthrough.tensorboard.log_folders import folders_below
    from walkthrough.tensorboard.profiler_plugin import Loading, NotReadable, NotYet, Unknown

pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")  # in pandas 3
LONG_AGO = 1_700_000_000  # s: a file that was written then is complete


def trace(path, builder=None, when=LONG_AGO):
    """Write a trace that was last written to at `when`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (builder or two_steps()).write(path)
    os.utime(path, (when, when))
    return path


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(**options): the `Loading` of the runs in tmp_path/logs, searched once."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(profiler_plugin, "READERS", 1)
    opened = []

    def found():
        for folder in folders_below([("", str(tmp_path / "logs"))]):
            yield folder.name, str(folder.path), folder.traces

    def start(**options):
        opened.append(Loading(found, cache=tmp_path / "cache", **options))
        opened[-1].search()
        return opened[-1]

    yield start
    for loading in opened:
        loading.answers.close()


def loaded(loading):
    """Wait until nothing is left to read."""
    until(lambda: not loading.loading)
    return loading


def workers(loading, patience=0.0):
    """Those of the run "run"."""
    return [worker for worker, _ in loading.run("run", patience).profiles]


def test_what_changes_is_read_again_also_after_a_failure_and_what_is_deleted_goes_away(tmp_path, load):
    path = tmp_path / "logs" / "run" / "a.pt.trace.json"
    whole = trace(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    os.utime(path, (LONG_AGO, LONG_AGO))
    loading = load()
    (failure,) = loaded(loading).failures()
    assert (loading.names(), failure["run"], failure["file"]) == ([], "run", "a.pt.trace.json")
    for name, error in (("run", NotReadable), ("another", Unknown)):
        with pytest.raises(error):
            loading.run(name)
    trace(path, when=LONG_AGO + 1)
    loading.search()
    assert loading.names() == ["run"]  # it can be asked for while it is read
    assert (workers(loading, PATIENCE), loading.failures()) == (["a"], [])
    trace(tmp_path / "logs" / "run" / "b.pt.trace.json")
    loading.search()
    assert workers(loading) == ["a"]  # the old until the new is there
    assert workers(loaded(loading)) == ["a", "b"]
    path.unlink()
    loading.search()
    assert workers(loading) == ["b"]
    path.with_name("b.pt.trace.json").unlink()
    loading.search()
    assert loading.names() == []


def test_what_is_kept_serves_the_next_start_and_what_is_lost_of_it_is_read_again(tmp_path, load):
    trace(tmp_path / "logs" / "run" / "a.pt.trace.json")
    loaded(load())
    (kept,) = (tmp_path / "cache").glob("*.profile.gz")
    second = load(program=("-c", "import sys; sys.exit('nobody needs a child')"))
    assert (second.loading, workers(second)) == (False, ["a"])
    kept.write_bytes(kept.read_bytes()[:-20])
    loading = load()
    assert workers(loading, PATIENCE) == ["a"]
    next((tmp_path / "cache").glob("*.profile.tables.gz")).write_bytes(b"")
    with pytest.raises(NotYet):
        loading.run("run").get_profile("a", "default")
    assert loading.run("run", PATIENCE).get_profile("a", "default").overview
    next((tmp_path / "cache").glob("*.profile.counters.gz")).unlink()
    [unread] = loading.run("run").profiles.values()
    with pytest.raises(NotYet):
        loading.view(unread.trace)
    assert viewed(loading)["traceEvents"]


def test_runs_beyond_the_limits_of_the_disk_and_of_the_memory_are_shown(tmp_path, load, monkeypatch):
    monkeypatch.setattr(profiler_plugin, "DISK_LIMIT", 1)  # byte
    monkeypatch.setattr(profiler_plugin, "MEMORY_LIMIT", 1)
    for name in ("one", "two"):
        for worker in "ab":
            trace(tmp_path / "logs" / name / f"{worker}.pt.trace.json")
    loading = loaded(load())
    for name in ("one", "two"):
        run = loading.run(name, PATIENCE)
        assert run.workers == ["a", "b"]
        for worker in run.workers:
            assert run.get_profile(worker, "default").worker == worker
            assert [trace.file for trace in loading._profiles._profiles] == [f"{worker}.pt.trace.json"]
    assert len(list((tmp_path / "cache").glob("*.profile.gz"))) == 4


def viewed(loading):
    """What the Trace view shows of the only trace of the run "run"."""
    [profile] = loading.run("run", PATIENCE).profiles.values()
    with loading.view(profile.trace, PATIENCE) as file:
        return json.loads(gzip.decompress(file.read()))


def test_the_trace_view_gets_valid_json_of_what_was_read_the_counters_of_the_gpus_first(tmp_path, load):
    builder = two_steps()
    builder.header["odd"] = 'a "]" and a "}"'
    builder.op('"traceEvents": [ and a "]"', 1, 1)
    builder.add("cpu_op", "no number", 2, 1, value=float("nan"))
    names = {1: "Iteration Start: 1", 5: "Record Window End", 1e9: "Record Window End"}
    builder.events += [{"ph": "i", "name": name, "pid": 1, "tid": 1, "ts": at} for at, name in names.items()]
    path = trace(tmp_path / "logs" / "run" / "a.pt.trace.json", builder)
    loading = loaded(load())
    shown = viewed(loading)
    events = builder.json["traceEvents"]
    counters = len(shown["traceEvents"]) - len(events) + 1
    assert counters > 0
    assert {event["ph"] for event in shown["traceEvents"][:counters]} == {"C"}
    expected = json.loads(json.dumps(events[:-1]).replace("NaN", "null"))
    assert shown["traceEvents"][counters:] == expected
    assert shown == builder.json | {"traceEvents": shown["traceEvents"]}
    [profile] = loading.run("run").profiles.values()
    canary = trace(tmp_path / "canary.json")
    for put in (lambda: trace(path, when=LONG_AGO + 1), lambda: path.symlink_to(canary), lambda: None):
        path.unlink(missing_ok=True)
        put()
        with pytest.raises(NotReadable, match=r"not there any more|has changed"):
            loading.view(profile.trace, PATIENCE)


def profiles(*builders, folder):
    """The profiles of traces."""
    paths = [builder.write(folder / f"{number}.json") for number, builder in enumerate(builders)]
    data = [RunProfileData.parse("w", None, str(path), str(folder)) for path in paths]
    return [RunGenerator("w", None, parsed).generate_run_profile() for parsed in data]


def test_the_diff_view_pairs_operators_by_their_names(tmp_path):
    other = TraceBuilder()
    other.step(1, 0, 1000)
    other.op("aten::item", 0, 10)
    other.op("aten::only_here", 20, 10)
    first, second = profiles(two_steps(), other, folder=tmp_path)
    diff = first.compare_run(second).get_diff_node_summary("0")
    left, right = ([operator["name"] for operator in diff[side]["aggs"]] for side in ("left", "right"))
    assert left == right
    assert {"aten::item", "aten::only_here", "aten::cudnn_convolution"} <= set(left)


def test_a_trace_without_operators_has_what_the_pages_need(tmp_path):
    for profile in profiles(TraceBuilder(), only_kernels(), folder=tmp_path):
        assert profile.operation_pie_by_name["host_self_time"]["rows"] == []
        assert profile.operation_pie_by_name_input["host_total_time"]["title"] == "Host Total Time (us)"
        (step,) = profile.overview["performance"]
        assert 0 < step["value"] <= 150
        assert profile.compare_run(profile).get_diff_node_summary("0")
        assert pickle.loads(pickle.dumps(profile)).views == profile.views
