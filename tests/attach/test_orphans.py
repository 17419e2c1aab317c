"""A training that outlives `trace` or `time`: nothing stops it, nothing is written; and how a process knows."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from support import ROOT, start_program, wait_for
from walkthrough_hook.tasks import Report

from walkthrough.attach.launch import reports_folder
from walkthrough.results.folder import traces_in

WAITS = Path(__file__).parent / "programs" / "waits.py"


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_a_training_that_is_measured_goes_on_once_the_command_is_gone(tmp_path, killed):
    line = f"'{sys.executable}' '{WAITS}' 7; echo $? > code"  # waits after 7 steps, of which 4 are of the warm-up
    background = f"( {line} ) </dev/null >/dev/null 2>&1 & until test -s begun; do sleep 0.05; done"
    words = (sys.executable, "-m", "walkthrough", "trace", "--warmup", "4", "--steps", "10", "--out", "out", "--")
    words += ("sh", "-c", line if killed else background)
    process = start_program(*words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_for(tmp_path / "begun")
    if killed:
        process.kill()
    assert process.wait(120) == (-signal.SIGKILL if killed else 2)
    (tmp_path / "go").touch()
    assert wait_for(tmp_path / "code") == "7\n"
    process.communicate()
    assert not (tmp_path / "out").exists() or (killed and traces_in(tmp_path / "out") == [])


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
