"""The row of each event in its lane, so that no two events of a row overlap."""

import numpy as np

EPSILON = 0.0015  # µs: times are given in ns, and a start and a duration are rounded apart
MAX_LEVEL = 99


def nested(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many other events contain each event, at most `MAX_LEVEL`; int64. Sorted by start, outer events first."""
    end = np.maximum(end, start + 2 * EPSILON)
    begun, ended = np.arange(len(start)), np.searchsorted(np.sort(end), start + EPSILON, "right")
    level = np.maximum(begun - ended, 0)
    if _overlap(start, end, level):  # some event ends inside another one
        stack: list[float] = []
        depths = []
        for begin, stop in zip((start + EPSILON).tolist(), end.tolist(), strict=True):
            while stack and stack[-1] <= begin:
                stack.pop()
            depths.append(len(stack))
            stack.append(stop)
        level = np.array(depths, np.int64)
    return np.minimum(level, MAX_LEVEL)


def stacked(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The first row that is free when each event begins, at most `MAX_LEVEL`; int64. Sorted by start."""
    end = np.maximum(end, start + 2 * EPSILON)
    level = np.zeros(len(start), np.int64)
    if not _overlap(start, end, level):
        return level
    free: list[float] = []  # when each row is
    rows = []
    for begin, stop in zip((start + EPSILON).tolist(), end.tolist(), strict=True):
        row = next((row for row, until in enumerate(free) if until <= begin), len(free))
        if row == len(free) <= MAX_LEVEL:
            free.append(stop)
        row = min(row, MAX_LEVEL)
        free[row] = max(free[row], stop)
        rows.append(row)
    return np.array(rows, np.int64)


def _overlap(start: np.ndarray, end: np.ndarray, level: np.ndarray) -> bool:
    order = np.argsort(level, kind="stable")
    same = level[order][1:] == level[order][:-1]
    return bool((same & (start[order][1:] + EPSILON < end[order][:-1])).any())
