"""`time`: two real trainings in rounds, and what follows from given windows."""

import argparse
import itertools
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import assert_golden, assert_refused

from walkthrough.attach import launch, time_command
from walkthrough.attach.time_command import Run, compared

TRAININGS = Path(__file__).parent / "programs" / "trainings.py"
REPORT = {"state": "done", "pid": 1, "steps": [10] * 5, "samples": None, "happenings": {}, "repeated": 0}


@pytest.fixture
def time_(run_command, tmp_path, monkeypatch):
    """time_(*words): the command in this process, in an empty folder, which is empty afterwards."""
    monkeypatch.chdir(tmp_path)
    yield lambda *words: run_command("time", *words)
    assert list(tmp_path.iterdir()) == []


def made(seconds, samples=None, steps=2, **happenings):
    return Run([steps] * len(seconds), list(seconds), samples, happenings, 1)


@pytest.mark.long
def test_two_trainings_are_timed(time_):
    programs = (TRAININGS, "functional", "--versus", sys.executable, TRAININGS, "accumulate")
    finished = time_("--warmup", 3, "--steps", 10, "--rounds", 1, "--json", "--", *programs)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert [result[name] for name in ("rounds", "rounds_asked", "ended", "rounds_needed")] == [1, 1, "all rounds", None]
    assert (result["steps"], result["per"]) == ({"A": 10, "B": 10}, "sample")
    assert result["batch_size"] == {"A": 4.0, "B": 32.0}  # eight batches per step
    assert all(len(speeds) == 1 and min(speeds) > 0 for speeds in result["steps_per_second"].values())
    assert result["ratio"]["low"] <= result["ratio"]["ratio"] <= result["ratio"]["high"]
    assert result["commands"]["A"] == f"{TRAININGS} functional"


class Runs:
    """In place of the runs of two commands: A's speeds are 100 steps/s, B's given; a number less than 0 is a signal."""

    def __init__(self, *speeds):
        self.speeds, self.labels, self.settings = list(speeds), [], None

    def __call__(self, words, settings):
        label, self.settings = words[-1], settings
        self.labels.append(label)
        if label == "B" and not self.speeds:
            raise KeyboardInterrupt
        speed = 100.0 if label == "A" else self.speeds.pop(0)
        signalled = -speed if speed < 0 else 0
        return launch.Outcome(signalled, [REPORT | {"seconds": [10 / abs(speed)] * 5}], signalled=signalled), ""


def run_of(monkeypatch, runs, rounds, *options):
    """(exit code of `time`) of commands A and B."""
    monkeypatch.setattr(time_command, "_run", runs)
    monkeypatch.setattr(time_command, "time", SimpleNamespace(monotonic=itertools.count(step=30).__next__))
    monkeypatch.setattr(time_command, "command_words", list)
    parser = argparse.ArgumentParser()
    time_command.add_options(parser)
    return time_command.run(parser.parse_args([*options, "--rounds", str(rounds), "--", "A", "--versus", "B"]))


def test_it_ends_early_once_the_difference_is_clear_and_prints_the_golden_text(monkeypatch, capsys):
    runs = Runs(120, 121, 120)
    assert run_of(monkeypatch, runs, 5) == 0
    assert runs.labels == ["A", "B", "B", "A", "A", "B"]
    output, errors = capsys.readouterr()
    assert_golden(f"{errors}\n{output}", Path(__file__).parent / "golden" / "time.txt")


@pytest.mark.parametrize(
    ("speeds", "needed"),
    [((110, 90, 105, 97), None), ((110, 92, 108, 97), 266)],
)
def test_it_ends_early_where_the_interval_would_still_include_1_and_says_how_many_rounds_it_takes(
    monkeypatch, capsys, speeds, needed
):
    runs = Runs(*speeds)
    assert run_of(monkeypatch, runs, 5, "--json", "--warmup", "7", "--steps", "9") == 0
    assert (runs.settings["warmup"], runs.settings["steps"]) == (7, 9)
    result = json.loads(capsys.readouterr().out)
    assert (result["rounds"], result["rounds_asked"], result["ended"]) == (4, 5, "unresolvable")
    assert result["rounds_needed"] == needed
    assert run_of(monkeypatch, Runs(*speeds), 5) == 0
    assert f"such a ratio takes {f'about {needed}' if needed else 'more than 1000'} rounds" in capsys.readouterr().out


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
    rounds = max(0, len(speeds) - 1)
    assert errors.splitlines()[-1] == f"walkthrough time: interrupted after {rounds} of 5 rounds"


def test_one_command_is_refused_in_one_line(time_):
    assert_refused(time_("--", "true"), "two commands are needed")


def test_a_command_that_fails_is_shown_with_its_output_and_exit_code(time_):
    failing = [sys.executable, "-c", "print('my words'); raise SystemExit(9)"]
    finished = time_("--rounds", 1, "--", *failing, "--versus", *failing)
    assert finished.returncode == 9
    assert finished.stderr.splitlines()[1] == "my words"
    assert "A was not timed in round 1" in finished.stderr.splitlines()[-1]
    assert "exit code is 9" in finished.stderr.splitlines()[-1]


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
