"""A training that outlives `trace` or `time`: nothing stops it, nothing is written; and how a process knows."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT, run_program

from walkthrough.attach.launch import reports_folder
from walkthrough.results.folder import traces_in

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook.tasks import Report

PROGRAMS = Path(__file__).parent / "programs"
TRAIN = """
import pathlib, sys, time
steps = int(sys.argv[1])
def wait():
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
if not steps:
    wait()
sys.path.insert(0, {programs!r})
import parts, torch
network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for number in range(1, 61):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
    if number == steps:
        wait()
pathlib.Path("trained").touch()
sys.exit(7)
"""


def wait_for(path):
    end = time.monotonic() + 240
    while not (path.exists() and (path.name != "code" or path.read_text())):
        assert time.monotonic() < end, path
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("trace", "not started"),
        ("trace", "attached"),
        ("trace", "measured"),
        ("time", "measured"),
        ("SIGKILL", "attached"),
    ],
)
def test_a_training_goes_on_to_its_end_once_the_command_is_gone(tmp_path, end, state):
    """Of the command that started it; whatever `state` the training is in then."""
    (tmp_path / "train.py").write_text(TRAIN.format(programs=str(PROGRAMS)), encoding="utf-8")
    steps = 7 if state == "measured" else 0  # 4 of warm-up, 1 of the profiler
    first = "touch begun; until test -e go; do sleep 0.05; done;" if state == "not started" else ""
    line = f"{first} '{sys.executable}' train.py {steps}; echo $? > code"
    background = f"( {line} ) </dev/null >/dev/null 2>&1 & until test -e begun; do sleep 0.05; done"
    options = ["-m", "walkthrough", "time" if end == "time" else "trace", "--warmup", "4", "--steps", "10"]
    if end == "SIGKILL":
        command = [sys.executable, *options, "--out", "out", "--", "sh", "-c", line]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
        wait_for(tmp_path / "begun")
        process.kill()
        process.wait()
    else:
        more = ["--versus", "true"] if end == "time" else ["--out", "out"]
        words = ["--", "sh", "-c", background]
        words = [*words, *more] if end == "time" else [*more, *words]
        assert run_program(*options, *words, cwd=tmp_path, PYTHONPATH=ROOT).returncode == 2
    (tmp_path / "go").touch()
    wait_for(tmp_path / "code")
    assert (tmp_path / "code").read_text() == "7\n"
    assert (tmp_path / "trained").exists()
    assert not (tmp_path / "out").exists() or (end == "SIGKILL" and traces_in(tmp_path / "out") == [])


def settings(folder):
    return {"reports": str(folder), "host": socket.gethostname()}


def test_a_process_is_no_orphan_as_long_as_the_lock_is_held(tmp_path):
    with reports_folder(tmp_path) as folder:
        report = Report(settings(folder))
        assert not report.is_orphan()
        report.update(state="torch")
        assert [path.suffix for path in folder.iterdir() if path.name != "lock"] == [".json"]
    assert report.is_orphan()
    report.update(state="stepping")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_host_may_not_show_as_held_is_held(tmp_path):
    (tmp_path / "lock").touch()
    assert Report(settings(tmp_path)).is_orphan()
    assert not Report(settings(tmp_path) | {"host": "another"}).is_orphan()


def test_a_file_system_without_locks_has_no_orphans(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr("fcntl.flock", flock)
    with reports_folder(tmp_path) as folder:
        assert not Report(settings(folder)).is_orphan()
    assert Report(settings(folder)).is_orphan()


def test_a_report_follows_no_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    with reports_folder(tmp_path) as folder:
        report = Report(settings(folder))
        for suffix in ("", ".partial"):
            Path(f"{report.path}{suffix}").symlink_to(victim)
        report.update(state="torch")
        assert not Path(report.path).is_symlink()
        assert folder.stat().st_mode & 0o777 == 0o700  # where the hook writes what is not whole yet
    assert victim.read_text(encoding="utf-8") == "mine"
