"""Which time is taken for which steps: with a clock made by hand, without torch's profiler or a real training."""

import sys

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook import tasks
from walkthrough_hook.watch import EVALUATION, NEW_EPOCH, Watch


class Report:
    def __init__(self):
        self.values = {}

    def update(self, **values):
        self.values.update(values)

    def is_orphan(self):
        return False


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Dataset:
    """A weak reference to it is possible."""


class Loader:
    batch_size, num_workers, dataset = 32, 0, Dataset()


class Shaped:
    shape = (32, 8)


@pytest.fixture
def timed(monkeypatch):
    """timed(steps, before): the report of that many timed steps of 10 ms; before(watch, number) acts before a step.

    until: the steps after which the program ends by itself.
    """

    def run(steps, before=lambda watch, number: 0.0, warmup=3, until=1000):
        clock, report = Clock(), Report()
        monkeypatch.setattr(tasks, "time", clock)
        monkeypatch.setattr("walkthrough_hook.watch.time", clock)
        task = tasks.Timing({"steps": steps, "go_on": True}, report)
        watch, loader, optimizer = Watch(warmup, task, report), Loader(), Dataset()
        watch.began(loader)
        for number in range(1, until + 1):
            if task.done:
                return report.values
            clock.now += before(watch, number) + 0.01
            watch.batch(watch.entry(loader), Shaped())
            watch.stepped(optimizer)
        assert until < 1000, "it does not end"
        task.end(watch)
        return report.values

    return run


def test_windows_hold_all_steps_and_no_others(timed):
    values = timed(12)
    assert values["steps"] == [2, 2, 3, 2, 3]
    assert values["seconds"] == pytest.approx([0.02, 0.02, 0.03, 0.02, 0.03])
    assert values["samples"] == [64, 64, 96, 64, 96]
    assert values["happenings"] == {}


def test_a_window_in_which_the_program_evaluates_is_measured_again_and_no_other_is_longer(timed):
    def evaluate(watch, number):
        if number % 7:
            return 0.0
        watch.happens(EVALUATION)
        return 5.0

    values = timed(20, evaluate)
    assert values["steps"] == [4] * 5
    assert values["seconds"] == pytest.approx([0.04] * 5)
    assert values["samples"] == [128] * 5
    assert values["happenings"] == {}


def test_an_evaluation_in_every_window_is_timed_in_the_end(timed):
    def evaluate(watch, number):
        watch.happens(EVALUATION if number > 3 and number % 2 else "")
        return 0.0

    values = timed(20, evaluate)
    assert sum(values["steps"]) == 20
    assert values["happenings"][EVALUATION] > 0


def test_the_begin_of_an_epoch_is_part_of_the_time(timed):
    def begin(watch, number):
        if number != 10:
            return 0.0
        watch.happens(NEW_EPOCH)
        return 1.0

    values = timed(10, begin)
    assert sum(values["seconds"]) == pytest.approx(1.1)
    assert values["happenings"] == {NEW_EPOCH: 1}


def test_a_program_that_ends_before_is_timed_in_the_windows_that_are_whole(timed):
    values = timed(50, until=3 + 27)  # of 10 steps each
    assert (values["state"], values["steps"], values["total"]) == ("done", [10, 10], 30)
    assert values["seconds"] == pytest.approx([0.1, 0.1])
    assert values["samples"] == [320, 320]


def test_one_window_is_too_few(timed):
    values = timed(50, until=3 + 19)
    assert (values["state"], values["steps"], values["left"]) == ("measuring", 22, 19)
    values = timed(19, until=3 + 19)
    assert sum(values["steps"]) == 19


def test_steps_before_the_end_of_the_warm_up_are_counted(timed):
    values = timed(50, until=2)
    assert (values["state"], values["steps"], values["left"]) == ("stepping", 2, 0)
