"""The events of the traced steps as lanes of a timeline: CPU threads, loaders, runtime calls, GPU streams, copies."""

import numpy as np

from common.trace.operators import Nesting
from common.trace.steps import is_loading, is_step, steps

MOST = 500_000  # events: what is cut off then is said


def lanes(trace):
    """{"names", "steps", "lanes", "cut"}: plain lists; times in µs from the first step's start.

    A lane has label, kind ("cpu", "loader", "runtime", "kernel", "copy"), levels (rows for nested events) and, sorted
    by start, start, duration, name (an index into names) and level. cut: events left out because there are too many.
    """
    cut = steps(trace)
    begin, end = float(cut.start[0]), float(cut.end[-1])
    room = 0.02 * (end - begin)
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
    found, total = [], 0
    for kind, label, spans in tables:
        spans = spans.where((spans.start < end + room) & (spans.end > begin - room) & (spans.end >= spans.start))
        for thread in np.unique(spans.thread).tolist():
            mine = spans.where(spans.thread == thread)
            total += len(mine)
            if len(mine):
                found.append(_lane(trace, kind, label, thread, mine, begin))
    left = MOST
    for lane in found:
        kept = min(left, len(lane["start"]))
        left -= kept
        for column in ("start", "duration", "name", "level"):
            lane[column] = lane[column][:kept]
    used = sorted({name for lane in found for name in lane["name"]})
    numbers = {name: number for number, name in enumerate(used)}
    for lane in found:
        lane["name"] = [numbers[name] for name in lane["name"]]
    marks = zip(cut.names, (cut.start - begin).tolist(), (cut.end - begin).tolist(), strict=True)
    return {
        "names": [trace.names[name] for name in used],
        "steps": [{"name": name, "start": start, "end": end} for name, start, end in marks],
        "lanes": found,
        "cut": max(0, total - MOST),
    }


def _lane(trace, kind, label, thread, spans, begin):
    process, number = trace.threads[thread]
    if kind in ("kernel", "copy"):  # a row is a device and a stream of it
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


def _levels(spans):
    """How many others each event runs inside of, at most 30."""
    nesting = Nesting(spans)
    parent, level = nesting.parent, np.zeros(len(spans), np.int64)
    for index in nesting.order.tolist():
        if parent[index] >= 0:
            level[index] = min(level[parent[index]] + 1, 30)
    return level
