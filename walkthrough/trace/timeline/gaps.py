"""The stretches in which a GPU runs no kernel, as events: named by their main cause, with what ran meanwhile."""

from collections.abc import Sequence

import numpy as np

from walkthrough.trace.columns import Nesting, Spans, Trace, distinct
from walkthrough.trace.idle import CAUSES, Idle
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import plain_name
from walkthrough.trace.steps import is_step

Facts = dict[str, str | float]
LONG = 20.0  # µs: of shorter gaps, what ran meanwhile is not looked for
MOST = 5_000  # gaps in which it is, the longest
LEAST = 0.05  # µs of a cause that is shown


def gap_causes(idle: Idle) -> np.ndarray:
    """The main cause of each gap, an index into `CAUSES`; int64 [gaps]."""
    return idle.by_gap.argmax(axis=0) if len(idle.start) else np.zeros(0, np.int64)


def gap_facts(trace: Trace, idle: Idle, gaps: np.ndarray, threads: Sequence[int]) -> list[Facts]:
    """Of some gaps (their indices): µs by cause, and the operator and the Python function that ran longest inside.

    threads: whose operators and functions; of two threads, those that ran longer.
    """
    rows = idle.by_gap[:, gaps]
    facts: list[Facts] = []
    for us in rows.T.tolist():
        shown = sorted(((value, name) for value, name in zip(us, CAUSES, strict=True) if value > LEAST), reverse=True)
        facts.append({name: f"{value:.1f} µs" for value, name in shown})
    length = idle.end[gaps] - idle.start[gaps]
    long = np.flatnonzero(length >= LONG)
    long = np.sort(long[np.argsort(-length[long], kind="stable")[:MOST]])
    if not len(long):
        return facts
    start, end = idle.start[gaps[long]], idle.end[gaps[long]]
    operators = trace.operators.where(~trace.named(trace.operators, is_step))
    for label, spans in (("operator", operators), ("Python", trace.python)):
        names = _longest_inside(spans, start, end, threads)
        for gap, name in zip(long.tolist(), names.tolist(), strict=True):
            if name >= 0:
                facts[gap][label] = plain_name(trace.names[name])[:400]
    return facts


def _longest_inside(spans: Spans, start: np.ndarray, end: np.ndarray, threads: Sequence[int]) -> np.ndarray:
    """The name of what was innermost for longest inside each of the intervals, disjoint and sorted; -1 for nothing."""
    best, name = np.zeros(len(start)), np.full(len(start), -1)
    near = spans.where(np.isin(spans.thread, threads) & (spans.start < end[-1]) & (spans.end > start[0]))
    nesting = Nesting(near)
    for thread in distinct(near.thread).tolist():
        innermost, low, high = nesting.innermost_during(thread, Cover(start, end))
        gap = np.searchsorted(start, low, "right") - 1
        width = int(near.name.max()) + 1
        keys, index = np.unique(gap * width + near.name[innermost], return_inverse=True)
        us = np.bincount(index, weights=high - low, minlength=len(keys))
        order = np.argsort(us, kind="stable")  # the longest is written last
        longest, of = np.zeros(len(start)), np.full(len(start), -1)
        longest[keys[order] // width], of[keys[order] // width] = us[order], keys[order] % width
        name = np.where(longest > best, of, name)
        best = np.maximum(best, longest)
    return name
