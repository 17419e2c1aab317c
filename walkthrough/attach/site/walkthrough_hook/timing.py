"""Times training steps, without a profiler: windows of several steps, the GPU synchronised at their edges."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from .task import Task, rank, world_size
from .watch import CHECKPOINT, EVALUATION, Watch

WINDOWS = 5
REPEATS = 20  # windows measured again in one run; more would wait for an end that may not come


class Window(NamedTuple):
    """steps that took so many seconds together. samples: None where they are not known."""

    steps: int
    seconds: float
    samples: int | None


class Timing(Task):
    """Times `steps` steps of the leading marker after the warm-up, in `WINDOWS` windows that are as long as can be.

    A window in which the program evaluates or saves is measured again, from there; not with several processes, which
    must all end after the same step. An epoch that begins is part of the time, unless the program evaluates before it.

    Reports `seconds` and `samples` of each window (samples None where batches have no known size), the `steps` of each,
    and how often something else happened in them: a new epoch, an evaluation, a checkpoint.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        steps, windows = settings["steps"], min(WINDOWS, settings["steps"])
        edges = [steps * number // windows for number in range(windows + 1)]
        self.lengths = [b - a for a, b in zip(edges, edges[1:])]  # of the windows, in steps
        self.repeated = 0
        self.restart()

    def restart(self) -> None:
        self.windows: list[Window] = []
        self.happenings: dict[str, int] = {}
        self.begun: tuple[float, int | None] | None = None  # of the current window: s, samples
        self.count, self.in_window = 0, []  # steps of it, and what happened in them

    def begin(self, watch: Watch) -> None:
        self.running = True
        self.report.update(state="measuring")
        self._begin_window(watch)

    def step(self, watch: Watch) -> None:
        if self.finished:
            self.end_program()
            return
        if self.begun is None:  # after a restart
            self._begin_window(watch)
            return
        self.count += 1
        unusual = watch.unusual()
        if {EVALUATION, CHECKPOINT} & set(unusual) and self.repeated < REPEATS and world_size() == 1:
            self.repeated += 1
            self._begin_window(watch)
            return
        self.in_window += unusual
        if self.count < self.lengths[len(self.windows)]:
            return
        now, samples = _now(watch)
        begun, samples_before = self.begun
        known = samples is not None and samples_before is not None and samples > samples_before
        self.windows.append(Window(self.count, now - begun, samples - samples_before if known else None))  # type: ignore
        for what in self.in_window:
            self.happenings[what] = self.happenings.get(what, 0) + 1
        if len(self.windows) < len(self.lengths):
            self._begin_window(watch)
            return
        self.running = False
        self._report()
        self.end_program()

    def end(self, watch: Watch) -> None:
        if not self.finished:
            self.report.update(steps=watch.lead.count if watch.lead else 0)

    def _begin_window(self, watch: Watch) -> None:
        self.begun, self.count, self.in_window = _now(watch), 0, []

    def _report(self) -> None:
        samples = [window.samples for window in self.windows]
        self.report.update(
            state="done",
            rank=rank(),
            steps=[window.steps for window in self.windows],
            seconds=[window.seconds for window in self.windows],
            samples=samples if all(samples) else None,
            happenings=self.happenings,
        )


def _now(watch: Watch) -> tuple[float, int | None]:
    """The time, s, once the GPU has done what was launched; and the samples that were trained on."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter(), watch.samples()
