"""Which operator launched which kernel, and which operator runs inside which."""

import numpy as np

from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.intervals import Cover
from walkthrough.trace.ordered import distinct


def launches(trace: Trace, device_work: Spans) -> np.ndarray:
    """The index of the runtime call that launched each span of device work (same correlation), -1 for none."""
    ids, order = trace.calls_by_id
    if not len(ids):
        return np.full(len(device_work), -1)
    at = np.searchsorted(ids, device_work.correlation, "right") - 1
    known = (at >= 0) & (ids[at] == device_work.correlation) & (device_work.correlation >= 0)
    return np.where(known, order[at], -1)


def launched_in(trace: Trace, call: np.ndarray, code: Cover) -> np.ndarray:
    """Whether each call (indices into `trace.runtime`, -1 for none) is made while `code` runs on the CPU; a mask."""
    return code.holds(np.append(trace.runtime.start, -np.inf)[call])


def is_graph_launch(name: str) -> bool:
    """True for the name of a call that launches a CUDA graph: all of its kernels have that call's correlation."""
    return "GraphLaunch" in name


def graph_launched(trace: Trace, runtime: np.ndarray) -> np.ndarray:
    """Whether each runtime call (indices into `trace.runtime`, -1 for none) launches a CUDA graph; a mask."""
    if not len(trace.runtime):
        return np.zeros(len(runtime), bool)
    return (runtime >= 0) & trace.named(trace.runtime, is_graph_launch)[runtime]


def launching_operators(trace: Trace, runtime: np.ndarray) -> np.ndarray:
    """The index of the operator that made each runtime call (indices into `trace.runtime`, -1 for none), or -1.

    By the profiler's External id, as in the profiler plugin. In some traces no id names an operator: then it is the
    innermost operator that runs on the calling thread when the call begins.
    """
    operators, result = trace.operators, np.full(len(runtime), -1)
    known = np.flatnonzero(operators.external > 0)
    order = known[np.argsort(operators.external[known], kind="stable")]
    ids, valid = operators.external[order], runtime >= 0
    wanted = np.where(valid, trace.runtime.external[runtime], -1) if len(trace.runtime) else np.full(len(runtime), -1)
    if len(ids):
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        result = np.where((ids[at] == wanted) & (wanted > 0), order[at], -1)
    missing = np.flatnonzero(valid & (result < 0))
    if len(missing) and len(operators):
        calls = runtime[missing]
        result[missing] = trace.nesting.innermost(trace.runtime.thread[calls], trace.runtime.start[calls])
    return result


MAX_DEPTH = 1000  # of nested operators: more than that is overlap, which no program's thread has


class Nesting:
    """Operators of a trace, nested by their times on each thread.

    order: indices by thread, then start, then outermost first. `parent` of each operator: an index, -1 at the top.
    """

    def __init__(self, operators: Spans) -> None:
        self.operators = operators
        self.order: np.ndarray = np.lexsort([-operators.end, operators.start, operators.thread])
        self._first = np.searchsorted(operators.thread[self.order], np.arange(operators.thread.max(initial=-1) + 2))
        self._parent: np.ndarray | None = None

    @property
    def parent(self) -> np.ndarray:
        """Index of the operator around each operator, -1 for none; int64 [operators]."""
        if self._parent is None:
            parent = np.full(len(self.operators), -1)
            thread, end = self.operators.thread.tolist(), self.operators.end.tolist()
            start, stack, current = self.operators.start.tolist(), [], None
            for index in self.order.tolist():
                if thread[index] != current:
                    current, stack = thread[index], []
                while stack and end[stack[-1]] <= start[index]:
                    stack.pop()
                if stack:
                    parent[index] = stack[-1]
                stack.append(index)
            self._parent = parent
        return self._parent

    def own_time(self) -> np.ndarray:
        """µs of each operator without the operators inside it, float64 [operators]."""
        own, inner = self.operators.duration.copy(), self.parent >= 0
        np.subtract.at(own, self.parent[inner], self.operators.duration[inner])
        return np.maximum(own, 0.0)

    def innermost(self, thread: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Index of the innermost operator on each thread at each time, -1 where none runs. Arrays of equal length."""
        result = np.full(len(time), -1)
        for number in distinct(thread).tolist():
            if number + 1 >= len(self._first):
                continue
            low, high = self._first[number], self._first[number + 1]
            here = self.order[low:high]
            queries = np.flatnonzero(thread == number)
            at = np.searchsorted(self.operators.start[here], time[queries], "right") - 1
            if len(here):
                result[queries] = np.where(at >= 0, here[at], -1)
        ended = np.flatnonzero(result >= 0)  # operators that began before that time, but may have ended before it too
        for _ in range(MAX_DEPTH):
            ended = ended[self.operators.end[result[ended]] <= time[ended]]
            result[ended] = self.parent[result[ended]]
            ended = ended[result[ended] >= 0]
        result[ended] = -1
        return result

    def innermost_during(self, thread: int, cover: Cover) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which operator is innermost on one thread, and when, during `cover`: (index, start, end), sorted by start.

        One operator may have several rows; there is none for the times in which no operator runs.
        """
        own = self.operators.thread == thread
        edges = [self.operators.start[own], self.operators.end[own], cover.start, cover.end]
        times = distinct(np.concatenate(edges))  # between two of them the innermost one does not change
        low, high = times[:-1], times[1:]
        inside = cover.holds((low + high) / 2)
        low, high = low[inside], high[inside]
        innermost = self.innermost(np.full(len(low), thread), (low + high) / 2)
        known = innermost >= 0
        return innermost[known], low[known], high[known]

    def has_descendant(self, marked: np.ndarray) -> np.ndarray:
        """Whether a `marked` operator (a mask) runs inside each operator, the operator itself not counted."""
        inside = np.zeros(len(self.operators), bool)
        counted = np.concatenate([[0], np.cumsum(marked[self.order])])
        for low, high in zip(self._first[:-1], self._first[1:], strict=True):
            here = self.order[low:high]
            until = low + np.searchsorted(self.operators.start[here], self.operators.end[here])
            inside[here] = counted[np.maximum(until, np.arange(low, high) + 1)] > counted[np.arange(low, high) + 1]
        return inside
