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
    assert (result["rounds_asked"], result["ended"], result["rounds_needed"]) == (2, "all rounds", None)
    assert result["steps"] == {"A": 10, "B": 10}
    assert result["per"] == "sample"
    assert result["batch_size"] == {"A": 4.0, "B": 16.0}  # of the generator's steps: four batches each
    assert all(len(speeds) == 2 and min(speeds) > 0 for speeds in result["steps_per_second"].values())
    assert result["ratio"]["low"] <= result["ratio"]["ratio"] <= result["ratio"]["high"]
    assert result["commands"]["A"] == str(PROGRAMS / "plain.py")
    assert [line.split(":")[0] for line in finished.stderr.splitlines()] == [
        "2 rounds at most, each a run of A and of B",
        "round 1 of 2",
        f"about {finished.stderr.partition('about ')[2].partition(' more')[0]} more at most",
        "round 2 of 2",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_an_evaluation_is_not_timed_and_a_program_that_ends_too_soon_is_said_with_numbers_that_work(tmp_path):
    programs = ("--rounds", 1, "--", PROGRAMS / "without_loader.py", "--versus", PROGRAMS / "few.py")
    finished = time_("--warmup", 3, "--steps", 20, *programs, cwd=tmp_path)
    assert finished.returncode == 2
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("walkthrough time: B was not timed in round 1: it ended after 3 training steps, ")
    assert "of 3 + 20 asked for: give --warmup 1 --steps 2, or train longer" in last
    assert "A was not timed" not in finished.stderr
    finished = time_("--warmup", 1, "--steps", 2, *programs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.long
def test_a_program_that_ends_before_all_steps_is_timed_in_those_that_it_makes(tmp_path):
    programs = ("--", PROGRAMS / "accumulate.py", "--versus", PROGRAMS / "accumulate.py")
    finished = time_("--warmup", 5, "--steps", 50, "--rounds", 1, "--json", *programs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["steps"] == {"A": 20, "B": 20}
    assert "training steps: 20 of 50 are timed" in finished.stderr.splitlines()[2]


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
    assert errors.startswith("5 rounds at most, each a run of A and of B: 50 steps after 10 of warm-up\n")
    assert "more at most: 4 rounds of 2 runs, 0 s each" in errors
    assert "round 1 of 5: A 100 steps/s, B 120 steps/s; B is 1.20x as fast" in errors
    assert "round 3 of 5: A 100 steps/s, B 120 steps/s; B is 1.20x (1.19-1.22) as fast" in errors


def test_it_ends_early_where_the_interval_would_still_include_1_and_says_how_many_rounds_it_takes(monkeypatch, capsys):
    assert run_of(monkeypatch, Runs(110, 90, 105, 97), 5, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rounds"], result["rounds_asked"], result["ended"]) == (4, 5, "unresolvable")
    assert result["rounds_needed"] is None  # the ratio is 1.002: more than 1000
    assert run_of(monkeypatch, Runs(110, 92, 108, 97), 5) == 0
    output = capsys.readouterr().out
    assert "the interval includes 1.00; such a ratio takes about 266 rounds" in output
    assert "ended after 4 of 5 rounds: the others would most likely show none either" in output


def test_ctrl_c_shows_the_rounds_that_are_complete(monkeypatch, capsys):
    assert run_of(monkeypatch, Runs(120, 110, -signal.SIGINT), 5) == 130
    output, errors = capsys.readouterr()
    assert "(95 % interval; 2 rounds)" in output
    assert errors.splitlines()[-1] == "walkthrough time: interrupted after 2 of 5 rounds"


def test_ctrl_c_in_the_second_round_says_that_the_interval_is_of_one(monkeypatch, capsys):
    assert run_of(monkeypatch, Runs(120, -signal.SIGTERM), 5) == 143
    assert (
        "B is 1.20x (1.20-1.20) as fast as A, in steps/s (95 % interval; one round: how runs" in capsys.readouterr().out
    )


def test_ctrl_c_in_the_first_round_and_between_runs_is_one_line(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    assert run_of(monkeypatch, Runs(-signal.SIGINT), 5) == run_of(monkeypatch, interrupt, 5) == 130
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("walkthrough time: interrupted after 0 of 5 rounds\n") == 2


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


def test_the_ratio_of_one_round_is_that_of_the_speeds_that_are_shown():
    a, b = made([1.0, 1.0, 1.0, 1.0, 3.0]), made([1.0, 1.1, 1.0, 0.9, 1.0])  # a median window does not see the long one
    result = compared([a], [b])
    speeds = result["steps_per_second"]
    assert result["ratio"]["ratio"] == pytest.approx(speeds["B"][0] / speeds["A"][0]) == pytest.approx(1.4)
    assert result["ratio"]["low"] < 1.4 < result["ratio"]["high"]


def test_windows_that_are_timed_again_are_said():
    a, b = made([1.0] * 5), made([1.0] * 5)
    assert compared([a, a], [b, replace(b, repeated=3)])["timed_again"] == {"A": 0, "B": 3}
