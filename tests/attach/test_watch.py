"""Which optimizers' steps end a training step, and what counts as usual: by hand-made orders, without torch."""

import sys
import threading
from itertools import pairwise

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook import watch as watch_module
from walkthrough_hook.watch import EVALUATION, NEW_EPOCH, Watch, batch_size


class Quiet:
    """A report and a task that only count. steps: after the warm-up."""

    def __init__(self):
        self.done, self.running, self.steps, self.restarted, self.unusual = False, False, 0, 0, []
        self.ends = []  # at which positions steps ended

    def update(self, **_):
        pass

    def happens(self, *_):
        pass

    def restart(self, watch):
        self.restarted += 1
        watch.recovering = 0  # as where a profiler is stopped, and nothing is loaded ahead

    def step(self, watch):
        self.ends.append(watch.position)
        if watch.warm:
            self.steps += 1
            self.unusual.append(watch.unusual())


def watching(warmup=3):
    """A `Watch`, and what counts its steps."""
    quiet = Quiet()
    return Watch(warmup, quiet, quiet), quiet


class Parameter:
    def __init__(self, *shape):
        self.shape = shape


class Optimizer:
    """Those of one letter have the same shapes."""

    def __init__(self, letter):
        self.param_groups = [{"params": [Parameter(ord(letter.lower()), 2)]}]


def run(order, warmup=4, constructed=True):
    """Steps in this order, of an optimizer for each character: those of "a" and "A" have the same shapes."""
    watch, quiet = watching(warmup)
    optimizers = {name: Optimizer(name) for name in dict.fromkeys(order)}
    for optimizer in optimizers.values() if constructed else ():
        watch.constructed(optimizer)
    for name in order:
        watch.stepped(optimizers[name])
    return watch, quiet


def letter(watch):
    return chr(watch.lead.kind[2][0][0])


@pytest.mark.parametrize(
    ("order", "leads", "period"),
    [
        ("a" * 20, "a", 1),
        ("ab" * 10, "b", 2),  # of two that step equally often, the last in a step
        ("aaab" * 10, "b", 4),
        ("b" + "aaaab" * 10, "b", 5),
        ("bbb" + "a" * 20, "a", 1),  # b has been silent for longer than it ever was between steps
        ("aaab" + "a" * 20, "a", 1),  # b may step every fourth time, until it does not
        ("qqcbcb" * 10, "b", 6),  # a round of all: soft actor-critic's critic, actor and temperature, at every second
        ("aA" * 10, "a", 2),  # twins that alternate are two
        ("aaaaAAAA" * 5, "a", 1),  # those that take turns are one: clients that are kept
    ],
)
def test_a_step_is_one_round_of_all_optimizers_that_go_on(order, leads, period):
    watch, quiet = run(order)
    assert letter(watch) == leads
    assert watch.warm
    last = quiet.ends[-5:]
    assert [b - a for a, b in pairwise(last)] == [period] * 4


def test_an_optimizer_that_is_there_is_waited_for():
    for constructed, leads in ((False, "a"), (True, "b")):
        watch, quiet = run("aaaaaaab" * 8, constructed=constructed)
        assert letter(watch) == leads
    assert quiet.steps > 0


class WithoutHash(Optimizer):
    __hash__ = None


def test_an_optimizer_is_known_by_identity_as_long_as_it_is_there():
    watch, quiet = watching(2)
    for _ in range(20):
        watch.constructed(optimizer := WithoutHash("a"))
        for _ in range(3):
            watch.stepped(optimizer)
    assert len(quiet.ends) == 60
    assert len(watch.made) == len(list(watch.made)) == 1
    assert watch.steps_of(optimizer) == 60


def test_optimizers_of_two_threads_do_not_follow_in_turn():
    watch, _ = watching(2)
    one, other = Optimizer("a"), Optimizer("a")
    for optimizer in (one, other):
        watch.constructed(optimizer)
    for _ in range(5):
        watch.stepped(one)
    thread = threading.Thread(target=watch.stepped, args=(other,))
    thread.start()
    thread.join()
    assert [marker.count for marker in watch.markers] == [5, 1]


def test_a_leader_that_falls_silent_is_replaced():
    watch, quiet = run("a" * 6 + "b" * 20, constructed=False)
    assert letter(watch) == "b"
    assert quiet.restarted == 1
    assert quiet.steps >= 10


def made_anew(letters, steps, warmup=5):
    """Trainings of some steps one after the other, each with an optimizer of its own; all are kept."""
    quiet, kept = Quiet(), []
    watch = Watch(warmup, quiet, quiet)
    for name in letters:
        kept.append(Optimizer(name))
        watch.constructed(kept[-1])
        for _ in range(steps):
            watch.stepped(kept[-1])
    return watch, quiet


def test_optimizers_made_anew_for_the_same_shapes_continue_one_another():
    watch, quiet = made_anew("a" * 30, 4)
    assert (watch.total, quiet.steps, quiet.restarted) == (120, 116, 0)
    assert len(watch.markers) == 1
    assert made_anew("a" * 30, 1)[0].total == 30


def test_trainings_of_different_shapes_are_all_steps_of_the_warm_up():
    watch, quiet = made_anew("abcdefgh", 4)
    assert watch.total == 32
    assert watch.warm
    assert quiet.restarted == 7


def test_the_first_steps_of_another_training_are_not_timed():
    watch, _ = made_anew("ab", 10, warmup=3)
    known = [step.ms is not None for step in watch.steps]
    assert known == [False] + [True] * 9 + [False] * 2 + [True] * 8
    watch, _ = made_anew("aa", 10, warmup=3)
    assert all(step.ms is not None for step in watch.steps[1:])


def test_a_pair_that_is_made_anew_stays_a_pair():
    quiet, kept = Quiet(), []
    watch = Watch(3, quiet, quiet)
    for _ in range(10):
        pair = [Optimizer("a"), Optimizer("a")]
        kept += pair
        for optimizer in pair:
            watch.constructed(optimizer)
        for _ in range(3):
            for optimizer in pair:
                watch.stepped(optimizer)
    assert len(watch.markers) == 2
    assert quiet.ends[-4:] == [54, 56, 58, 60]


def test_one_that_seemed_to_have_ended_counts_again_when_it_steps():
    watch, quiet = watching()
    first, second = Optimizer("a"), Optimizer("b")
    watch.constructed(first)
    for _ in range(8):  # a pretraining
        watch.stepped(first)
    watch.constructed(second)
    for _ in range(8):
        watch.stepped(second)
        watch.stepped(first)
    assert [b - a for a, b in pairwise(quiet.ends[-4:])] == [2, 2, 2]


class Data:
    """A weak reference to it is possible."""


class Loader:
    def __init__(self, batch_size, dataset):
        self.batch_size, self.dataset, self.num_workers, self.persistent_workers = batch_size, dataset, 0, True

    def __len__(self):
        raise AssertionError("the program's own code must not run")


OPTIMIZER = Optimizer("a")


def epoch(watch, loader, steps, size=8):
    watch.began(loader)
    for _ in range(steps):
        watch.batch(watch.entry(loader), Parameter(size))
        watch.stepped(OPTIMIZER)


@pytest.mark.parametrize("same_data", [False, True])
def test_a_loader_without_gradients_evaluates_even_if_its_data_is_trained_on(monkeypatch, same_data):
    watch, quiet = watching()
    data = Data()
    train, valid = Loader(8, data), Loader(32, data if same_data else Data())
    epoch(watch, train, 6)
    monkeypatch.setattr(watch_module, "_gradients", lambda: False)
    watch.began(valid)
    for _ in range(40):
        watch.batch(watch.entry(valid), Parameter(32))
    monkeypatch.setattr(watch_module, "_gradients", lambda: True)
    watch.stepped(OPTIMIZER)
    assert quiet.unusual[-1] == [EVALUATION]
    epoch(watch, train, 2)
    assert quiet.unusual[-2] == [NEW_EPOCH]
    assert len(watch.epoch_step_ms) == 1
    assert watch.samples() == 8 * 8
    assert len(watch.loader_settings()) == 1
    assert watch.loader_settings()[0]["persistent_workers"] is True


def test_after_eval_a_loader_evaluates():
    watch, _ = watching()
    data = Data()
    epoch(watch, Loader(8, data), 6)
    watch.happens(EVALUATION)
    watch.began(Loader(8, data))
    assert watch.happened == [EVALUATION]


def test_a_loader_that_is_made_anew_in_each_epoch_trains():
    watch, quiet = watching()
    data = Data()
    for _ in range(3):
        epoch(watch, Loader(8, data), 5)
    assert quiet.unusual[3] == [NEW_EPOCH]
    assert watch.samples() == 15 * 8


def test_the_loaders_of_trainings_made_anew_train_each():
    watch, _ = watching()
    for _ in range(100):
        epoch(watch, Loader(8, Data()), 4)
    assert watch.samples() == 400 * 8
    assert (watch.steps_per_epoch(), len(watch.epoch_step_ms)) == (4, 99)
    assert [settings["batch_size"] for settings in watch.loader_settings()] == [8]
    assert len(watch.loaders) <= watch_module.LOADERS


class WithoutTruth(Data):
    def __eq__(self, other):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    __hash__ = None


def test_data_is_the_same_by_identity():
    watch, _ = watching()
    data = WithoutTruth()
    for _ in range(3):
        epoch(watch, Loader(8, data), 5)
    epoch(watch, Loader(8, WithoutTruth()), 1)
    assert [loader.steps for loader in watch.loaders] == [15, 1]


def test_a_long_warm_up_does_not_look_at_all_its_steps_after_each():
    class Counting(list):
        read = 0

        def __iter__(self):
            Counting.read += 1
            return super().__iter__()

    watch, _ = watching(1000)
    watch.steps = Counting()
    epoch(watch, Loader(8, Data()), 100)
    assert (len(watch.steps), watch.timed, Counting.read) == (100, 99, 0)


def test_what_every_step_does_is_usual():
    watch, quiet = watching(4)
    for _ in range(8):
        watch.happens(EVALUATION)
        watch.stepped(OPTIMIZER)
    assert quiet.unusual == [[]] * 5


def test_the_longest_quiet_stretch_is_between_two_unusual_steps():
    watch, _ = watching(9)
    stretches = []
    for number in range(12):
        if number in (2, 5):
            watch.happens(EVALUATION)
        watch.stepped(OPTIMIZER)
        stretches.append(watch.longest_quiet())
    assert stretches[:5] == [None] * 5
    assert stretches[5:] == [2] * 7


def test_backward_passes_mark_only_where_no_optimizer_steps():
    watch, quiet = watching(2)
    for _ in range(20):
        watch.backward()
    assert (quiet.ends, watch.lead.kind) == (list(range(1, 21)), None)
    both = Watch(2, quiet := Quiet(), quiet)
    both.constructed(OPTIMIZER)
    for _ in range(20):
        for _ in range(5):
            both.backward()
        both.stepped(OPTIMIZER)
    assert both.lead.kind
    assert len(both.markers) == 1
    assert len(both.steps) == 20
    assert quiet.steps == 19


def test_backward_passes_inside_an_optimizers_step_do_not_mark():
    watch, _ = watching(2)
    for _ in range(4):
        for _ in range(20):
            watch.backward(in_step=True)
        watch.stepped(OPTIMIZER)
    assert (watch.total, watch.backwards) == (4, 80)


def test_backward_passes_inside_an_optimizers_step_mark_where_that_does_not_end():
    watch, _ = watching(2)
    for _ in range(50):
        watch.backward(in_step=True)
    assert (watch.total, watch.lead.kind) == (20, None)
    watch.stepped(OPTIMIZER)
    watch.stepped(OPTIMIZER)
    assert (watch.total, watch.lead.name) == (2, type(OPTIMIZER).__name__)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Parameter(4, 3), 4),
        ([Parameter(5, 3), Parameter(5)], 5),
        ({"ids": Parameter(6, 9), "mask": Parameter(6, 9)}, 6),
        (("text", [Parameter(7)]), None),  # a list of images, say
        (Parameter(), None),
        ("text", None),
        ([], None),
    ],
)
def test_a_batchs_size_is_its_first_tensors_length(batch, size):
    assert batch_size(batch) == size


def test_the_steps_of_an_epoch_and_what_its_begin_takes_are_known():
    watch, _ = watching()
    data = Data()
    for _ in range(3):
        epoch(watch, Loader(8, data), 6)
    assert watch.steps_per_epoch() == 6
    assert len(watch.epoch_step_ms) == 2
    assert all(ms >= 0 for ms in watch.epoch_step_ms)
