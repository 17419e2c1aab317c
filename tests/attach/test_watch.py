"""Which steps end a training step, what is usual, how long it all takes: by hand-made orders and clocks, no torch."""

import io
from itertools import pairwise

import pytest
from walkthrough_hook import tasks
from walkthrough_hook import watch as watch_module
from walkthrough_hook.watch import EVALUATION, NEW_EPOCH, TICK, CpuTimes, Watch, batch_size


class Quiet:
    """A report and a task that only count. steps: after the warm-up. ends: the positions at which steps ended."""

    def __init__(self):
        self.done, self.running, self.steps, self.restarted, self.unusual, self.ends = False, False, 0, 0, [], []

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


def run(order, constructed):
    """Steps in this order, of an optimizer for each character: those of "a" and "A" have the same shapes.

    constructed: whether that is seen.
    """
    watch, quiet = watching(4)
    optimizers = {name: Optimizer(name) for name in dict.fromkeys(order)}
    for optimizer in optimizers.values() if constructed else ():
        watch.constructed(optimizer)
    for name in order:
        watch.stepped(optimizers[name])
    return watch, quiet


def letter(watch):
    return chr(watch.lead.kind[2][0][0])


@pytest.mark.parametrize(
    ("order", "constructed", "leads", "period", "restarted"),
    [
        ("ab" * 10, True, "b", 2, 0),  # of two that step equally often, the last in a step
        ("b" + "aaaab" * 10, True, "b", 5, 0),
        ("bbb" + "a" * 20, True, "a", 1, 1),  # b has been silent for longer than it ever was between steps
        ("qqcbcb" * 10, True, "b", 6, 0),  # a round of all: soft actor-critic's critic, actor and temperature
        ("aA" * 10, True, "a", 2, 0),  # twins that alternate are two
        ("aaaaAAAA" * 5, True, "a", 1, 0),  # those that take turns are one: clients that are kept
        ("aaaaaaab" * 8, True, "b", 8, 0),  # one that is there is waited for
        ("aaaaaaab" * 8, False, "a", 8, 0),
        ("a" * 6 + "b" * 20, False, "b", 1, 1),  # a leader that falls silent is replaced
    ],
)
def test_a_step_is_one_round_of_all_optimizers_that_go_on(order, constructed, leads, period, restarted):
    watch, quiet = run(order, constructed)
    assert (letter(watch), watch.warm, quiet.restarted) == (leads, True, restarted)
    assert [b - a for a, b in pairwise(quiet.ends[-5:])] == [period] * 4
    assert quiet.steps >= 5


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


class Iterator:
    """A loader's, which knows what is known of that, but does not keep it."""

    def __init__(self, watch, loader):
        self.entry = watch.began(loader, self)


OPTIMIZER = Optimizer("a")


def train(watch, iterator, steps, batch):
    for _ in range(steps):
        watch.batch(iterator.entry, batch)
        watch.stepped(OPTIMIZER)


def epoch(watch, loader, steps, batch=Parameter(8)):  # noqa: B008  # it is not changed
    train(watch, Iterator(watch, loader), steps, batch)


@pytest.fixture
def evaluate(monkeypatch):
    """evaluate(watch, loader): 40 batches of it, without gradients."""

    def evaluate(watch, loader):
        with monkeypatch.context() as patch:
            patch.setattr(watch_module, "_gradients", lambda: False)
            iterator = Iterator(watch, loader)
            for _ in range(40):
                watch.batch(iterator.entry, Parameter(32))

    return evaluate


@pytest.mark.parametrize("same_data", [False, True])
def test_a_loader_without_gradients_evaluates_even_if_its_data_is_trained_on(evaluate, same_data):
    watch, quiet = watching()
    data = Data()
    loader = Loader(8, data)
    epoch(watch, loader, 6)
    evaluate(watch, Loader(32, data if same_data else Data()))
    watch.stepped(OPTIMIZER)
    assert quiet.unusual[-1] == [EVALUATION]
    epoch(watch, loader, 2)
    assert quiet.unusual[-2] == [NEW_EPOCH]
    assert len(watch.epoch_step_ms) == 1
    assert watch.samples() == 8 * 8
    assert [settings["persistent_workers"] for settings in watch.loader_settings()] == [True]
    watch.happens(EVALUATION)
    Iterator(watch, Loader(8, data))
    assert watch.happened == [EVALUATION]


@pytest.mark.parametrize("batch", [Parameter(8), "text"])  # one whose size does not show has the loader's
@pytest.mark.parametrize(("epochs", "steps", "same_data"), [(3, 5, True), (100, 4, False)])
def test_loaders_made_anew_in_each_epoch_or_training_train_and_epochs_are_known(epochs, steps, same_data, batch):
    (watch, quiet), data = watching(), Data()
    for _ in range(epochs):
        epoch(watch, Loader(8, data if same_data else Data()), steps, batch)
    assert quiet.unusual[steps - 2] == [NEW_EPOCH]
    assert (watch.samples(), watch.steps_per_epoch()) == (8 * epochs * steps, steps)
    assert len(watch.epoch_step_ms) == epochs - 1
    assert min(watch.epoch_step_ms) >= 0
    assert [settings["batch_size"] for settings in watch.loader_settings()] == [8]
    assert [loader.steps for loader in watch.loaders] == ([15] if same_data else [4] * watch_module.LOADERS)


def test_what_every_step_does_is_usual():
    watch, quiet = watching(4)
    for _ in range(8):
        watch.happens(EVALUATION)
        watch.stepped(OPTIMIZER)
    assert quiet.unusual == [[]] * 5


@pytest.mark.parametrize(("in_step", "passes"), [(False, 5), (True, 20)])
def test_backward_passes_mark_only_where_no_optimizer_steps(in_step, passes):
    watch, _ = watching(2)
    watch.constructed(OPTIMIZER)
    for _ in range(4):
        for _ in range(passes):
            watch.backward(in_step)
        watch.stepped(OPTIMIZER)
    assert (watch.total, watch.backwards, watch.lead.name, len(watch.markers)) == (4, 4 * passes, "Optimizer", 1)
    watch, quiet = watching(2)
    for _ in range(50):
        watch.backward(in_step)
    first = 31 if in_step else 1  # inside one step, that does not end, only from then on
    assert (len(quiet.ends), watch.lead.kind) == (50 - first + 1, None)
    watch.stepped(OPTIMIZER)
    watch.stepped(OPTIMIZER)
    assert (watch.total, watch.lead.name) == (2, "Optimizer")


@pytest.mark.parametrize(
    ("batch", "size"), [({"ids": Parameter(6, 9), "mask": Parameter(6, 9)}, 6), (("text", [Parameter(7)]), None)]
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
        iterator = Iterator(watch, loader)
        for number in range(1, until + 1):
            if task.done:
                return clock.values
            clock.now += before(watch, number) + 0.01
            train(watch, iterator, 1, Parameter(32, 8))
        assert until < 1000, "it does not end"
        task.end(watch)
        return clock.values

    return run


@pytest.mark.parametrize(
    ("asked", "until", "windows"),
    [
        (12, 1000, [2, 2, 3, 2, 3]),
        (19, 3 + 19, [3, 4, 4, 4, 4]),
        (50, 3 + 27, [10, 10]),  # a program that ends before is timed in the windows that are whole
    ],
)
@pytest.mark.parametrize("evaluates", [False, True])
def test_windows_hold_all_steps_and_no_others(timed, asked, until, windows, evaluates):
    def evaluate_after_the_warm_up(watch, number):  # the window is measured again, and no other is longer
        if number != 3 + 2 or not evaluates:
            return 0.0
        watch.happens(EVALUATION)
        return 5.0

    values = timed(asked, evaluate_after_the_warm_up, until=until + 2 * evaluates)
    assert (values["state"], values["steps"], values["happenings"]) == ("done", windows, {})
    assert values["seconds"] == pytest.approx([count / 100 for count in windows])
    assert values["samples"] == [32 * count for count in windows]
    assert values["repeated"] == evaluates
    assert values.get("total") == (until + 2 * evaluates if until == 3 + 27 else None)


@pytest.mark.parametrize(
    ("asked", "what", "at", "seconds"),
    [
        (20, EVALUATION, range(5, 1000, 2), 0.0),  # in every window: timed in the end
        (10, NEW_EPOCH, [10], 1.0),  # is part of the time
    ],
)
def test_what_happens_in_the_windows_is_counted(timed, asked, what, at, seconds):
    def happen(watch, number):
        watch.happens(what if number in at else "")
        return seconds * (number in at)

    values = timed(asked, happen)
    assert sum(values["steps"]) == asked
    assert sum(values["seconds"]) == pytest.approx(asked / 100 + seconds)
    assert values["happenings"][what] == (1 if what == NEW_EPOCH else 10)


@pytest.mark.parametrize(("until", "state", "left"), [(3 + 19, "measuring", 19), (2, "stepping", 0)])
def test_one_window_is_too_few_and_steps_are_counted(timed, until, state, left):
    values = timed(50, until=until)
    assert (values["state"], values["steps"], values["left"]) == (state, until, left)


@pytest.mark.parametrize(
    ("computed", "waited", "share"),
    [(1.0, 0.0, 0.1), (1.0, 8.0, 0.9)],  # a worker that waits for a core has work
)
def test_the_cpu_times_of_a_worker_and_the_waits_of_the_training_thread(monkeypatch, computed, waited, share):
    files, clock = {}, iter((0.0, 10.0))
    monkeypatch.setattr(watch_module, "open", lambda path: io.StringIO(files[path]), raising=False)
    monkeypatch.setattr(watch_module.time, "perf_counter", lambda: next(clock))

    def write(computed, waited, own_waited):
        """Seconds of worker 7 and of this thread since they began."""
        files["/proc/7/stat"] = f"7 (a b) c) S {'0 ' * 10}{int(computed * TICK)} 0 0"
        files["/proc/7/schedstat"] = f"0 {int(waited * 1e9)} 1"
        files["/proc/thread-self/schedstat"] = f"0 {int(own_waited * 1e9)} 1"

    times = CpuTimes()
    write(100.0, 50.0, 0.0)
    times.begin([7])
    write(100.0 + computed, 50.0 + waited, 2.0)
    times.end()
    assert (times.shares()["workers_cpu"], times.shares()["cpu_waiting"]) == (share, 0.2)
