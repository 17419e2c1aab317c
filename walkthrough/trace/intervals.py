"""Interval arithmetic: how much of one set of time intervals another one covers.

Every breakdown here (step time, idle time, exposed communication) is the growth of a union of intervals as roles are
added one by one, so the parts always sum to the whole.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Cover:
    """The union of intervals [start, end), float64 [N], in any order, overlapping or not.

    Empty and reversed intervals cover nothing. `start` and `end` hold the union, disjoint and sorted.
    """

    def __init__(self, start: "ArrayLike" = (), end: "ArrayLike" = ()) -> None:
        start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
        nonempty = end > start
        if not nonempty.all():
            start, end = start[nonempty], end[nonempty]
        if not (start[1:] > end[:-1]).all():  # else they are disjoint and sorted
            if not (start[1:] >= start[:-1]).all():
                order = np.argsort(start, kind="stable")
                start, end = start[order], end[order]
            reach = np.maximum.accumulate(end)
            first = np.ones(len(start), bool)
            first[1:] = start[1:] > reach[:-1]  # no earlier interval reaches this one
            last = np.ones(len(start), bool)
            last[:-1] = first[1:]
            start, end = start[first], reach[last]
        self.start: np.ndarray = start
        self.end: np.ndarray = end

    def __and__(self, other: "Cover") -> "Cover":
        return self.gaps(other.start, other.end).gaps(other.start, other.end)

    def __or__(self, other: "Cover") -> "Cover":
        return Cover(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    @cached_property
    def _before(self) -> np.ndarray:
        """How much is covered before each interval, and in all."""
        return np.concatenate([[0.0], np.cumsum(self.end - self.start)])

    @property
    def total(self) -> float:
        """The length of the union."""
        return float(self._before[-1])

    def within(self, start: "ArrayLike", end: "ArrayLike") -> np.ndarray:
        """How much of each interval [start, end) is covered; arrays or numbers. 0 where end is before start."""
        return np.maximum(self._until(end) - self._until(start), 0.0)

    def gaps(self, start: "ArrayLike", end: "ArrayLike") -> "Cover":
        """What is not covered of the intervals [start, end)."""
        whole = Cover(start, end)
        edges = np.concatenate([whole.start, whole.end, self.start, self.end])
        edges.sort()
        low, high = edges[:-1], edges[1:]
        middle = (low + high) / 2
        free = (high > low) & whole.holds(middle) & ~self.holds(middle)
        return Cover(low[free], high[free])

    def holds(self, time: "ArrayLike") -> np.ndarray:
        """Whether each point in time is covered."""
        if not len(self.start):
            return np.zeros(np.shape(time), bool)
        at = np.searchsorted(self.start, time, "right") - 1
        return (at >= 0) & (time < self.end[at])

    def _until(self, time: "ArrayLike") -> np.ndarray:
        """How much is covered before `time`."""
        if not len(self.start):
            return np.zeros(np.shape(time))
        time = np.maximum(time, self.start[0])
        at = np.searchsorted(self.start, time, "right") - 1
        return self._before[at] + (np.minimum(time, self.end[at]) - self.start[at])


def shares(covers: Iterable[Cover], start: "ArrayLike", end: "ArrayLike") -> np.ndarray:
    """How much each cover adds to those before it inside each interval [start, end): float64 [covers, intervals].

    A moment that two covers share counts for the first only. The profiler plugin (overall_parser.py) divides a step
    among its roles in the same way.
    """
    added, union, before = [], Cover(), 0.0
    for cover in covers:
        union = union | cover
        now = union.within(start, end)
        added.append(now - before)
        before = now
    return np.array(added)


def integral(
    start: np.ndarray, end: np.ndarray, value: np.ndarray, low: "ArrayLike", high: "ArrayLike", limit: float
) -> np.ndarray:
    """Integral of the sum of `value` over the intervals [start, end), that sum capped at `limit`.

    Over each interval [low, high): arrays or numbers.
    """
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    if not len(times):
        return np.zeros(np.shape(low))
    times = times[order]
    height = np.clip(np.cumsum(np.concatenate([value, -np.asarray(value)])[order]), 0.0, limit)
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * height[:-1])])
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return np.interp(high, times, area) - np.interp(low, times, area)
