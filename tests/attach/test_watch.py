"""Which steps end a training step, what is usual, how long it all takes: by hand-made orders and clocks, no torch."""

import io
import threading
from itertools import pairwise

import pytest
from walkthrough_hook import tasks
from walkthrough_hook import watch as watch_module
from walkthrough_hook.watch import EVALUATION, NEW_EPOCH, TICK, CpuTimes, Watch, batch_size


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
    """Those of one letter have the same shapes. No hash, as in a constructor of the program's own."""

    __hash__ = None

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
    assert [b - a for a, b in pairwise(quiet.ends[-5:])] == [period] * 4


@pytest.mark.parametrize(("constructed", "leads"), [(False, "a"), (True, "b")])
def test_an_optimizer_that_is_there_is_waited_for(constructed, leads):
    watch, quiet = run("aaaaaaab" * 8, constructed=constructed)
    assert letter(watch) == leads
    assert quiet.steps > 0


def test_a_leader_that_falls_silent_is_replaced():
    watch, quiet = run("a" * 6 + "b" * 20, constructed=False)
    assert letter(watch) == "b"
    assert quiet.restarted == 1
    assert quiet.steps >= 10


def test_an_optimizer_is_known_by_identity_as_long_as_it_is_there():
    watch, quiet = watching(2)
    for _ in range(20):
        watch.constructed(optimizer := Optimizer("a"))
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


def made_anew(groups, rounds, warmup=5):
    """Trainings of some rounds one after the other, each of new optimizers that step in turn; all are kept."""
    (watch, quiet), kept = watching(warmup), []
    for letters in groups:
        optimizers = [Optimizer(name) for name in letters]
        kept += optimizers
        for optimizer in optimizers:
            watch.constructed(optimizer)
        for optimizer in optimizers * rounds:
            watch.stepped(optimizer)
    return watch, quiet


@pytest.mark.parametrize(
    ("groups", "rounds", "total", "restarted"),
    [("a" * 30, 4, 120, 0), ("a" * 30, 1, 30, 0), ("abcdefgh", 4, 32, 7), (["aA"] * 10, 3, 30, 0)],
)
def test_optimizers_made_anew_for_the_same_shapes_continue_and_trainings_of_others_count_too(
    groups, rounds, total, restarted
):
    watch, quiet = made_anew(groups, rounds)
    assert (watch.total, watch.warm, quiet.restarted) == (total, True, restarted)
    assert len(watch.markers) == len(groups[0]) if not restarted else letter(watch) == "h"


@pytest.mark.parametrize(
    ("groups", "known"),
    [("ab", [False] + [True] * 9 + [False] * 2 + [True] * 8), ("aa", [False] + [True] * 19)],
)
def test_the_first_steps_of_another_training_are_not_timed(groups, known):
    watch, _ = made_anew(groups, 10, warmup=3)
    assert [step.ms is not None for step in watch.steps] == known


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
    """A weak reference to it is possible; whether two are equal is no truth value, as of tensors."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")


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
    assert [settings["persistent_workers"] for settings in watch.loader_settings()] == [True]


def test_after_eval_a_loader_evaluates():
    watch, _ = watching()
    data = Data()
    epoch(watch, Loader(8, data), 6)
    watch.happens(EVALUATION)
    watch.began(Loader(8, data))
    assert watch.happened == [EVALUATION]


def test_a_loader_that_is_made_anew_in_each_epoch_trains_and_epochs_are_known():
    watch, quiet = watching()
    data = Data()
    for _ in range(3):
        epoch(watch, Loader(8, data), 5)
    assert quiet.unusual[3] == [NEW_EPOCH]
    assert (watch.samples(), watch.steps_per_epoch(), len(watch.epoch_step_ms)) == (15 * 8, 5, 2)
    assert min(watch.epoch_step_ms) >= 0
    epoch(watch, Loader(8, Data()), 1)
    assert [loader.steps for loader in watch.loaders] == [15, 1]


def test_the_loaders_of_trainings_made_anew_train_each():
    watch, _ = watching()
    for _ in range(100):
        epoch(watch, Loader(8, Data()), 4)
    assert (watch.samples(), watch.steps_per_epoch(), len(watch.epoch_step_ms)) == (400 * 8, 4, 99)
    assert [settings["batch_size"] for settings in watch.loader_settings()] == [8]
    assert len(watch.loaders) <= watch_module.LOADERS


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
    assert stretches == [None] * 5 + [2] * 7


def test_backward_passes_mark_only_where_no_optimizer_steps():
    watch, quiet = watching(2)
    for _ in range(20):
        watch.backward()
    assert (quiet.ends, watch.lead.kind) == (list(range(1, 21)), None)
    watch, quiet = watching(2)
    watch.constructed(OPTIMIZER)
    for _ in range(20):
        for _ in range(5):
            watch.backward()
        watch.stepped(OPTIMIZER)
    assert (bool(watch.lead.kind), len(watch.markers), len(watch.steps), quiet.steps) == (True, 1, 20, 19)


def test_backward_passes_inside_an_optimizers_step_mark_only_where_that_does_not_end():
    watch, _ = watching(2)
    for _ in range(4):
        for _ in range(20):
            watch.backward(in_step=True)
        watch.stepped(OPTIMIZER)
    assert (watch.total, watch.backwards) == (4, 80)
    watch, _ = watching(2)
    for _ in range(50):
        watch.backward(in_step=True)
    assert (watch.total, watch.lead.kind) == (20, None)
    watch.stepped(OPTIMIZER)
    watch.stepped(OPTIMIZER)
    assert (watch.total, watch.lead.name) == (2, "Optimizer")


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


class Clock:
    """A report, and in place of `time`."""

    def __init__(self):
        self.now, self.values = 0.0, {}

    def perf_counter(self):
        return self.now

    def update(self, **values):
        self.values.update(values)

    def is_orphan(self):
        return False


@pytest.fixture
def timed(monkeypatch):
    """timed(steps, before): the report of that many timed steps of 10 ms; before(watch, number) acts before a step.

    until: the steps after which the program ends by itself.
    """

    def run(steps, before=lambda watch, number: 0.0, warmup=3, until=1000):
        clock = Clock()
        monkeypatch.setattr(tasks, "time", clock)
        monkeypatch.setattr(watch_module, "time", clock)
        task = tasks.Timing({"steps": steps, "go_on": True}, clock)
        watch, loader = Watch(warmup, task, clock), Loader(32, Data())
        watch.began(loader)
        for number in range(1, until + 1):
            if task.done:
                return clock.values
            clock.now += before(watch, number) + 0.01
            watch.batch(watch.entry(loader), Parameter(32, 8))
            watch.stepped(OPTIMIZER)
        assert until < 1000, "it does not end"
        task.end(watch)
        return clock.values

    return run


def assert_windows(values, steps):
    """These steps are in the windows, of 10 ms and 32 samples each, and no time besides."""
    assert (values["state"], values["steps"]) == ("done", steps)
    assert values["seconds"] == pytest.approx([count / 100 for count in steps])
    assert values["samples"] == [32 * count for count in steps]
    assert values["happenings"] == {}


def test_windows_hold_all_steps_and_no_others(timed):
    assert_windows(timed(12), [2, 2, 3, 2, 3])
    assert_windows(timed(19, until=3 + 19), [3, 4, 4, 4, 4])


def test_a_window_in_which_the_program_evaluates_is_measured_again_and_no_other_is_longer(timed):
    def evaluate(watch, number):
        if number % 7:
            return 0.0
        watch.happens(EVALUATION)
        return 5.0

    assert_windows(timed(20, evaluate), [4] * 5)


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
    assert_windows(values, [10, 10])
    assert values["total"] == 30


@pytest.mark.parametrize(("until", "state", "left"), [(3 + 19, "measuring", 19), (2, "stepping", 0)])
def test_one_window_is_too_few_and_steps_are_counted(timed, until, state, left):
    values = timed(50, until=until)
    assert (values["state"], values["steps"], values["left"]) == (state, until, left)


@pytest.fixture
def files(monkeypatch):
    """What is in /proc, by the end of its path; the clock goes on by 10 s each time."""
    contents, clock = {}, iter(range(0, 100, 10))
    monkeypatch.setattr(watch_module, "open", lambda path: io.StringIO(contents[path]), raising=False)
    monkeypatch.setattr(watch_module.time, "perf_counter", lambda: float(next(clock)))
    return contents


def write(files, computed, waited, own_waited=0.0):
    """Seconds of worker 7 and of this thread since they began."""
    files["/proc/7/stat"] = f"7 (a b) c) S {'0 ' * 10}{int(computed * TICK)} 0 0"
    files["/proc/7/schedstat"] = f"0 {int(waited * 1e9)} 1"
    files["/proc/thread-self/schedstat"] = f"0 {int(own_waited * 1e9)} 1"


@pytest.mark.parametrize(("computed", "waited", "share"), [(1.0, 0.0, 0.1), (1.0, 8.0, 0.9), (9.0, 0.0, 0.9)])
def test_a_worker_that_waits_for_a_core_has_work(files, computed, waited, share):
    times = CpuTimes()
    write(files, 100.0, 50.0)
    times.begin([7])
    write(files, 100.0 + computed, 50.0 + waited, own_waited=2.0)
    times.end()
    assert (times.shares()["workers_cpu"], times.shares()["cpu_waiting"]) == (share, 0.2)


def test_the_waits_of_two_threads_are_no_difference(files):
    times = CpuTimes()
    write(files, 0.0, 0.0, own_waited=5.0)
    times.begin([])
    thread = threading.Thread(target=times.end)
    thread.start()
    thread.join()
    assert times.shares()["cpu_waiting"] is None
