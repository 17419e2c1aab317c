"""Finds the training steps of a program: whose step ends one, what else happens in between, how busy the CPU is."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

NEW_EPOCH, EVALUATION, CHECKPOINT = "new epoch", "evaluation", "checkpoint"
PATIENCE = 3  # times the warm-up, for an optimizer that has not stepped yet
BACKWARDS = 3  # passes without a step of the optimizers that there are: then they mark the steps
CLOSURES = 30  # passes inside the first step of an optimizer: more than LBFGS makes in one, unless that is all there is
SURE = 150  # such passes: gradients may be accumulated over so many
TIMED = 3  # steps of the warm-up, in which nothing is used up that was loaded before
FIRST = 2  # steps of another training, which allocate and choose kernels
QUEUED = 50  # batches that are waited for, at most
LOADERS = 16  # that are remembered; a program may make one anew all the time
IN_TURN = 3  # steps one after the other, of an optimizer that another of its kind follows in turn
FEW = 3  # steps of an optimizer: from then on its longest pause tells when it has fallen silent
SILENT = 4  # steps of others, at least
TICK = os.sysconf("SC_CLK_TCK")  # per second, of the times in /proc/<process>/stat


class Marker:
    """What may mark steps: the optimizers of one kind that follow one another, or the backward passes.

    position, longest_pause: of its steps, in steps of all markers. run: its last steps without another in between.
    """

    def __init__(self, name: str, kind: Any = None) -> None:
        self.name, self.kind = name, kind
        self.count = self.position = self.longest_pause = self.run = 0
        self.ended = False  # another was made after its last step
        self.thread = threading.get_ident()  # in which it stepped first

    def step(self, position: int) -> None:
        self.count += 1
        if self.count <= 2:
            self.longest_pause = 0  # the time before its first step is a pause only as long as there is no other
        pause = position - self.position
        self.run = self.run + 1 if pause == 1 else 1
        self.longest_pause = max(self.longest_pause, pause)
        self.position, self.ended = position, False

    def is_alive(self, position: int, warmup: int) -> bool:
        """Whether it goes on: it has not been silent for twice its longest pause, or for the warm-up if that is new."""
        least = SILENT if self.count >= FEW else warmup
        return not self.ended and position - self.position <= max(2 * self.longest_pause, least)


def kind_of(optimizer: Any) -> Any:
    """The same for optimizers of one class whose parameters have the same shapes."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    shapes = [tuple(getattr(parameter, "shape", ())) for parameter in groups[0].get("params") or []]
    return type(optimizer).__name__, len(groups), tuple(shapes)


class ById:
    """Values of objects, as long as these are alive. By `id`: a class of the program's own may have no hash."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}  # a weak reference to the object, and the value

    def __setitem__(self, item: Any, value: Any) -> None:
        number, entries = id(item), self._entries
        entries[number] = weakref.ref(item, lambda _: entries.pop(number, None)), value

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        items = [reference() for reference, _ in list(self._entries.values())]
        return (item for item in items if item is not None)

    def get(self, item: Any, default: Any = None) -> Any:
        reference, value = self._entries.get(id(item), (None, None))
        return value if reference and reference() is item else default


class Loader:
    """A DataLoader that was iterated. steps: in how many steps it yielded batches; samples: since the last.

    dataset: its own, or the object's id where there is no weak reference to it. sized: whether each batch had a size.
    workers: the ids of its worker processes.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.iterator: Any = None  # a weak reference to its last one, which may outlive it
        self.settings = _settings(loader)
        dataset = getattr(loader, "dataset", None)
        try:
            self.dataset: Any = weakref.ref(dataset)
        except TypeError:  # a list
            self.dataset = id(dataset)
        self.steps = self.samples = 0
        self.sized, self.yielded = True, False
        self.workers: list[int] = []

    @property
    def is_gone(self) -> bool:
        """Whether it can yield no more."""
        return self.loader() is None and (self.iterator is None or self.iterator() is None)

    def has_data_of(self, other: Loader) -> bool:
        """Whether both load the same data set: not by `==`, which compares a tensor's or an array's values."""
        mine, others = self.dataset, other.dataset  # an object has one weak reference without a callback
        return mine is others or (isinstance(mine, int) and isinstance(others, int) and mine == others)

    @property
    def queued(self) -> int:
        """How many batches it may have loaded ahead."""
        return self.settings["num_workers"] * (self.settings["prefetch_factor"] or 2)


class Step:
    """A training step that has ended, and what happened in it. ms: None for the first, or where we ran in it too."""

    def __init__(self, ms: float | None, happened: list[str]) -> None:
        self.ms, self.happened = ms, happened


class Watch:
    """Counts what a training does in this process, and calls its task at the end of each step.

    A step is one round of all markers that go on. The leading one ends it: that which steps least, of several the last.
    One that falls silent is given up; then another leads.

    task: `step(watch)` at the end of each step, `happens(watch, what)`, `restart()` where what a step is has changed,
    `end(watch)` when the program ends before the task is done; `done`: it needs no more steps.
    """

    def __init__(self, warmup: int, task: Any, report: Any) -> None:
        self.warmup, self.task, self.report = warmup, task, report
        self.markers: list[Marker] = []
        self.made = ById()  # optimizers, and the position at which they were constructed
        self.loaders: list[Loader] = []
        self.position = self.backwards = self.skipped = self.trained_samples = 0
        self.sized = True  # whether each batch of those had a size
        self.counted = 0  # steps since the leading marker was chosen
        self.total = 0  # steps
        self.steps: list[Step] = []  # those of the same kind so far
        self.timed = 0  # of these, those whose time is known
        self.warm = False  # whether the warm-up is over
        self.recovering = 0  # steps whose batches were loaded during a pause: they do not wait for a slow DataLoader
        self.epoch_began: float | None = None  # s, in the step that is running
        self.epoch_steps: list[int] = []  # before which an epoch began, counted from the first one
        self.epoch_step_ms: list[float] = []  # from the last step of an epoch to the end of the first of the next one
        self.lead: Marker | None = None
        self.happened: list[str] = []  # since the last step
        self.disturbed = False  # whether something of ours ran in this step
        self._usual: dict[str, int] = {}  # in how many of the `_noted` steps of the warm-up something happened
        self._noted = 0
        self._owners = ById()  # optimizers, and their markers
        self._round = -1  # the position at which the last step ended
        self._begin: float | None = None  # s, of the step that is running
        self._busy = threading.Lock()
        self._pid = os.getpid()

    # ------------------------------------------------------------------ what the program does

    def constructed(self, optimizer: Any) -> None:
        """An optimizer is made."""
        self.made[optimizer] = self.position

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step has ended."""
        self._mark(lambda: self._marker_of(optimizer))

    def backward(self, in_step: bool = False) -> None:
        """A backward pass has ended. in_step: inside an optimizer's step, in a closure."""
        if self.task.done:
            return
        self.backwards += 1
        waits = (in_step or len(self.made)) and self.backwards <= (CLOSURES if in_step else BACKWARDS)
        if waits or any(marker.kind for marker in self.markers):
            return
        self._mark(lambda: self.markers[0] if self.markers else self._new(Marker("backward")))

    def steps_of(self, optimizer: Any) -> int:
        """How often an optimizer has stepped, with those that it replaces."""
        marker = self._owners.get(optimizer)
        return marker.count if marker else 0

    def began(self, loader: Any, iterator: Any) -> Loader | None:
        """A DataLoader is iterated anew; returns what is known of it, None for one of which nothing can be."""
        entry = self._entry(loader)
        if entry is None:
            return None
        entry.iterator = weakref.ref(iterator)
        if self.lead is None or self.task.done:
            return entry
        if EVALUATION in self.happened or not _gradients():
            self.happens(EVALUATION)
        elif self._trains(entry) or all(loader.loader() is None for loader in self._training_loaders()):
            self.happens(NEW_EPOCH)
            self.epoch_began = time.perf_counter()
        return entry

    def batch(self, entry: Loader | None, batch: Any, iterator: Any = None) -> None:
        """A DataLoader has yielded a batch."""
        if entry is None or self.task.done or not _gradients():
            return
        entry.yielded = True
        size = batch_size(batch) or entry.settings["batch_size"]
        entry.samples += size or 0
        entry.sized = entry.sized and bool(size)
        if entry.settings["num_workers"]:
            entry.workers = [worker.pid for worker in getattr(iterator, "_workers", [])]

    def _entry(self, loader: Any) -> Loader | None:
        entry = next((entry for entry in self.loaders if entry.loader() is loader), None)
        if entry is None:
            try:
                entry = Loader(loader)
            except Exception:  # of the program's own code, in a property
                return None
            gone = [other for other in self.loaders if other.is_gone]
            for other in [other for other in gone if other.has_data_of(entry)]:  # made anew, for the next epoch
                entry.steps += other.steps
                self.loaders.remove(other)
                gone.remove(other)
            if len(self.loaders) >= LOADERS:
                self.loaders.remove((gone or self.loaders)[0])
            self.loaders.append(entry)
        return entry

    def happens(self, what: str) -> None:
        """Something that not every step does: an evaluation, a checkpoint, a new epoch."""
        if what not in self.happened:
            self.happened.append(what)
            self.task.happens(self, what)

    # ------------------------------------------------------------------ what follows from it

    def left(self) -> int:
        """How many steps there may be until the warm-up is over."""
        left = max(self.warmup - len(self.steps), self.recovering + min(TIMED, self.warmup - 1) - self.timed)
        if self.lead is not None and self.lead.kind is None and len(self.made):
            left = max(left, SURE - self.backwards)
        waits = PATIENCE * self.warmup - len(self.steps)
        return waits if waits > left and self.waits_for_others() else left

    def waits_for_others(self) -> bool:
        """Whether an optimizer of another kind was made and has not stepped yet."""
        waiting = [optimizer for optimizer in self.made if not self.steps_of(optimizer)]
        kinds = {marker.kind for marker in self.markers} if waiting else set()
        return any(kind_of(optimizer) not in kinds for optimizer in waiting)

    def is_usual(self, what: str) -> bool:
        """Whether it happened in half of the warm-up's steps as well."""
        return 2 * self._usual.get(what, 0) >= self._noted > 0

    def unusual(self) -> list[str]:
        """What has happened since the last step, and is not usual."""
        return [what for what in self.happened if not self.is_usual(what)]

    def longest_quiet(self) -> int | None:
        """The most steps between two in which something unusual happened; None where there were no two."""
        loud = [at for at, step in enumerate(self.steps) if any(not self.is_usual(what) for what in step.happened)]
        return max((b - a - 1 for a, b in zip(loud, loud[1:])), default=None)

    def queued(self) -> int:
        """How many batches may be loaded ahead while something takes long."""
        return min(QUEUED, max((loader.queued for loader in self._training_loaders()), default=0))

    def workers(self) -> list[int]:
        """The ids of the processes that load what is trained on."""
        return [worker for loader in self._training_loaders() for worker in loader.workers]

    def steps_per_epoch(self) -> int | None:
        """The steps from the last begin of an epoch to the one before, the first of which is with the first step."""
        begins = [1, *self.epoch_steps]
        return begins[-1] - begins[-2] if len(begins) > 1 else None

    def samples(self) -> int | None:
        """Samples that the program has trained on so far; None where no DataLoader says."""
        return self.trained_samples if self.trained_samples and self.sized else None

    def loader_settings(self) -> list[dict[str, Any]]:
        """How each DataLoader that the program trains on was constructed."""
        used = [loader for loader in self.loaders if loader.steps]
        training = [loader for loader in used if self._trains(loader)] or used
        unique = {tuple(loader.settings.items()): loader.settings for loader in training}
        return list(unique.values())

    # ------------------------------------------------------------------ how steps are found

    def _new(self, marker: Marker) -> Marker:
        self.markers.append(marker)
        return marker

    def _marker_of(self, optimizer: Any) -> Marker:
        """Its marker: that of an optimizer that it replaces, or which it follows in turn; else a new one."""
        known = self._owners.get(optimizer)
        if known is not None:
            return known
        kind, made = kind_of(optimizer), self.made.get(optimizer, -1)
        before = [marker for marker in self.markers if marker.position <= made]  # not stepped since it was made
        alike = [marker for marker in self.markers if marker.kind == kind]
        replaced = [marker for marker in alike if marker in before]
        last = [marker for marker in alike if marker.position == self.position and marker.run >= IN_TURN]
        in_turn = [marker for marker in last if marker.thread == threading.get_ident()]  # else at the same time
        found = min(replaced or in_turn, key=lambda marker: marker.position, default=None)
        if found is None:
            found = self._new(Marker(type(optimizer).__name__, kind))
        for marker in before if found not in before else ():
            marker.ended = True
        self._owners[optimizer] = found
        return found

    def _mark(self, marker_of: Any) -> None:
        """A marker's step has ended."""
        if self.task.done or os.getpid() != self._pid or not self._busy.acquire(blocking=False):
            return  # the latter: inside of ours, or while another thread is
        try:
            self._marked(marker_of())
        finally:
            self._busy.release()

    def _marked(self, marker: Marker) -> None:
        if len(self.markers) == 1 and not marker.count:
            self.report.update(state="stepping")
        self.position += 1
        marker.step(self.position)
        if marker.kind and not all(other.kind for other in self.markers):  # backward passes mark no more
            self.markers, self.warm = [other for other in self.markers if other.kind], False
            self._forget_steps()
        if len(self.markers) == 1 and marker is self.lead:  # as in most programs
            self._round = self.position
            self._step_ends()
            return
        alive = [other for other in self.markers if other.is_alive(self.position, self.warmup)]
        if not self.warm or self.lead not in alive:
            self._choose(min(alive, key=lambda other: (other.count, -other.position)), alive)
        if marker is self.lead and all(other.position > self._round for other in alive):
            self._round = self.position
            self._step_ends()

    def _choose(self, lead: Marker, alive: list[Marker]) -> None:
        """Another marker leads perhaps; where the old one goes on, a step is something else than before."""
        if lead is self.lead:
            return
        if self.lead in alive:
            self._forget_steps()
        elif self.lead is not None:
            for loader in self.loaders:
                loader.steps = 0
            self.task.restart(self)
            self._round, self.disturbed = -1, True  # its first step is from before that was made
            self.recovering = max(self.recovering, FIRST)
        self.lead, self.counted = lead, 0

    def _forget_steps(self) -> None:
        self.total -= len(self.steps)
        self.epoch_steps, self.epoch_step_ms = [], []
        self.steps, self.timed, self._usual, self._noted, self._round, self._begin = [], 0, {}, 0, -1, None

    def _step_ends(self) -> None:
        now = time.perf_counter()
        self._count_loaders(now)
        if not self.warm:
            self._noted += 1
            for what in self.happened:
                self._usual[what] = self._usual.get(what, 0) + 1
        ms = None if self._begin is None else (now - self._begin) * 1e3
        unlike = self.disturbed or self.recovering or self.task.running
        self.steps.append(Step(None if unlike else ms, self.happened))
        self.timed += self.steps[-1].ms is not None
        self.total += 1
        self.recovering = self.queued() if self.total == 1 else max(0, self.recovering - 1)
        self.warm = self.warm or (len(self.steps) >= self.warmup and self.left() <= 0)
        self.task.step(self)
        self.happened, self.disturbed = [], False
        self._begin = time.perf_counter()

    def _count_loaders(self, now: float) -> None:
        """A step has ended."""
        self.counted += 1
        if self.epoch_began is not None:
            self.epoch_steps.append(self.total + 1)
            beside = {EVALUATION, CHECKPOINT} & set(self.happened)  # then what ends the epoch before is not timed
            before = self.epoch_began if beside or self._begin is None else self._begin
            self.epoch_step_ms.append((now - before) * 1e3)
            self.epoch_began = None
        yielded = [loader for loader in self.loaders if loader.yielded]
        for loader in yielded:
            loader.steps += 1
        for loader in [loader for loader in yielded if self._trains(loader)] or yielded:
            self.trained_samples += loader.samples
            self.sized = self.sized and loader.sized
        for loader in self.loaders:
            loader.samples, loader.yielded = 0, False

    def _training_loaders(self) -> list[Loader]:
        return [loader for loader in self.loaders if self._trains(loader)]

    def _trains(self, loader: Loader) -> bool:
        """Whether a DataLoader, or those of the same data in other epochs, yielded batches in half of the steps.

        One that evaluates yields many, in few steps.
        """
        steps = sum(other.steps for other in self.loaders if other.has_data_of(loader))
        return steps > 0 and 2 * steps >= self.counted


def _gradients() -> bool:
    """Whether what is computed now can be differentiated: an evaluation switches that off."""
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()


def _settings(loader: Any) -> dict[str, Any]:
    """How a DataLoader was constructed. Not its length: to ask for that may run the program's own code."""

    def get(owner: Any, name: str) -> Any:
        value = getattr(owner, name, None)
        return value if isinstance(value, (bool, int)) else None

    return {
        "batch_size": get(loader, "batch_size") or get(getattr(loader, "batch_sampler", None), "batch_size"),
        "num_workers": get(loader, "num_workers") or 0,
        "persistent_workers": bool(get(loader, "persistent_workers")),
        "pin_memory": bool(get(loader, "pin_memory")),
        "prefetch_factor": get(loader, "prefetch_factor"),
    }


def batch_size(batch: Any) -> int | None:
    """The length of a batch that is a tensor, or else of the first tensor in it; None where that is further inside."""
    try:
        if hasattr(batch, "data") and isinstance(batch.data, dict):  # transformers' BatchEncoding
            batch = batch.data
        parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else [batch]
        return next((int(part.shape[0]) for part in parts if hasattr(part, "shape")), None)
    except Exception:  # of a batch with attributes of its own
        return None


class CpuTimes:
    """How busy the CPU is in some of the steps: by this process, by its training thread, and by what loads its data.

    Sums over stretches of steps, each between `begin` and `end`, which the training thread calls: where another one
    does, its waits are not known.

    workers: the ids of the processes that load data; those that are there at both ends count.
    """

    def __init__(self) -> None:
        self.wall = self.process = self.running = self.waiting = self.workers = self.workers_wall = 0.0  # s
        self.waits_known = True
        self._begun: tuple[float, float, tuple[float, float] | None, dict[int, float]] | None = None
        self._thread = 0

    def begin(self, workers: list[int]) -> None:
        self._begun, self._thread = _now(workers), threading.get_ident()

    @property
    def begun(self) -> bool:
        """Whether a stretch has begun and not ended."""
        return self._begun is not None

    def end(self) -> None:
        if self._begun is None:
            return
        before, self._begun = self._begun, None
        now = _now(list(before[3]))
        wall = now[0] - before[0]
        self.wall += wall
        self.process += now[1] - before[1]
        known = now[2] is not None and before[2] is not None and self._thread == threading.get_ident()
        self.waits_known = self.waits_known and known
        self.running += (now[2] or (0.0, 0.0))[0] - (before[2] or (0.0, 0.0))[0]
        self.waiting += (now[2] or (0.0, 0.0))[1] - (before[2] or (0.0, 0.0))[1]
        self.workers += sum(seconds - before[3][worker] for worker, seconds in now[3].items())
        self.workers_wall += wall * len(now[3])

    def shares(self) -> dict[str, float | None]:
        """Per s of these steps: CPUs that this process used; how long the thread waited for one, and how long it slept;
        how long a worker had work for one. None where that is not known.
        """
        known = self.wall if self.waits_known else 0.0
        return {
            "cpus_used": _share(self.process, self.wall),
            "cpu_waiting": _share(self.waiting, known),
            "asleep": _share(max(0.0, known - self.running - self.waiting), known),
            "workers_cpu": _share(self.workers, self.workers_wall),
        }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _now(workers: list[int]) -> tuple[float, float, tuple[float, float] | None, dict[int, float]]:
    """Seconds: the clock, this process's CPU time, this thread's and its waits for a CPU, and of each worker both: of
    too many workers for the cores, each computes for little of its time.
    """
    times = {}
    for worker in workers:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{worker}/stat") as file:
            fields = file.read().rpartition(")")[2].split()  # a name may hold spaces
            times[worker] = (int(fields[11]) + int(fields[12])) / TICK + (_scheduled(str(worker)) or (0.0, 0.0))[1]
    return time.perf_counter(), time.process_time(), _scheduled("thread-self"), times


def _scheduled(process: str) -> tuple[float, float] | None:
    """How long a process's main thread, or "thread-self", ran, and could run and had no CPU, s; None where unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/schedstat") as file:
        running, waiting, _ = map(int, file.read().split())
        return running / 1e9, waiting / 1e9
    return None
