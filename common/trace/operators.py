"""Which operator launched which kernel, and which operator runs inside which."""

import numpy as np


def launches(trace, device_work):
    """For each span of device work the index of the runtime call that launched it (same correlation), else -1."""
    runtime = trace.runtime
    known = np.flatnonzero(runtime.correlation >= 0)
    order = known[np.argsort(runtime.correlation[known], kind="stable")]
    ids = runtime.correlation[order]
    if not len(ids):
        return np.full(len(device_work), -1)
    at = np.searchsorted(ids, device_work.correlation, "right") - 1
    found = (at >= 0) & (ids[at] == device_work.correlation) & (device_work.correlation >= 0)
    return np.where(found, order[at], -1)


def launching_operators(trace, runtime):
    """For each runtime call (indices into `trace.runtime`, -1 for none) the index of the operator that made it, or -1.

    By the profiler's External id, as the profiler plugin does it; where the id names no operator, which happens in
    whole traces, it is the innermost operator that runs on the calling thread when the call begins.
    """
    operators, found = trace.operators, np.full(len(runtime), -1)
    known = np.flatnonzero(operators.external > 0)
    order = known[np.argsort(operators.external[known], kind="stable")]
    ids, made = operators.external[order], runtime >= 0
    wanted = np.where(made, trace.runtime.external[runtime], -1) if len(trace.runtime) else np.full(len(runtime), -1)
    if len(ids):
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        found = np.where((ids[at] == wanted) & (wanted > 0), order[at], -1)
    lost = np.flatnonzero(made & (found < 0))
    if len(lost) and len(operators):
        calls = runtime[lost]
        found[lost] = Nesting(operators).innermost(trace.runtime.thread[calls], trace.runtime.start[calls])
    return found


DEEPEST = 1000  # operators inside each other: more is no nesting but overlap, which no thread of a program has


class Nesting:
    """Operators of a trace, nested by their times on each thread.

    order: indices by thread, then start, then outermost first. `parent` of each operator: an index, -1 at the top.
    """

    def __init__(self, operators):
        self.operators = operators
        self.order = np.lexsort([-operators.end, operators.start, operators.thread])
        self._first = np.searchsorted(operators.thread[self.order], np.arange(operators.thread.max(initial=-1) + 2))
        self._parent = None

    @property
    def parent(self):
        if self._parent is None:
            parent = np.full(len(self.operators), -1)
            thread, end = self.operators.thread.tolist(), self.operators.end.tolist()
            start, open_ones, current = self.operators.start.tolist(), [], None
            for index in self.order.tolist():
                if thread[index] != current:
                    current, open_ones = thread[index], []
                while open_ones and end[open_ones[-1]] <= start[index]:
                    open_ones.pop()
                if open_ones:
                    parent[index] = open_ones[-1]
                open_ones.append(index)
            self._parent = parent
        return self._parent

    def own_time(self):
        """µs that each operator ran without those directly inside it, float64 [operators]."""
        own, inner = self.operators.duration.copy(), self.parent >= 0
        np.subtract.at(own, self.parent[inner], self.operators.duration[inner])
        return np.maximum(own, 0.0)

    def innermost(self, thread, time):
        """Index of the innermost operator on each thread at each time, -1 where none runs. Arrays of equal length."""
        found = np.full(len(time), -1)
        for each in np.unique(thread).tolist():
            if each + 1 >= len(self._first):
                continue
            low, high = self._first[each], self._first[each + 1]
            here = self.order[low:high]
            asked = np.flatnonzero(thread == each)
            at = np.searchsorted(self.operators.start[here], time[asked], "right") - 1
            if len(here):
                found[asked] = np.where(at >= 0, here[at], -1)
        over = np.flatnonzero(found >= 0)
        for _ in range(DEEPEST):
            over = over[self.operators.end[found[over]] <= time[over]]
            found[over] = self.parent[found[over]]
            over = over[found[over] >= 0]
        found[over] = -1
        return found

    def holding(self, marked):
        """For each operator whether one that is `marked` (a mask) runs inside it, itself not counted."""
        inside = np.zeros(len(self.operators), bool)
        counted = np.concatenate([[0], np.cumsum(marked[self.order])])
        for low, high in zip(self._first[:-1], self._first[1:], strict=True):
            here = self.order[low:high]
            until = low + np.searchsorted(self.operators.start[here], self.operators.end[here])
            inside[here] = counted[np.maximum(until, np.arange(low, high) + 1)] > counted[np.arange(low, high) + 1]
        return inside
