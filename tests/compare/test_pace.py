"""How long a ladder takes: what is said of it, and what `--minutes` lets begin. The clock is a made-up one."""

import argparse
from pathlib import Path

import pytest
from support import make_result

from walkthrough.compare import pace
from walkthrough.compare.pace import Pace, duration
from walkthrough.compare.runner import Outcome
from walkthrough.compare.tour import Schedule

SCRIPTS = [Path("steps/00_a.py"), Path("steps/01_b.py"), Path("steps/02_c.py")]
NAMES = [script.stem for script in SCRIPTS]


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds): let time pass."""
    now = [1000.0]
    monkeypatch.setattr(pace, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


@pytest.fixture
def rounds_made(clock):
    """rounds_made(schedule, seconds per run, …): go through a schedule; the (round, step) of its runs."""

    def run(schedule, seconds):
        order = []
        for number, script in schedule:
            order.append((number, script.stem))
            clock(seconds[script.stem] if isinstance(seconds, dict) else seconds)
            schedule.add(number, make_result(script.stem))
        return order

    return run


@pytest.fixture
def schedule(clock):
    """schedule(limit, minutes, …): a schedule, and the lines that it says."""

    def make(limit, minutes=None, path=None, **more):
        lines = []
        made = Schedule(SCRIPTS, limit, pace=Pace(minutes, lines.append), **more)
        if path:
            made.pace.go_on_from(path)
        return made, lines

    return make


def test_after_the_first_run_it_is_said_how_long_the_rest_takes_and_again_after_each_round(schedule, rounds_made):
    made, lines = schedule(3)
    rounds_made(made, dict(zip(NAMES, (60, 120, 180), strict=True)))
    assert lines == [
        "3 steps x 3 rounds, 8 runs to go: about 8 min; finished runs are kept if it is interrupted",
        "round 1 is over; about 12 min to go",
        "round 2 is over; about 6 min to go",
    ]


def test_the_number_of_rounds_is_an_upper_bound_where_a_goal_may_end_them(schedule, rounds_made):
    made, lines = schedule(3, until=5.0)
    rounds_made(made, 20)
    assert lines[0].startswith("3 steps x at most 3 rounds, 8 runs to go: at most about 3 min; ")
    assert lines[1:] == ["round 1 is over; at most about 2 min to go", "round 2 is over; at most about 1 min to go"]


def test_a_run_that_does_not_fit_any_more_is_not_begun_in_the_first_round(schedule, rounds_made):
    made, lines = schedule(5, minutes=3)
    assert rounds_made(made, 80) == [(1, "00_a"), (1, "01_b")]
    assert "at most 3 min of it now" in lines[0]
    assert lines[1:] == ["--minutes 3: 0 of 5 rounds made; next is 02_c, about 1 min: the same command goes on"]


def test_a_step_that_was_never_run_is_expected_to_take_as_long_as_the_longest(schedule, rounds_made):
    made, _ = schedule(5, minutes=3)
    assert rounds_made(made, {"00_a": 100, "01_b": 10, "02_c": 10}) == [(1, "00_a")]


def test_a_later_round_is_begun_as_a_whole_or_not_at_all(schedule, rounds_made):
    made, lines = schedule(5, minutes=10)
    assert rounds_made(made, 80) == [(number, name) for number in (1, 2) for name in NAMES]
    assert lines[-1] == "--minutes 10: 2 of 5 rounds made; next is round 3, about 4 min: the same command goes on"


def test_a_later_round_that_has_begun_is_finished_even_if_it_becomes_slower(schedule, clock):
    made, _ = schedule(5, minutes=10)
    order = []
    for number, script in made:
        order.append((number, script.stem))
        clock(60 if number == 1 else 400)
        made.add(number, make_result(script.stem))
    assert order == [(number, name) for number in (1, 2) for name in NAMES]


def test_the_rest_of_a_round_that_was_cut_off_counts_as_the_rest(schedule, rounds_made):
    made, _ = schedule(2, minutes=3)
    made.pace.seconds = dict.fromkeys(NAMES, 80.0)
    for number, name in [*((1, name) for name in NAMES), (2, "00_a")]:
        made.add(number, make_result(name))
    assert rounds_made(made, 80) == [(2, "01_b"), (2, "02_c")]


def test_a_round_that_is_too_long_for_any_call_is_made_step_by_step(schedule, rounds_made):
    """As the first one is: otherwise no call with these minutes would ever make a second round."""
    order = []
    made, lines = schedule(3, minutes=3)
    made.pace.seconds = dict.fromkeys(NAMES, 80.0)
    for name in NAMES:
        made.add(1, make_result(name))
    order += rounds_made(made, 80)
    assert lines[-1].endswith("1 of 3 rounds made; next is 02_c of round 2, about 1 min: the same command goes on")
    again, lines = schedule(3, minutes=3)
    again.runs, again.pace.seconds = made.runs, made.pace.seconds
    order += rounds_made(again, 80)
    assert order == [(2, "00_a"), (2, "01_b"), (2, "02_c"), (3, "00_a")]
    assert "2 of 3 rounds made; next is 01_b of round 3" in lines[-1]


def test_a_step_that_never_fits_needs_more_minutes(schedule, rounds_made):
    made, lines = schedule(2, minutes=1)
    made.pace.seconds = dict.fromkeys(NAMES, 80.0)
    for name in NAMES:
        made.add(1, make_result(name))
    assert rounds_made(made, 80) == []
    assert lines == ["--minutes 1: 1 of 2 rounds made; next is 00_a of round 2, about 1 min: that needs more --minutes"]


def test_the_next_call_knows_what_the_runs_of_an_earlier_one_took(schedule, rounds_made, tmp_path):
    path = tmp_path / pace.FILE
    made, _ = schedule(1, path=path)
    rounds_made(made, dict(zip(NAMES, (60, 120, 180), strict=True)))
    made, lines = schedule(1, minutes=1.5, path=path)
    assert rounds_made(made, 60) == [(1, "00_a")]
    assert lines[0].startswith("3 steps x 1 rounds, 3 runs to go: about 6 min, at most 1.5 min of it now;")
    assert lines[1].endswith("next is 01_b, about 2 min: that needs more --minutes")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"00_a": "soon"}', '{"00_a": null}'])
def test_times_that_cannot_be_read_are_measured_anew(schedule, tmp_path, text):
    path = tmp_path / pace.FILE
    path.write_text(text)
    made, _ = schedule(1, path=path)
    assert made.pace.seconds == {}


def test_what_cannot_be_run_here_is_not_counted(schedule, clock):
    made, lines = schedule(2)
    for number, script in made:
        clock(60)
        if script.stem == "00_a":
            made.add_failure("00_a", Outcome(2, "no compiler"))
        else:
            made.add(number, make_result(script.stem))
    assert lines[0].startswith("2 steps x 2 rounds, 3 runs to go: about 3 min;")
    assert made.whole_rounds == 2


def test_a_run_that_fails_at_once_does_not_tell_how_long_the_next_one_takes(schedule, clock):
    made, lines = schedule(2)
    for number, script in made:
        fails = script.stem == "01_b" and number == 1
        clock(1 if fails else 60)
        if fails:
            made.add_failure("01_b", Outcome(1, "it broke"))
        else:
            made.add(number, make_result(script.stem))
    assert lines[1] == "round 1 is over; about 4 min to go"  # its run of round 1, too
    assert made.pace.seconds == dict.fromkeys(NAMES, 60)


def test_without_a_limit_everything_fits(clock):
    pace_ = Pace(seconds={"00_a": 1e9})
    assert pace_.fits(["00_a"])
    assert Pace(minutes=1, seconds={"00_a": 60}).fits(["00_a"])
    assert not Pace(minutes=1, seconds={"00_a": 61}).fits(["00_a"])


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "ten", "", "10081"])
def test_minutes_that_are_none_are_refused(text, capsys):
    parser = argparse.ArgumentParser()
    pace.add_option(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--minutes", text])
    assert "is not a number of minutes above 0, at most 10080" in capsys.readouterr().err


def test_durations_are_in_the_unit_that_suits_them():
    assert [duration(seconds) for seconds in (0.4, 59.4, 60, 1260)] == ["0 s", "59 s", "1 min", "21 min"]
