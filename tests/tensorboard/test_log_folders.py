"""Which runs lie in the log folders: links and hidden folders left out, names in order, crowded and hostile folders."""

import os
from types import SimpleNamespace

import pytest
from support import make_result, write_run
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.tensorboard import log_folders
from walkthrough.tensorboard.log_folders import Runs, folders_below, roots_of


def trace(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return two_steps().write(path)


def test_runs_are_in_natural_order(tmp_path):
    for name in ("run10", "run2", "run1", "b/2", "b/10", "100", "20"):
        trace(tmp_path / name / "w.pt.trace.json")
    names = ["20", "100", "b/2", "b/10", "run1", "run2", "run10"]
    assert list(Runs([("", str(tmp_path))]).latest()) == names
    two = [("two", str(tmp_path / "b")), ("one", str(tmp_path / "run1"))]
    assert list(Runs(two).latest()) == ["one", "two/2", "two/10"]


def test_links_and_what_is_hidden_are_not_followed_but_the_log_folder_may_be_a_link(tmp_path):
    secret = trace(tmp_path / "elsewhere" / "secret.pt.trace.json")
    for name in ("run/a", "run/.a", "run/.hidden/a", ".ipynb_checkpoints/a"):
        trace(tmp_path / "logs" / f"{name}.pt.trace.json")
    (tmp_path / "logs" / "run" / "link.pt.trace.json").symlink_to(secret)
    (tmp_path / "logs" / "linked").symlink_to(secret.parent)
    os.mkfifo(tmp_path / "logs" / "run" / "pipe.pt.trace.json")
    (tmp_path / "also").symlink_to(tmp_path / "logs")
    for root in ("logs", "also"):
        (folder,) = folders_below([("", str(tmp_path / root))])
        assert list(folder.traces) == ["a.pt.trace.json"]
        (run,) = Runs([("", str(tmp_path / root))]).latest().values()
        assert list(run.traces) == ["a.pt.trace.json"]


def test_a_broken_result_is_said_of_its_run_whose_traces_are_shown(tmp_path):
    trace(write_run(tmp_path, make_result("a")) / "w.pt.trace.json")
    trace(write_run(tmp_path, make_result("b")) / "w.pt.trace.json").with_name("result.json").write_text("{}")
    whole, broken = Runs([("", str(tmp_path))]).latest().values()
    assert (whole.result, whole.problem, broken.result) == (make_result("a"), None, None)
    assert list(broken.traces) == ["w.pt.trace.json"] and "result.json" in broken.problem


def test_what_has_changed_is_read_again(tmp_path):
    write_run(tmp_path, make_result("a"))
    runs = Runs([("", str(tmp_path))])
    before = runs.latest()
    runs._rescan()
    assert runs.latest() is before
    os.utime(write_run(tmp_path, make_result("a", model="another")) / "result.json", (1, 1))
    runs._rescan()
    assert runs.latest()["a"].result.model == "another"


@pytest.mark.parametrize(
    ("logdir", "spec", "roots"),
    [
        ("/logs", "", [("", "/logs")]),
        ("", "", []),
        ("s3://bucket/logs", "", []),
        ("", "a:/one,gs://bucket,b:s3://other,/two", [("a", "/one"), ("4", "/two")]),
    ],
)
def test_remote_log_folders_are_left_out_and_the_others_named_as_by_tensorboard(logdir, spec, roots):
    assert roots_of(SimpleNamespace(logdir=logdir, flags=SimpleNamespace(logdir_spec=spec))) == roots


def test_no_two_runs_have_the_same_name(tmp_path):
    root = tmp_path / "logs"
    for path in (root / "w.pt.trace.json", root / "logs" / "w.pt.trace.json", root / "logs (2)" / "w.pt.trace.json"):
        trace(path)
    found = {folder.name: folder.path for folder in folders_below([("", str(root))])}
    assert found == {"logs": root, "logs (2)": root / "logs", "logs (2) (2)": root / "logs (2)"}


def test_headers_are_read_until_two_ranks_are_known_and_of_64_traces_at_most(tmp_path, monkeypatch):
    opened = []
    open_plain = log_folders.open_plain
    seen = lambda path, **_: opened.append(path.parent.name) or open_plain(path)  # noqa: E731
    monkeypatch.setattr(log_folders, "open_plain", seen)
    header = '{"distributedInfo": {"rank": %s}, "traceEvents": []}' % ("1" * 5000)
    for rank in range(100):
        TraceBuilder(rank=rank).write(trace(tmp_path / "ranks" / f"{rank}.pt.trace.json"))
        trace(tmp_path / "hostile" / f"{rank % 2}.pt.trace.json").write_text(header)
        trace(tmp_path / "spans" / f"w.{10**12 + rank}.pt.trace.json")
    runs = Runs([("", str(tmp_path))]).latest()
    assert {name: run.has_ranks for name, run in runs.items()} == {"hostile": False, "ranks": True, "spans": False}
    assert (opened.count("ranks"), opened.count("spans")) == (2, 64)
