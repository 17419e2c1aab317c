"""A ladder in rounds: the order of its runs, and when `--until` ends them."""

import argparse
import math
from itertools import pairwise
from pathlib import Path

import pytest
from support import make_result

from walkthrough.compare import tour
from walkthrough.compare.runner import Outcome
from walkthrough.results import result
from walkthrough.results.errors import InputError

SCRIPTS = [Path("steps/00_a.py"), Path("steps/01_b.py")]
T = 12.7062  # Student's t, 97.5 %, one degree of freedom: from tables


def parsed(*words, default=1):
    parser = argparse.ArgumentParser()
    tour.add_round_options(parser, "--rounds", default)
    return parser.parse_args(words)


def runs_of(schedule, speeds, needs=None):
    """Go through a schedule; each run has the windows speeds(round, step). Returns the order of the runs.

    needs: {step: what its change needs and this device lacks}.
    """
    order = []
    for number, script in schedule:
        order.append((number, script.stem))
        windows = [speeds(number, script.stem)] * 5
        schedule.add(number, make_result(script.stem, windows=windows, needs=(needs or {}).get(script.stem)))
    return order


def steady(number, step):
    """Rounds that the machine makes faster or slower as a whole: the ratio of the steps stays."""
    return number * (2.0 if step == "01_b" else 1.0)


def drifting(number, step):
    """Every second round is slower for one step only."""
    return 100.0 if step == "00_a" or number % 2 else 50.0


@pytest.mark.parametrize(
    ("words", "limit"),
    [([], 5), (["--rounds", "2"], 2), (["--until", "5"], tour.LIMIT), (["--until", "5", "--rounds", "7"], 7)],
)
def test_rounds_are_as_many_as_asked_for_and_with_a_goal_that_many_at_most(words, limit):
    assert tour.Schedule.of(parsed(*words, default=5), SCRIPTS, default=5).limit == limit


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "101", "five", ""])
def test_a_goal_that_is_no_percentage_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parsed("--until", text)
    assert "is not a percentage" in capsys.readouterr().err


def test_a_goal_may_be_a_fraction_or_have_its_sign():
    assert [parsed("--until", text).until for text in ("2.5", "5%")] == [2.5, 5]


def test_runs_are_interleaved():
    assert runs_of(tour.Schedule(SCRIPTS, limit=3), steady) == [
        (1, "00_a"), (1, "01_b"), (2, "00_a"), (2, "01_b"), (3, "00_a"), (3, "01_b")
    ]  # fmt: skip


def test_runs_that_are_there_already_are_not_made_again():
    schedule = tour.Schedule(SCRIPTS, limit=2)
    schedule.add(1, make_result("00_a"))
    schedule.add(2, make_result("01_b"))
    assert runs_of(schedule, steady) == [(1, "01_b"), (2, "00_a")]


def test_a_step_without_effect_on_this_device_runs_once_and_the_goal_ignores_it(capsys):
    def speeds(number, step):
        return 1.0 if step == "02_c" else steady(number, step)  # run again it would make a wide interval

    schedule = tour.Schedule([*SCRIPTS, Path("steps/02_c.py")], limit=3, until=5)
    order = runs_of(schedule, speeds, needs={"02_c": "a GPU"})
    assert [step for _, step in order] == ["00_a", "01_b", "02_c", "00_a", "01_b", "00_a", "01_b"]
    assert capsys.readouterr().out.splitlines()[-1] == "round 3: widest ±0.0 % (01_b); goal ±5 %"
    assert (schedule.whole_rounds, schedule.to_go()) == (3, [])


def test_a_step_without_effect_runs_again_until_its_trace_holds_kernels():
    schedule = tour.Schedule(SCRIPTS, limit=4)
    schedule.add(1, make_result("01_b", needs="a second process", notes=[result.NO_KERNELS]))
    assert schedule.missing(2) == SCRIPTS
    schedule.add(2, make_result("01_b", needs="a second process"))
    assert schedule.missing(3) == SCRIPTS[:1]


def test_what_cannot_be_run_here_is_not_tried_again_and_what_fails_otherwise_is():
    schedule, order = tour.Schedule(SCRIPTS, limit=2), []
    for number, script in schedule:
        order.append((number, script.stem))
        words = schedule.add_failure(script.stem, Outcome(2 if script.stem == "00_a" else 1, "because"))
        assert words == ("not run" if script.stem == "00_a" else "failed")
    assert order == [(1, "00_a"), (1, "01_b"), (2, "01_b")]
    assert schedule.not_run == {"00_a": "because"}


def test_a_step_that_ran_once_and_then_refuses_has_failed_and_is_tried_again():
    schedule = tour.Schedule(SCRIPTS, limit=2)
    schedule.add(1, make_result("00_a"))
    assert schedule.add_failure("00_a", Outcome(2, "out of memory")) == "failed"
    assert not schedule.not_run


def test_the_rounds_end_as_soon_as_every_interval_is_narrow_but_three_are_made(capsys):
    order = runs_of(tour.Schedule(SCRIPTS, limit=20, until=5), steady)
    assert [number for number, _ in order] == [1, 1, 2, 2, 3, 3]
    assert capsys.readouterr().out.splitlines() == [
        "round 2: widest ±0.0 % (01_b); goal ±5 %",
        "round 3: widest ±0.0 % (01_b); goal ±5 %",
    ]


def test_the_rounds_end_at_the_limit_however_wide_the_intervals_are(capsys):
    order = runs_of(tour.Schedule(SCRIPTS, limit=9, until=5), drifting)
    assert len(order) == 18
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "round 2: widest over ±100 % (01_b); goal ±5 %"
    assert lines[-1].startswith("round 9: widest ±")


def test_rounds_of_an_earlier_call_count_and_are_not_judged_before_they_are_whole(capsys):
    schedule = tour.Schedule(SCRIPTS, limit=20, until=5)
    for number in (1, 2, 3, 4):
        schedule.add(number, make_result("00_a", windows=[steady(number, "00_a")] * 5))
    for number in (1, 2, 3):
        schedule.add(number, make_result("01_b", windows=[steady(number, "01_b")] * 5))
    assert runs_of(schedule, steady) == [(4, "01_b")]
    assert capsys.readouterr().out.splitlines() == ["round 4: widest ±0.0 % (01_b); goal ±5 %"]


def test_a_single_step_has_no_interval_to_wait_for(capsys):
    assert len(runs_of(tour.Schedule(SCRIPTS[:1], limit=20, until=5), drifting)) == tour.FEWEST
    assert capsys.readouterr().out == ""


def test_the_widest_interval_is_over_the_step_before_and_the_baseline():
    def reach(ratios):  # of two pairs
        logarithms = [math.log(ratio) for ratio in ratios]
        return math.exp(T * abs(logarithms[0] - logarithms[1]) / 2) - 1

    speeds = {"00_a": {1: [100], 2: [100]}, "01_b": {1: [100], 2: [101]}, "02_c": {1: [100], 2: [101.5]}}
    assert tour.widest(speeds) == (pytest.approx(reach([1, 1.015]), rel=1e-3), "02_c")  # against the baseline
    speeds["03_d"] = {1: [100], 2: [98]}
    assert tour.widest(speeds) == (pytest.approx(reach([1, 98 / 101.5]), rel=1e-3), "03_d")  # against 02_c
    assert tour.widest({"00_a": {1: [100]}}) == (0.0, "")


def test_more_rounds_of_the_same_kind_make_the_widest_interval_narrower():
    widths = [
        tour.widest({
            step: {number: [drifting(number, step)] for number in range(1, count + 1)} for step in ("00_a", "01_b")
        })[0]
        for count in (2, 4, 8, 16)
    ]  # fmt: skip
    assert all(wide > narrow for wide, narrow in pairwise(widths))


def test_a_goal_with_too_few_rounds_for_it_is_refused():
    with pytest.raises(InputError, match="--until needs 3 rounds at least, not 2"):
        tour.Schedule.of(parsed("--until", "5", "--rounds", "2"), SCRIPTS, default=1)
    assert tour.Schedule.of(parsed("--until", "5", "--rounds", "3"), SCRIPTS, default=1).limit == 3


def test_a_round_is_not_kept_beside_no_trace(tmp_path):
    with pytest.raises(InputError, match="holds no trace"):
        tour.keep(tmp_path, 2, make_result())
