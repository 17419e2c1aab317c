"""Which marker leads, and what counts as usual: by hand-made orders of steps, without torch."""

import sys

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook.watch import EVALUATION, NEW_EPOCH, Watch, batch_size, marker_key


class Quiet:
    """A report and a task that only count."""

    def __init__(self):
        self.done, self.begun, self.steps, self.restarted, self.unusual = False, 0, 0, 0, []

    def update(self, **_):
        pass

    def is_orphan(self):
        return False

    def begin(self, _):
        self.begun += 1

    def restart(self):
        self.restarted += 1

    def step(self, watch):
        self.steps += 1
        self.unusual.append(watch.unusual())


def run(order, warmup=4):
    quiet = Quiet()
    watch = Watch(warmup, quiet, quiet)
    for name in order:
        watch.stepped(name, name)
    return watch, quiet


@pytest.mark.parametrize(
    ("order", "leads", "begun_after"),
    [
        ("a" * 10, "a", 4),
        ("ab" * 10, "b", 8),  # of two that step equally often, the last in a step
        ("aaab" * 10, "b", 16),
        ("b" + "aaaab" * 10, "b", 16),
        ("bbb" + "a" * 20, "a", 8),  # b has been silent for longer than it ever was between steps
        (["a"] * 3 + ["b"] + ["a"] * 20, "a", 13),  # b may step every fourth time, until it does not
    ],
)
def test_the_marker_that_steps_least_and_still_does_leads(order, leads, begun_after):
    watch, quiet = run(order)
    assert watch.lead.name == leads
    assert quiet.begun == 1
    assert len(order) - begun_after >= quiet.steps
    early, _ = run(list(order)[: begun_after - 1])
    assert not early.begun


class Optimizer:
    """Its parameter is its name: strings of one letter are the same objects."""

    def __init__(self, name):
        self.param_groups = [{"params": [name]}]


def test_an_optimizer_that_is_there_is_waited_for():
    for constructed, leads in ((set(), "a"), ({"a", "b"}, "b")):
        quiet = Quiet()
        watch = Watch(4, quiet, quiet)
        watch.constructed = [Optimizer(name) for name in constructed]
        for name in "aaaaaaab" * 8:
            watch.stepped(marker_key(Optimizer(name)), name)
        assert watch.lead.name == leads
    assert quiet.begun == 1


def test_a_leader_that_falls_silent_is_replaced():
    watch, quiet = run("a" * 6 + "b" * 20)
    assert watch.lead.name == "b"
    assert quiet.restarted == 1
    assert quiet.steps >= 10


class Data:
    """A weak reference to it is possible."""


class Loader:
    def __init__(self, batch_size, dataset):
        self.batch_size, self.dataset, self.num_workers, self.persistent_workers = batch_size, dataset, 2, True

    def __len__(self):
        raise AssertionError("the program's own code must not run")


class Shaped:
    def __init__(self, *shape):
        self.shape = shape


def epoch(watch, loader, steps, size=8):
    watch.began(loader)
    for _ in range(steps):
        watch.batch(watch.entry(loader), Shaped(size))
        watch.stepped("a", "Adam")


def test_a_new_epoch_is_told_from_an_evaluation_by_who_yielded_in_most_steps():
    quiet = Quiet()
    watch = Watch(3, quiet, quiet)
    train, valid = Loader(8, Data()), Loader(32, Data())
    epoch(watch, train, 6)
    watch.began(valid)
    for _ in range(40):
        watch.batch(watch.entry(valid), Shaped(32))
    epoch(watch, train, 2)
    assert quiet.unusual[3] == [EVALUATION, NEW_EPOCH]
    assert watch.samples() == 8 * 8
    assert len(watch.loader_settings()) == 1
    assert watch.loader_settings()[0]["persistent_workers"] is True


def test_a_loader_that_is_made_anew_in_each_epoch_trains():
    quiet = Quiet()
    watch = Watch(3, quiet, quiet)
    data = Data()
    for _ in range(3):
        epoch(watch, Loader(8, data), 5)
    assert quiet.unusual[2] == [NEW_EPOCH]
    assert watch.samples() == 15 * 8


def test_what_every_step_does_is_usual():
    quiet = Quiet()
    watch = Watch(4, quiet, quiet)
    for _ in range(8):
        watch.happens(EVALUATION)
        watch.stepped("a", "Adam")
    assert quiet.unusual == [[]] * 4


def test_backward_passes_mark_only_where_no_optimizer_steps():
    quiet = Quiet()
    watch = Watch(2, quiet, quiet)
    for _ in range(20):
        watch.backward()
    assert list(watch.markers) == ["backward"]
    both = Watch(2, quiet := Quiet(), quiet)
    for _ in range(20):
        both.backward()
        both.stepped("a", "Adam")
    assert list(both.markers) == ["a"]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Shaped(4, 3), 4),
        ([Shaped(5, 3), Shaped(5)], 5),
        ({"ids": Shaped(6, 9), "mask": Shaped(6, 9)}, 6),
        (("text", [Shaped(7)]), None),  # a list of images, say
        (Shaped(), None),
        ("text", None),
        ([], None),
    ],
)
def test_a_batchs_size_is_its_first_tensors_length(batch, size):
    assert batch_size(batch) == size


def test_the_steps_of_an_epoch_and_what_its_begin_takes_are_known(monkeypatch):
    quiet = Quiet()
    watch = Watch(3, quiet, quiet)
    data = Data()
    for _ in range(3):
        epoch(watch, Loader(8, data), 6)
    assert watch.steps_per_epoch() == 6
    assert len(watch.epoch_step_ms) == 2
    assert all(ms >= 0 for ms in watch.epoch_step_ms)
