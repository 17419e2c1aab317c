"""The row of each event in its lane: below the events that contain it, so that no two events of a row overlap."""

import numpy as np

EPSILON = 0.0015  # µs: times are given in ns, and a start and a duration are rounded apart
MAX_LEVEL = 99


def levels(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The row of each event, 0 to `MAX_LEVEL`; int64. Sorted by start, outer events first.

    Where all events nest, that is how many others contain each. Where some end inside others, as in a stream whose
    kernels overlap, it is the first free row below those that contain it.
    """
    end = np.maximum(end, start + 2 * EPSILON)
    begun, ended = np.arange(len(start)), np.searchsorted(np.sort(end), start + EPSILON, "right")
    level = np.maximum(begun - ended, 0)
    return _first_free(start, end) if _overlap(start, end, level) else np.minimum(level, MAX_LEVEL)


def _first_free(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    until: list[float] = []  # the end of the last event of each row
    rows = []
    for begin, stop in zip(start.tolist(), end.tolist(), strict=True):
        row = 0
        for above, edge in enumerate(until):
            if edge > begin + EPSILON and edge + EPSILON >= stop:
                row = above + 1
        while row < len(until) and until[row] > begin + EPSILON:
            row += 1
        row = min(row, MAX_LEVEL)
        until += [-np.inf] * (row + 1 - len(until))
        until[row] = max(until[row], stop)
        rows.append(row)
    return np.array(rows, np.int64)


def _overlap(start: np.ndarray, end: np.ndarray, level: np.ndarray) -> bool:
    order = np.argsort(level, kind="stable")
    same = level[order][1:] == level[order][:-1]
    return bool((same & (start[order][1:] + EPSILON < end[order][:-1])).any())
