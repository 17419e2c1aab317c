"""Which runs lie in the log folders: links and hidden folders left out, names in order, several log folders."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.trace_builder import two_steps

from walkthrough.tensorboard.log_folders import Runs, folders_below, roots_of


def trace(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return two_steps().write(path)


def test_runs_are_in_natural_order(tmp_path):
    names = ["run10", "run2", "run1", "b/2", "b/10", "100", "20"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        two_steps().write(tmp_path / name / "w.pt.trace.json")
    found = Runs([("", str(tmp_path))]).latest()
    assert list(found) == ["20", "100", "b/2", "b/10", "run1", "run2", "run10"]


def test_links_are_not_followed_but_the_log_folder_may_be_one(tmp_path):
    secret = trace(tmp_path / "elsewhere" / "secret.pt.trace.json")
    trace(tmp_path / "logs" / "run" / "a.pt.trace.json")
    (tmp_path / "logs" / "run" / "link.pt.trace.json").symlink_to(secret)
    (tmp_path / "logs" / "linked").symlink_to(secret.parent)
    (tmp_path / "also").symlink_to(tmp_path / "logs")
    for root in ("logs", "also"):
        (folder,) = folders_below([("", str(tmp_path / root))])
        assert list(folder.traces) == ["a.pt.trace.json"]
        (run,) = Runs([("", str(tmp_path / root))]).latest().values()
        assert list(run.traces) == ["a.pt.trace.json"]


def test_a_trace_that_vanishes_while_its_folder_is_searched_hides_no_other(tmp_path, monkeypatch):
    for name in ("a", "b"):
        trace(tmp_path / "logs" / "run" / f"{name}.pt.trace.json")
    lstat = os.lstat

    def vanishes(path):
        if str(path).endswith("b.pt.trace.json"):
            Path(path).unlink(missing_ok=True)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", vanishes)
    (run,) = Runs([("", str(tmp_path / "logs"))]).latest().values()
    assert (list(run.traces), len(run.versions)) == (["a.pt.trace.json"], 1)


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
