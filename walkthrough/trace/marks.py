"""Marks in a trace: of training steps, of a DataLoader's batches, of an optimizer's calls."""

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace

ROUNDING = 0.05  # of the shorter of two marks: they follow one another although they overlap by so much


class Marks(Struct, frozen=True):
    """The steps as a trace marks them. names: the text after "ProfilerStep#". start, end: µs, float64 [steps].

    marked: False for a trace without marks, which counts as one step, "0". whole: False where the only step that is
    marked was not over when the profiler stopped.
    """

    names: list[str]
    start: np.ndarray
    end: np.ndarray
    marked: bool = True
    whole: bool = True


def is_step(name: str) -> bool:
    """True for the mark of a training step."""
    return name.startswith("ProfilerStep#")


def is_mark(name: str) -> bool:
    """True for what marks a step or an optimizer's call, and is in part Python."""
    return is_step(name) or name.startswith("Optimizer.")


def is_loading(name: str) -> bool:
    """True for the mark around the training loop's wait for its DataLoader's next batch."""
    loader = name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__")
    return loader or name.startswith("enumerate(DataPipe)#")


def step_marks(trace: Trace) -> Marks:
    """The `Marks` of a trace: of one thread, and no two at the same time.

    A step that was not over when the profiler stopped (today's Kineto writes `"finished": false`) is left out, unless
    no other is marked. What is left out is said in `Trace.warnings`.
    """
    marks = [spans.where(trace.named(spans, is_step)) for spans in (trace.operators, trace.annotations)]
    name, start, end, thread = (
        np.concatenate([getattr(spans, column) for spans in marks]) for column in ("name", "start", "end", "thread")
    )
    if not len(start):
        return _whole_trace(trace)
    finished = np.concatenate([np.ones(len(marks[0]), bool), marks[1].finished])
    device_threads = [spans.thread for spans in (trace.kernels, trace.copies, trace.sets)]
    mask = ~np.isin(thread, np.concatenate(device_threads))  # marks in a device's row repeat the CPU's
    if not mask.any():
        mask[:] = True
    threads, count = np.unique(thread[mask], return_counts=True)
    if len(threads) > 1:
        trace.warnings.append(f"{len(threads)} threads mark steps: those with the most marks are used")
        mask &= thread == threads[np.argmax(count)]
    whole = bool((mask & finished).any())
    for number in name[mask & ~finished & whole].tolist():
        trace.warnings.append(f"{trace.names[number]} was not over when the profiler stopped: it is left out")
        mask &= finished
    rows = sorted(set(zip(start[mask].tolist(), end[mask].tolist(), name[mask].tolist(), strict=True)))
    used = _one_series([(begin, stop, trace.names[number].split("#", 1)[1]) for begin, stop, number in rows])
    if len(used) < len(rows):
        first, last = used[0][2], used[-1][2]
        trace.warnings.append(
            f"steps are marked twice, by two profilers most likely, and their marks overlap: {len(used)} of "
            f"{len(rows)} marks are used, ProfilerStep#{first} to ProfilerStep#{last}"
        )
    starts, ends, names = zip(*used, strict=True)
    return Marks(list(names), np.array(starts), np.array(ends), whole=whole)


def _whole_trace(trace: Trace) -> Marks:
    tables = (trace.runtime, trace.annotations, trace.kernels, trace.copies, trace.sets)
    events = [trace.operators] if len(trace.operators) else [table for table in tables if len(table)]
    if not events:  # memory events alone
        return Marks(["0"], trace.memory.time[:1], trace.memory.time[-1:], marked=False)
    first, last = min(table.start.min() for table in events), max(table.end.max() for table in events)
    return Marks(["0"], np.array([first]), np.array([last]), marked=False)


def _one_series(rows: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Of marks (start, end, number), sorted, those of the longest series without overlap; of equals, the first.

    Where a mark may continue several series, it continues that whose last number is one less, else the one that ended
    last.
    """
    series: list[list[tuple[float, float, str]]] = []
    for row in rows:
        possible = [before for before in series if not _overlap(before[-1], row)]
        if possible:
            max(possible, key=lambda before: (_follows(before[-1][2], row[2]), before[-1][1])).append(row)
        else:
            series.append([row])
    return max(series, key=len)


def _overlap(before: tuple[float, float, str], after: tuple[float, float, str]) -> bool:
    shorter = min(before[1] - before[0], after[1] - after[0])
    return min(before[1], after[1]) - after[0] > ROUNDING * shorter


def _follows(before: str, after: str) -> bool:
    return before.isdecimal() and after.isdecimal() and int(after) == int(before) + 1
