"""`time`: two real trainings in rounds, and what follows from given windows."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from support import ROOT, assert_refused, run_program

from walkthrough.attach import launch, time_command
from walkthrough.attach.time_command import Run, compared
from walkthrough.results.errors import InputError

PROGRAMS = Path(__file__).parent / "programs"


def time_(*words, cwd=None):
    return run_program("-m", "walkthrough", "time", *words, cwd=cwd, PYTHONPATH=ROOT)


def made(seconds, samples=None, steps=2, **happenings):
    return Run([steps] * len(seconds), list(seconds), samples, happenings, 1)


@pytest.mark.long
def test_two_trainings_are_timed_in_interleaved_rounds(tmp_path):
    programs = (PROGRAMS / "plain.py", "--versus", sys.executable, PROGRAMS / "gan.py")
    finished = time_("--warmup", 3, "--steps", 10, "--rounds", 2, "--json", "--", *programs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["rounds"] == 2
    assert result["steps"] == 10
    assert result["per"] == "sample"
    assert result["batch_size"] == {"A": 4.0, "B": 16.0}  # of the generator's steps: four batches each
    assert all(len(speeds) == 2 and min(speeds) > 0 for speeds in result["steps_per_second"].values())
    assert result["ratio"]["low"] <= result["ratio"]["ratio"] <= result["ratio"]["high"]
    assert result["commands"]["A"] == str(PROGRAMS / "plain.py")
    assert finished.stderr.count("round") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_an_evaluation_is_not_timed_and_a_program_that_ends_too_soon_is_said(tmp_path):
    evaluates = PROGRAMS / "without_loader.py"
    words = ("--warmup", 3, "--steps", 20, "--rounds", 1)
    finished = time_(*words, "--", evaluates, "--versus", PROGRAMS / "few.py", cwd=tmp_path)
    assert finished.returncode == 2
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("walkthrough time: B was not timed in round 1: it ended after 3 training steps")
    assert "3 + 20 are needed" in last
    assert "A was not timed" not in finished.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "true"], "two commands are needed"),
        (["--", "true", "--versus"], "no command given"),
        (["--", "true", "--versus", "no-such-command"], "no-such-command"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(tmp_path, words, message):
    assert_refused(time_(*words, cwd=tmp_path), message)


def test_a_command_that_fails_is_shown_with_its_output_and_exit_code(tmp_path):
    failing = [sys.executable, "-c", "print('my words'); raise SystemExit(9)"]
    finished = time_("--rounds", 1, "--", *failing, "--versus", *failing, cwd=tmp_path)
    assert finished.returncode == 9
    assert finished.stderr.splitlines()[0] == "my words"
    assert "A was not timed in round 1" in finished.stderr.splitlines()[-1]
    assert "exit code is 9" in finished.stderr.splitlines()[-1]


def test_a_program_that_could_not_print_on_a_full_disk_is_one_line(monkeypatch):
    def run_out_of_space(*_):
        monkeypatch.setattr(launch, "open_new", full)
        return launch.Outcome(1, [])

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(time_command, "run_attached", run_out_of_space)
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device; free some space there"):
        time_command._run(["true"], {})


def test_the_ratio_is_of_pairs_of_rounds():
    result = compared([made([1.0, 1.0]), made([2.0, 2.0])], [made([0.5, 0.5]), made([1.0, 1.0])])
    assert result["ratio"]["ratio"] == pytest.approx(2.0)
    assert result["ratio"]["resolved"]
    assert result["per"] == "step"
    assert result["samples_per_second"] is None
    assert result["steps_per_second"] == {"A": [2.0, 1.0], "B": [4.0, 2.0]}


def test_batches_of_another_size_are_compared_by_the_sample():
    result = compared([made([1.0], [16])] * 2, [made([2.0], [64])] * 2)
    assert result["per"] == "sample"
    assert result["ratio"]["ratio"] == pytest.approx(2.0)
    assert result["batch_size"] == {"A": 8.0, "B": 32.0}


def test_where_one_batch_size_is_unknown_steps_are_compared():
    assert compared([made([1.0])], [made([1.0], [16])])["per"] == "step"


def test_of_one_round_the_windows_give_the_interval():
    result = compared([made([1.0, 1.1, 0.9, 1.0, 1.0])], [made([0.5, 0.55, 0.45, 0.5, 0.5])])
    assert result["ratio"]["rounds"] == 1
    assert result["ratio"]["low"] < 2.0 < result["ratio"]["high"]


def test_what_else_happened_is_counted_over_all_rounds():
    result = compared([made([1.0], **{"new epoch": 2})] * 2, [made([1.0])] * 2)
    assert result["happened"] == {"A": {"new epoch": 4}, "B": {}}
