"""Finds the training steps of a program: who steps, how often, and what else happens in between."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

NEW_EPOCH, EVALUATION, CHECKPOINT = "new epoch", "evaluation", "checkpoint"
PATIENCE = 3  # times the warm-up, for an optimizer that has not stepped yet
BACKWARDS_WITHOUT_OPTIMIZER = 4  # times the warm-up: then backward passes mark the steps


class Marker:
    """What may mark steps: an optimizer, or the backward passes. times: s, of the end of each of its steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.positions: list[int] = []  # of its steps among those of all markers

    @property
    def count(self) -> int:
        return len(self.times)

    def is_alive(self, position: int, warmup: int) -> bool:
        """Whether it goes on: it has not been silent for the warm-up, or for twice its longest pause so far."""
        pauses = [b - a for a, b in zip(self.positions, self.positions[1:])] or self.positions
        return position - self.positions[-1] <= max(2 * max(pauses), warmup)


class Loader:
    """A DataLoader that was iterated. epochs: how often. steps: in how many steps it yielded batches.

    samples: that it has yielded; sized: whether each of its batches had a size.
    """

    def __init__(self, loader: Any) -> None:
        self.settings = _settings(loader)
        self.epochs = self.steps = self.samples = 0
        self.sized, self.yielded = True, False


class Watch:
    """Counts what a training does in this process, and calls its task at the end of each step after the warm-up.

    The leading marker marks the steps: of several optimizers the one that steps least, of those the last in a step.
    task: `begin(watch)` once the warm-up is over, `step(watch)` at the end of each step from then on, `end(watch)` when
    the program ends before the task is done; `done`: that it needs no more steps.
    """

    def __init__(self, warmup: int, mark: str, task: Any, report: Any) -> None:
        self.warmup, self.mark, self.task, self.report = warmup, mark, task, report
        self.markers: dict[Any, Marker] = {}
        self.constructed: set[Any] = set()  # the keys of optimizers
        self.loaders: dict[int, Loader] = {}
        self.position = self.backwards = self.skipped = 0
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
        late = self.backwards > BACKWARDS_WITHOUT_OPTIMIZER * self.warmup and not optimizers
        if self.mark == "backward" or (self.mark == "auto" and late):
            self.stepped("backward", "backward")

    def began(self, loader: Any) -> None:
        """A DataLoader is iterated anew."""
        entry = self.loaders.setdefault(id(loader), Loader(loader))
        entry.epochs += 1
        if self.lead is not None:
            self.happens(NEW_EPOCH if self._trains(entry) else EVALUATION)

    def batch(self, loader_id: int, size: int | None) -> None:
        """A DataLoader has yielded a batch of so many samples, None where that is not known."""
        loader = self.loaders.get(loader_id)
        if loader is not None:
            loader.yielded = True
            loader.samples += size or 0
            loader.sized = loader.sized and size is not None

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

    def samples(self) -> int | None:
        """Samples that the program has trained on so far; None where no DataLoader says."""
        loaders = self._training_loaders()
        return sum(loader.samples for loader in loaders) if loaders and all(item.sized for item in loaders) else None

    def loader_settings(self) -> list[dict[str, Any]]:
        """Of each DataLoader that the program trains on: its settings, and how often it was begun."""
        return [loader.settings | {"epochs": loader.epochs} for loader in self._training_loaders()]

    def _stepped(self, key: Any, name: str) -> None:
        if not self.markers:
            self.report.update(state="stepping")
        marker = self.markers.setdefault(key, Marker(name))
        self.position += 1
        marker.times.append(time.perf_counter())
        marker.positions.append(self.position)
        if not self.begun:
            self.lead = self._leading()
            if marker is not self.lead:
                return
            self._count_loaders()
            most = max(other.count for other in self.markers.values())
            waits_for_another = self.constructed - set(self.markers) and most < PATIENCE * self.warmup
            if waits_for_another or marker.count < self.warmup:
                self._note()
                return
            self.begun, self.warmed = True, marker.count
            self._note()
            self.task.begin(self)
        elif marker is self.lead:
            self._count_loaders()
            self.task.step(self)
            self.happened = []

    def _count_loaders(self) -> None:
        for loader in self.loaders.values():
            loader.steps += loader.yielded
            loader.yielded = False

    def _training_loaders(self) -> list[Loader]:
        return [loader for loader in self.loaders.values() if loader.epochs and self._trains(loader)]

    def _trains(self, loader: Loader) -> bool:
        """Whether a DataLoader, or those constructed alike in other epochs, yielded batches in half of the steps.

        One that evaluates yields many, in few steps.
        """
        steps = sum(other.steps for other in self.loaders.values() if other.settings == loader.settings)
        return steps > 0 and 2 * steps >= (self.lead.count if self.lead else 0)

    def _note(self) -> None:
        for what in self.happened:
            self.usual[what] = self.usual.get(what, 0) + 1
        self.happened = []

    def _leading(self) -> Marker:
        alive = [marker for marker in self.markers.values() if marker.is_alive(self.position, self.warmup)]
        return min(alive or self.markers.values(), key=lambda marker: (marker.count, -marker.positions[-1]))


def _settings(loader: Any) -> dict[str, Any]:
    def get(name: str) -> Any:
        value = getattr(loader, name, None)
        return value if value is None or isinstance(value, (bool, int)) else None

    batch_size = get("batch_size")
    if batch_size is None:
        batch_size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    try:
        batches = len(loader)
    except Exception:  # of a dataset without a length
        batches = None
    return {
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "num_workers": get("num_workers") or 0,
        "persistent_workers": bool(get("persistent_workers")),
        "pin_memory": bool(get("pin_memory")),
        "prefetch_factor": get("prefetch_factor"),
        "batches": batches,
    }


def batch_size(batch: Any, depth: int = 3) -> int | None:
    """The length of the first tensor in a batch: of a list, a tuple, a dict, or an object with such."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth and isinstance(batch, dict):
        batch = list(batch.values())
    elif depth and hasattr(batch, "data") and isinstance(batch.data, dict):  # transformers' BatchEncoding
        batch = list(batch.data.values())
    if depth and isinstance(batch, (list, tuple)):
        for part in batch:
            size = batch_size(part, depth - 1)
            if size is not None:
                return size
    return None
