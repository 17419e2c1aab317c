"""Time as sets of intervals: how much of this is covered by that.

Every breakdown here (step time, idle time, exposed communication) is the growth of such a cover as one role after the
other is added to it, so that the parts always sum to the whole.
"""

import numpy as np


class Cover:
    """The union of intervals [start, end), float64 [N], in any order and overlapping as they like.

    Empty and reversed ones cover nothing. `start` and `end` hold the union, disjoint and in order; `total` its length.
    """

    def __init__(self, start=(), end=()):
        start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
        some = end > start
        if not some.all():
            start, end = start[some], end[some]
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order])
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > reach[:-1]  # nothing before reaches as far as here
        last = np.roll(first, -1)
        self.start, self.end = start[first], reach[last]
        self._before = np.concatenate([[0.0], np.cumsum(self.end - self.start)])

    def __or__(self, other):
        return Cover(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    @property
    def total(self):
        return float(self._before[-1])

    def within(self, start, end):
        """How much of each interval [start, end) is covered; arrays or numbers. 0 where end is before start."""
        return np.maximum(self._until(end) - self._until(start), 0.0)

    def gaps(self, start, end):
        """What this leaves uncovered of the intervals [start, end), as a Cover."""
        whole = Cover(start, end)
        edges = np.concatenate([whole.start, whole.end, self.start, self.end])
        edges.sort()
        low, high = edges[:-1], edges[1:]
        middle = (low + high) / 2
        free = (high > low) & whole.holds(middle) & ~self.holds(middle)
        return Cover(low[free], high[free])

    def holds(self, time):
        """Whether each point in time is covered."""
        at = np.searchsorted(self.start, time, "right") - 1
        return (at >= 0) & (time < np.append(self.end, -np.inf)[at])

    def _until(self, time):
        """How much is covered before `time`."""
        at = np.searchsorted(self.start, time, "right")
        reached = np.where(at > 0, np.minimum(time, np.append(self.end, np.inf)[at - 1]), 0.0)
        begun = np.where(at > 0, np.append(self.start, 0.0)[at - 1], 0.0)
        return self._before[np.maximum(at - 1, 0)] + (reached - begun)


def shares(covers, start, end):
    """How much each cover adds to those before it inside each interval [start, end): float64 [covers, intervals].

    So a moment that two roles cover counts for the first alone; that is how the profiler plugin (overall_parser.py)
    divides a step among its roles.
    """
    added, union, before = [], Cover(), 0.0
    for cover in covers:
        union = union | cover
        now = union.within(start, end)
        added.append(now - before)
        before = now
    return np.array(added)


def integral(start, end, value, low, high, limit):
    """Integral over [low, high) of the sum of `value` over the intervals [start, end), that sum cut off at `limit`."""
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = np.clip(times[order], low, high)
    height = np.clip(np.cumsum(np.concatenate([value, -np.asarray(value)])[order]), 0.0, limit)
    return float(np.sum(np.diff(times) * height[:-1]))
