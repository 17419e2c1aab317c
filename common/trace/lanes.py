"""The events of the traced steps as lanes of a timeline: findings, threads, loaders, calls, GPU streams, copies."""

import numpy as np

from common.trace.columns import Spans, Trace
from common.trace.findings.finding import Finding
from common.trace.operators import Nesting
from common.trace.steps import is_loading, is_step
from common.trace.summary import Summary

MAX_EVENTS = 500_000  # the page says how many are left out


def lanes(summary: Summary) -> dict[str, object]:
    """{"names", "steps", "lanes", "left_out"}: plain lists; times in µs from the first step's mark.

    A lane has label, kind ("cpu", "loader", "runtime", "kernel", "copy"), levels (rows for nested events) and, sorted
    by start, start, duration, name (an index into names) and level. left_out: events beyond `MAX_EVENTS`. The first
    lanes, of kind "finding", mark when each finding is, in events of its name.
    """
    trace, marks = summary.trace, summary.steps
    begin, end = float(marks.cpu_start[0]), float(marks.end[-1])
    margin = 0.02 * (end - begin)
    operators = trace.operators.where(~trace.named(trace.operators, is_step))
    loading = trace.named(operators, is_loading)
    tables = [
        ("cpu", "CPU thread", operators.where(~loading)),
        ("loader", "DataLoader", operators.where(loading)),
        ("runtime", "calls", trace.runtime),
        ("kernel", "GPU", trace.kernels),
        ("copy", "copies", trace.copies),
        ("copy", "memset", trace.sets),
    ]
    tables = [
        (kind, label, spans.where((spans.start < end + margin) & (spans.end > begin - margin)))
        for kind, label, spans in tables
    ]
    starts = np.concatenate([spans.start for _, _, spans in tables])
    # One limit for all lanes: with limits of their own, some would look idle.
    until = np.partition(starts, MAX_EVENTS)[MAX_EVENTS] if len(starts) > MAX_EVENTS else np.inf
    rows = []
    for kind, label, spans in tables:
        spans = spans.where(spans.start < until)
        for thread in np.unique(spans.thread).tolist():
            rows.append(_lane(trace, kind, label, thread, spans.where(spans.thread == thread), begin))
    used = sorted({name for lane in rows for name in lane["name"]})
    numbers = {name: number for number, name in enumerate(used)}
    for lane in rows:
        lane["name"] = [numbers[name] for name in lane["name"]]
    texts = [trace.names[name] for name in used]
    found = [finding for finding in summary.findings if len(finding.when.start)]
    marked = [_marks(finding, len(texts) + at, begin, until) for at, finding in enumerate(found)]
    edges = zip(marks.names, (marks.start - begin).tolist(), (marks.end - begin).tolist(), strict=True)
    return {
        "names": texts + [finding.what for finding in found],
        "steps": [{"name": name, "start": start, "end": end} for name, start, end in edges],
        "lanes": marked + rows,
        "left_out": int((starts >= until).sum()),
    }


def _lane(trace: Trace, kind: str, label: str, thread: int, spans: Spans, begin: float) -> dict:
    process, number = trace.threads[thread]
    if kind in ("kernel", "copy"):  # the process is a device, the thread one of its streams
        number = f"{process}, stream {number.removeprefix('stream ')}"
    order = np.argsort(spans.start, kind="stable")
    level = _levels(spans)
    return {
        "label": f"{label} {number}",
        "kind": kind,
        "levels": int(level.max(initial=0)) + 1,
        "start": (spans.start[order] - begin).round(3).tolist(),
        "duration": spans.duration[order].round(3).tolist(),
        "name": spans.name[order].tolist(),
        "level": level[order].tolist(),
    }


def _marks(finding: Finding, name: int, begin: float, until: float) -> dict[str, object]:
    shown = finding.when.start < until
    start, end = finding.when.start[shown], finding.when.end[shown]
    return {
        "label": finding.what,
        "kind": "finding",
        "levels": 1,
        "start": (start - begin).round(3).tolist(),
        "duration": (end - start).round(3).tolist(),
        "name": [name] * len(start),
        "level": [0] * len(start),
    }


def _levels(spans: Spans) -> np.ndarray:
    """How many other events contain each event, at most 30."""
    nesting = Nesting(spans)
    parent, level = nesting.parent, np.zeros(len(spans), np.int64)
    for index in nesting.order.tolist():
        if parent[index] >= 0:
            level[index] = min(level[parent[index]] + 1, 30)
    return level
