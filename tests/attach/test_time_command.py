"""`time`: two real trainings in rounds, and what follows from given windows."""

import argparse
import errno
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, assert_refused, run_program

from walkthrough.attach import launch, time_command
from walkthrough.attach.time_command import Run, compared
from walkthrough.results.errors import InputError

TRAININGS = Path(__file__).parent / "programs" / "trainings.py"


def time_(*words, cwd=None):
    return run_program("-m", "walkthrough", "time", *words, cwd=cwd, PYTHONPATH=ROOT)


def made(seconds, samples=None, steps=2, **happenings):
    return Run([steps] * len(seconds), list(seconds), samples, happenings, 1)


@pytest.mark.long
def test_two_trainings_are_timed_in_interleaved_rounds(tmp_path):
    programs = (TRAININGS, "plain", "--versus", sys.executable, TRAININGS, "gan")
    finished = time_("--warmup", 3, "--steps", 10, "--rounds", 2, "--json", "--", *programs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert {name: result[name] for name in ("rounds", "rounds_asked", "ended", "rounds_needed", "steps", "per")} == {
        "rounds": 2, "rounds_asked": 2, "ended": "all rounds", "rounds_needed": None, "steps": {"A": 10, "B": 10},
        "per": "sample",
    }  # fmt: skip
    assert result["batch_size"] == {"A": 4.0, "B": 16.0}  # of the generator's steps: four batches each
    assert all(len(speeds) == 2 and min(speeds) > 0 for speeds in result["steps_per_second"].values())
    assert result["ratio"]["low"] <= result["ratio"]["ratio"] <= result["ratio"]["high"]
    assert result["commands"]["A"] == f"{TRAININGS} plain"
    lines = [line.split(":")[0] for line in finished.stderr.splitlines() if not line.startswith("about ")]
    assert lines == ["2 rounds at most, each a run of A and of B", "round 1 of 2", "round 2 of 2"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_program_that_ends_too_soon_is_said_with_numbers_that_work_or_timed_in_the_steps_that_it_makes(tmp_path):
    programs = ("--rounds", 1, "--json", "--", TRAININGS, "accumulate", "--versus", TRAININGS, "few")  # 30 steps, and 3
    finished = time_("--warmup", 5, "--steps", 50, *programs, cwd=tmp_path)
    assert finished.returncode == 2
    assert "training steps: 20 of 50 are timed" in finished.stderr.splitlines()[1]
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("walkthrough time: B was not timed in round 1: it ended after 3 training steps, ")
    assert "of 5 + 50 asked for: give --warmup 1 --steps 2, or train longer" in last
    finished = time_("--warmup", 1, "--steps", 2, *programs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["steps"] == {"A": 2, "B": 2}


class Runs:
    """In place of the runs of two commands: A's speeds are 100 steps/s, B's given; a number less than 0 is a signal."""

    def __init__(self, *speeds):
        self.speeds, self.labels = list(speeds), []

    def __call__(self, words, settings):
        label = words[-1]
        self.labels.append(label)
        speed = 100.0 if label == "A" else self.speeds.pop(0)
        report = {"state": "done", "pid": 1, "steps": [10] * 5, "seconds": [10 / abs(speed)] * 5, "samples": None}
        signalled = -speed if speed < 0 else 0
        return launch.Outcome(signalled, [report | {"happenings": {}, "repeated": 0}], signalled=signalled), ""


def run_of(monkeypatch, runs, rounds, *options):
    """(exit code of `time`) of commands A and B."""
    monkeypatch.setattr(time_command, "_run", runs)
    monkeypatch.setattr(time_command, "command_words", list)
    parser = argparse.ArgumentParser()
    time_command.add_options(parser)
    return time_command.run(parser.parse_args([*options, "--rounds", str(rounds), "--", "A", "--versus", "B"]))


def test_it_ends_early_once_the_difference_is_clear(monkeypatch, capsys):
    runs = Runs(120, 121, 120)
    assert run_of(monkeypatch, runs, 5) == 0
    assert runs.labels == ["A", "B", "B", "A", "A", "B"]
    output, errors = capsys.readouterr()
    assert "ended after 3 of 5 rounds: the difference is clear" in output
    assert errors.splitlines() == [
        "5 rounds at most, each a run of A and of B: 50 steps after 10 of warm-up",
        "round 1 of 5: A 100 steps/s, B 120 steps/s; B is 1.20x as fast",
        "about 0 s more at most: 4 rounds of 2 runs, 0 s each",
        "round 2 of 5: A 100 steps/s, B 121 steps/s; B is 1.20x as fast",
        "round 3 of 5: A 100 steps/s, B 120 steps/s; B is 1.20x (1.19-1.22) as fast",
    ]


@pytest.mark.parametrize(
    ("speeds", "needed", "words"),
    [((110, 90, 105, 97), None, "more than 1000 rounds"), ((110, 92, 108, 97), 266, "about 266 rounds")],
)
def test_it_ends_early_where_the_interval_would_still_include_1_and_says_how_many_rounds_it_takes(
    monkeypatch, capsys, speeds, needed, words
):
    assert run_of(monkeypatch, Runs(*speeds), 5, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rounds"], result["rounds_asked"], result["ended"]) == (4, 5, "unresolvable")
    assert result["rounds_needed"] == needed
    assert run_of(monkeypatch, Runs(*speeds), 5) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("speeds", "code", "words"),
    [
        ((-signal.SIGINT,), 130, None),
        ((120, -signal.SIGTERM), 143, "95 % interval; one round: how runs vary is not in the interval"),
        ((120, 110, -signal.SIGINT), 130, "95 % interval; 2 rounds"),
    ],
)
def test_ctrl_c_shows_the_rounds_that_are_complete(monkeypatch, capsys, speeds, code, words):
    assert run_of(monkeypatch, Runs(*speeds), 5) == code
    output, errors = capsys.readouterr()
    assert words in output if words else output == ""
    rounds = len(speeds) - 1
    assert errors.splitlines()[-1] == f"walkthrough time: interrupted after {rounds} of 5 rounds"


def test_ctrl_c_between_runs_is_one_line(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    assert run_of(monkeypatch, interrupt, 5) == 130
    assert capsys.readouterr().out == ""


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
    assert finished.stderr.splitlines()[1] == "my words"
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
    b = [made([0.5, 0.5], **{"new epoch": 2}), replace(made([1.0, 1.0], **{"new epoch": 1}), repeated=3)]
    result = compared([made([1.0, 1.0]), made([2.0, 2.0])], b)
    assert result["ratio"]["ratio"] == pytest.approx(2.0)
    assert result["ratio"]["resolved"]
    assert (result["per"], result["samples_per_second"]) == ("step", None)
    assert result["steps_per_second"] == {"A": [2.0, 1.0], "B": [4.0, 2.0]}
    assert result["happened"] == {"A": {}, "B": {"new epoch": 3}}
    assert result["timed_again"] == {"A": 0, "B": 3}


def test_batches_of_another_size_are_compared_by_the_sample_where_both_are_known():
    result = compared([made([1.0], [16])] * 2, [made([2.0], [64])] * 2)
    assert result["per"] == "sample"
    assert result["ratio"]["ratio"] == pytest.approx(2.0)
    assert result["batch_size"] == {"A": 8.0, "B": 32.0}
    assert compared([made([1.0])], [made([1.0], [16])])["per"] == "step"


def test_the_ratio_of_one_round_is_that_of_the_speeds_with_the_interval_of_the_windows():
    a, b = made([1.0, 1.0, 1.0, 1.0, 3.0]), made([1.0, 1.1, 1.0, 0.9, 1.0])  # a median window does not see the long one
    result = compared([a], [b])
    speeds = result["steps_per_second"]
    assert result["ratio"]["ratio"] == pytest.approx(speeds["B"][0] / speeds["A"][0]) == pytest.approx(1.4)
    assert result["ratio"]["low"] < 1.4 < result["ratio"]["high"]
    assert result["ratio"]["rounds"] == 1
