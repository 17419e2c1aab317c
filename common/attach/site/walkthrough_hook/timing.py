"""Times training steps, without a profiler: windows of several steps, the GPU synchronised at their edges."""

from __future__ import annotations

import time
from typing import Any

from .task import Task, rank, world_size
from .watch import CHECKPOINT, EVALUATION, Watch

WINDOWS = 5
REPEATS = 20  # windows measured again in one run; more would wait for an end that may not come


class Timing(Task):
    """Times `steps` steps of the leading marker after the warm-up, in `WINDOWS` windows that are as long as can be.

    A window in which the program evaluates or saves is measured again, from there; not with several processes, which
    must all end after the same step. An epoch that begins is part of the time.

    Reports `seconds` and `samples` of each window (samples None where batches have no known size), the `steps` of each,
    and how often something else happened in them: a new epoch, an evaluation, a checkpoint.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        steps, windows = settings["steps"], min(WINDOWS, settings["steps"])
        self.edges = [steps * number // windows for number in range(windows + 1)]  # in steps since the begin
        self.count = self.repeated = 0
        self.marks: list[tuple[float, int | None]] = []  # at each edge: s, samples
        self.happenings: dict[str, int] = {}

    def begin(self, watch: Watch) -> None:
        self.running = True
        self.report.update(state="measuring")
        self._edge(watch)

    def step(self, watch: Watch) -> None:
        if self.finished:
            self.end_program()
            return
        self.count += 1
        unusual = watch.unusual()
        if {EVALUATION, CHECKPOINT} & set(unusual) and self.repeated < REPEATS and world_size() == 1:
            self.repeated += 1
            self.marks.pop()
            self.count = self.edges[len(self.marks)]
            self._edge(watch)
            return
        for what in unusual:
            self.happenings[what] = self.happenings.get(what, 0) + 1
        if self.count in self.edges:
            self._edge(watch)
        if self.count == self.edges[-1]:
            self.running = False
            self._report(watch)
            self.end_program()

    def end(self, watch: Watch) -> None:
        if not self.finished:
            self.report.update(steps=watch.lead.count if watch.lead else 0)

    def _edge(self, watch: Watch) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.marks.append((time.perf_counter(), watch.samples()))

    def _report(self, watch: Watch) -> None:
        pairs = list(zip(self.marks, self.marks[1:]))
        counts = [after[1] - before[1] if after[1] and before[1] else 0 for before, after in pairs]
        self.report.update(
            state="done",
            rank=rank(),
            steps=[b - a for a, b in zip(self.edges, self.edges[1:])],
            seconds=[after[0] - before[0] for before, after in pairs],
            samples=counts if all(counts) else None,
            happenings=self.happenings,
            optimizer=watch.lead.name if watch.lead else None,
        )
