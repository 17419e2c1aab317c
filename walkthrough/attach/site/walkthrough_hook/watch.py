"""Finds the training steps of a program: who steps, how often, and what else happens in between."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

NEW_EPOCH, EVALUATION, CHECKPOINT = "new epoch", "evaluation", "checkpoint"
PATIENCE = 3  # times the warm-up, for an optimizer that has not stepped yet
BACKWARDS_WITHOUT_OPTIMIZER = 4  # times the warm-up: then backward passes mark the steps


class Marker:
    """What may mark steps: an optimizer, or the backward passes. times: s, of the end of each of its steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.position = self.longest_pause = 0  # in steps of all markers

    @property
    def count(self) -> int:
        return len(self.times)

    def step(self, position: int) -> None:
        self.times.append(time.perf_counter())
        if self.count <= 2:
            self.longest_pause = 0  # the time before its first step is a pause only as long as there is no other
        self.longest_pause = max(self.longest_pause, position - self.position)
        self.position = position

    def is_alive(self, position: int, warmup: int) -> bool:
        """Whether it goes on: it has not been silent for the warm-up, or for twice its longest pause so far."""
        return position - self.position <= max(2 * self.longest_pause, warmup)


def marker_key(optimizer: Any) -> Any:
    """The same for an optimizer that is made anew, of the same class for the same parameters."""
    groups = getattr(optimizer, "param_groups", None)
    first = groups[0]["params"][0] if groups and groups[0].get("params") else optimizer
    return type(optimizer).__name__, id(first)


class Loader:
    """A DataLoader that was iterated. steps: in how many steps it yielded batches; samples: since the last.

    dataset: its own, or the object's id where there is no weak reference to it. sized: whether each batch had a size.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.settings = _settings(loader)
        dataset = getattr(loader, "dataset", None)
        try:
            self.dataset: Any = weakref.ref(dataset)
        except TypeError:  # a list
            self.dataset = id(dataset)
        self.steps = self.samples = 0
        self.sized, self.yielded = True, False


class Watch:
    """Counts what a training does in this process, and calls its task at the end of each step after the warm-up.

    The leading marker marks the steps: of several optimizers the one that steps least, of those the last in a step. One
    that falls silent is given up: another leads, and the task begins anew.

    task: `begin(watch)` once the warm-up is over, `step(watch)` at the end of each step from then on, `restart()` where
    another marker leads, `end(watch)` when the program ends before the task is done; `done`: it needs no more steps.
    """

    def __init__(self, warmup: int, task: Any, report: Any) -> None:
        self.warmup, self.task, self.report = warmup, task, report
        self.markers: dict[Any, Marker] = {}
        self.constructed: Any = weakref.WeakSet()  # optimizers
        self.loaders: list[Loader] = []
        self.position = self.backwards = self.skipped = self.trained_samples = 0
        self.sized = True  # whether each batch of those had a size
        self.counted = 0  # steps since the leading marker was chosen
        self.epoch_began: float | None = None  # s, in the step that is running
        self.epoch_steps: list[int] = []  # before which an epoch began, counted from the first one
        self.epoch_step_ms: list[float] = []  # from the last step of an epoch to the end of the first of the next one
        self.lead_steps = 0
        self.lead: Marker | None = None
        self.begun = False
        self.warmed = 0  # steps of the leading marker when its warm-up was over
        self.happened: list[str] = []  # since the last step
        self.usual: dict[str, int] = {}  # in how many steps of the warm-up something happened
        self._busy = threading.local()
        self._pid = os.getpid()

    # ------------------------------------------------------------------ what the program does

    def stepped(self, key: Any, name: str) -> None:
        """A marker's step has ended."""
        if self.task.done or getattr(self._busy, "now", False) or os.getpid() != self._pid:
            return
        self._busy.now = True
        try:
            self._stepped(key, name)
        finally:
            self._busy.now = False

    def backward(self) -> None:
        """A backward pass has ended."""
        self.backwards += 1
        optimizers = any(key != "backward" for key in self.markers)
        if not optimizers and self.backwards > BACKWARDS_WITHOUT_OPTIMIZER * self.warmup:
            self.stepped("backward", "backward")

    def began(self, loader: Any) -> None:
        """A DataLoader is iterated anew."""
        entry = self.entry(loader)
        if entry is not None and self.lead is not None:
            trains = self._trains(entry)
            self.happens(NEW_EPOCH if trains else EVALUATION)
            if trains:
                self.epoch_began = time.perf_counter()

    def batch(self, entry: Loader | None, batch: Any) -> None:
        """A DataLoader has yielded a batch."""
        if entry is not None:
            entry.yielded = True
            size = batch_size(batch) or entry.settings["batch_size"]
            entry.samples += size or 0
            entry.sized = entry.sized and bool(size)

    def entry(self, loader: Any) -> Loader | None:
        """What is known of a DataLoader; None for one of which nothing can be."""
        entry = next((entry for entry in self.loaders if entry.loader() is loader), None)
        if entry is None:
            try:
                entry = Loader(loader)
            except Exception:  # of the program's own code, in a property
                return None
            self.loaders.append(entry)
        return entry

    def happens(self, what: str) -> None:
        """Something that not every step does: an evaluation, a checkpoint, a new epoch."""
        if what not in self.happened:
            self.happened.append(what)

    # ------------------------------------------------------------------ what follows from it

    def unusual(self) -> list[str]:
        """What has happened since the last step, but for what half of the warm-up's steps did as well."""
        return [what for what in self.happened if 2 * self.usual.get(what, 0) < self.warmed]

    def untraced_ms(self) -> list[float]:
        """The times of the leading marker's steps in the warm-up but for the first, ms."""
        times = self.lead.times[: self.warmed] if self.lead else []
        return [(b - a) * 1e3 for a, b in zip(times, times[1:])]

    def steps_per_epoch(self) -> int | None:
        """The steps from the last begin of an epoch to the one before, the first of which is with the first step."""
        begins = [1, *self.epoch_steps]
        return begins[-1] - begins[-2] if len(begins) > 1 else None

    def samples(self) -> int | None:
        """Samples that the program has trained on so far; None where no DataLoader says."""
        return self.trained_samples if self.trained_samples and self.sized else None

    def loader_settings(self) -> list[dict[str, Any]]:
        """How each DataLoader that the program trains on was constructed."""
        unique = {tuple(loader.settings.items()): loader.settings for loader in self._training_loaders()}
        return list(unique.values())

    def _stepped(self, key: Any, name: str) -> None:
        if not self.markers:
            self.report.update(state="stepping")
        marker = self.markers.setdefault(key, Marker(name))
        self.position += 1
        marker.step(self.position)
        if not self.begun:
            self.lead = self._leading()
            if marker is not self.lead:
                return
            self._count_loaders()
            most = max(other.count for other in self.markers.values())
            others = any(marker_key(optimizer) not in self.markers for optimizer in self.constructed)
            if (others and most < PATIENCE * self.warmup) or marker.count < self.warmup:
                self._note()
                return
            self.begun, self.warmed = True, marker.count
            self._note()
            self.task.done = self.report.is_orphan()
            if not self.task.done:
                self.task.begin(self)
        elif marker is self.lead:
            self._count_loaders()
            self.task.step(self)
            self.happened = []
        elif self.lead is not None and not self.lead.is_alive(self.position, self.warmup):
            self.lead = self._leading()
            self.warmed, self.counted = self.lead.count, 0
            for loader in self.loaders:
                loader.steps = 0
            self.task.restart()

    def _count_loaders(self) -> None:
        """A step of the leading marker has ended."""
        self.counted += 1
        self.lead_steps += 1
        if self.epoch_began is not None:
            self.epoch_steps.append(self.lead_steps)
            beside = {EVALUATION, CHECKPOINT} & set(self.happened)  # then what ends the epoch before is not timed
            before = self.epoch_began if beside or not self.lead or self.lead.count < 2 else self.lead.times[-2]
            self.epoch_step_ms.append((time.perf_counter() - before) * 1e3)
            self.epoch_began = None
        for loader in self.loaders:
            loader.steps += loader.yielded
            loader.yielded = False
        for loader in self.loaders:
            if self._trains(loader):
                self.trained_samples += loader.samples
                self.sized = self.sized and loader.sized
            loader.samples = 0

    def _training_loaders(self) -> list[Loader]:
        return [loader for loader in self.loaders if self._trains(loader)]

    def _trains(self, loader: Loader) -> bool:
        """Whether a DataLoader, or those of the same data in other epochs, yielded batches in half of the steps.

        One that evaluates yields many, in few steps.
        """
        steps = sum(other.steps for other in self.loaders if other.dataset == loader.dataset)
        return steps > 0 and 2 * steps >= self.counted

    def _note(self) -> None:
        for what in self.happened:
            self.usual[what] = self.usual.get(what, 0) + 1
        self.happened = []

    def _leading(self) -> Marker:
        alive = [marker for marker in self.markers.values() if marker.is_alive(self.position, self.warmup)]
        return min(alive or self.markers.values(), key=lambda marker: (marker.count, -marker.position))


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
