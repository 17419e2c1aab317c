"""Which steps' events the timeline gets: those that are asked for, or as many of the first as fit."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from walkthrough.results.errors import InputError
from walkthrough.trace.columns import Trace
from walkthrough.trace.steps import Steps
from walkthrough.trace.timeline.events import Events
from walkthrough.trace.units import counted

MAX_EVENTS = 500_000  # the page says how many are left out
MARGIN = 0.02  # of the window, on either side


class Window(Struct, frozen=True):
    """Steps first to last (indices, inclusive), and from when to when all events are there, µs since `Trace.origin`."""

    first: int
    last: int
    start: float
    end: float


def whole(trace: Trace, parts: Sequence[Events], steps: Steps) -> tuple[float, float]:
    """From the first event to the last one, and the steps; µs."""
    starts = [*(part.start.min() for part in parts if len(part)), steps.cpu_start[0], *trace.memory.time[:1]]
    ends = [*(part.end.max() for part in parts if len(part)), steps.end[-1], *trace.memory.time[-1:]]
    return float(min(starts)), float(max(ends))


def window(
    trace: Trace, parts: Sequence[Events], steps: Steps, first: int | None, last: int | None, extra: np.ndarray
) -> Window:
    """The `Window` of the steps that are asked for; None for the first one, and for as many as fit into `MAX_EVENTS`.

    Where none are asked for and all events of the trace fit, also those outside of the steps, it is the whole trace. Of
    steps with more events, it ends before they do. extra: starts of the events that are in no part. Raises
    InputError where the trace has no such steps.
    """
    count = len(steps.names)
    begin = 0 if first is None else first
    stop = count - 1 if last is None else min(last, count - 1)
    if begin >= count:
        raise InputError(f"{trace.file.name} has {counted(count, 'step', 'steps')}, so none with the index {begin}")
    low, highs = np.minimum(steps.cpu_start, steps.start), np.maximum(steps.cpu_end, steps.end)
    if not steps.marked or (first is None and last is None):
        edges = whole(trace, parts, steps)
        if sum(map(len, parts)) + len(extra) <= MAX_EVENTS:
            return Window(0, count - 1, edges[0], float(np.nextafter(edges[1], np.inf)))
        if not steps.marked:
            low, highs = np.array(edges[:1]), np.array(edges[1:])
    start, ends = float(low[begin]), np.maximum.accumulate(highs[begin : stop + 1])
    margins = MARGIN * (ends - start)
    before = start - margins[-1]
    overlapping = [part.start[(part.end > before) | (part.start >= before)] for part in parts]
    starts = np.sort(np.concatenate([*overlapping, extra[extra >= before]]))
    fitting = np.searchsorted(starts, ends + margins) <= MAX_EVENTS
    if last is None:
        stop = begin + max(int(fitting.sum()) - 1, 0)
    chosen = stop - begin
    start, end = start - float(margins[chosen]), float(ends[chosen] + margins[chosen])
    if not fitting[chosen]:
        end = float(starts[MAX_EVENTS])
        stop = begin + int((low[begin + 1 : stop + 1] < end).sum())
    return Window(begin, stop, start, end)
