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
    tables = [
        (kind, label, spans.where((spans.start < end + room) & (spans.end > begin - room)))
        for kind, label, spans in tables
    ]
    starts = np.concatenate([spans.start for _, _, spans in tables])
    until = np.partition(starts, MOST)[MOST] if len(starts) > MOST else np.inf  # the same for all: none looks idle
    found = []
    for kind, label, spans in tables:
        spans = spans.where(spans.start < until)
        for thread in np.unique(spans.thread).tolist():
            found.append(_lane(trace, kind, label, thread, spans.where(spans.thread == thread), begin))
    used = sorted({name for lane in found for name in lane["name"]})
    numbers = {name: number for number, name in enumerate(used)}
    for lane in found:
        lane["name"] = [numbers[name] for name in lane["name"]]
    marks = zip(cut.names, (cut.start - begin).tolist(), (cut.end - begin).tolist(), strict=True)
    return {
        "names": [trace.names[name] for name in used],
        "steps": [{"name": name, "start": start, "end": end} for name, start, end in marks],
        "lanes": found,
        "cut": int((starts >= until).sum()),
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
