"""The events of some steps as lanes of a timeline, as the board's page draws them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import Trace, distinct
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover
from walkthrough.trace.timeline.counters import counters
from walkthrough.trace.timeline.events import TABLES, Events, events, joined
from walkthrough.trace.timeline.gaps import Facts, gap_causes, gap_facts
from walkthrough.trace.timeline.levels import levels
from walkthrough.trace.timeline.names import AUTOGRAD, MAIN, stream_names, thread_names
from walkthrough.trace.timeline.window import Window, whole, window

MAX_DETAILS, MAX_LETTERS = 30_000, 12_000_000  # distinct lists of arguments that are sent, and of their texts
ON_CPU = {  # the lanes of a thread, in their order, and what their labels add to the thread's name
    "mark": ", marks",
    "loader": ", DataLoader",
    "collective": ", collectives",
    "cpu": "",
    "python": ", Python",
    "runtime": ", calls",
}


Marked = Sequence[tuple[str, Cover]]


class Lane(Struct):
    """One lane: its events, sorted by start, the row of each, and what it is called. thread: -1 for none."""

    id: str
    label: str
    title: str
    kind: str
    group: str
    thread: int
    events: Events
    level: np.ndarray


def lanes(
    analysis: Analysis, marked: Marked = (), first: int | None = None, last: int | None = None
) -> dict[str, object]:
    """The events of steps first to last (indices, inclusive), or of as many of the first steps as fit: plain lists.

    marked: what stands out, each with the times that it is about, which get a lane of their own.

    Times in µs from the begin of the first step's mark, whatever steps are asked for. Events have numbers: those of the
    first lane from 0 on, then those of the next, and so on.

    - names: texts. steps: name, start, end of every step of the trace.
    - loaded: first and last step with events here, and start and end: inside these all events are here. total: start
      and end of the trace. left_out: events that are not here.
    - warnings, partial, rank: of the trace. clock_us: the trace's own clock at time 0.
    - details: distinct lists of arguments, {fact: text or number}.
    - lanes: id (the same in another trace of the same program, where it can be), label, title, kind, group (such as
      "GPU 0"), thread (the same number for lanes of the same thread or stream, or -1), levels (rows for nested events);
      and of each event, sorted by start: start, duration, name (an index into names), level, where any has them detail
      (an index into details, or -1) and sequence (the same number links an operator to its backward pass, or -1); for
      calls and device work correlation, or -1; for device work launch and operator, the numbers of the call and of the
      innermost operator that launched it, or -1.
    - counters: label, unit, group, time and value of each.

    Kinds: "finding" (named after it), "idle" (a stretch of a GPU without kernels, named by its main cause), "mark" (of
    the program), "python", "cpu" (operators), "loader" (waits for a DataLoader), "runtime" (calls), "kernel", "copy",
    "collective". Raises InputError where the trace has no such steps.
    """
    trace, steps = analysis.trace, analysis.steps
    parts = [part for part in events(trace) if len(part)]
    begin = float(steps.cpu_start[0])
    others = [gpu.start for gpu in analysis.idle] + [when.start for _, when in marked]
    shown = window(trace, parts, steps, first, last, np.concatenate([np.empty(0), *others]))
    chosen = [part.within(shown.start, shown.end) for part in parts]
    names, facts = list(trace.names), []
    rows = _finding_lanes(marked, shown, names)
    threads = thread_names(trace)
    rows += _device_lanes(
        analysis, shown, [part for part in chosen if part.kind in ("kernel", "copy")], names, facts, threads
    )
    rows += _cpu_lanes(trace, [part for part in chosen if part.kind not in ("kernel", "copy")], threads)
    _make_unique(rows)
    total = whole(trace, parts, steps)
    return {
        **_sent(trace, rows, names, facts, begin),
        "steps": [
            {"name": name, "start": start, "end": end}
            for name, start, end in zip(
                steps.names, (steps.start - begin).tolist(), (steps.end - begin).tolist(), strict=True
            )
        ],
        "loaded": {
            "first": shown.first,
            "last": shown.last,
            "start": round(shown.start - begin, 3),
            "end": round(shown.end - begin, 3),
        },
        "total": {"start": round(total[0] - begin, 3), "end": round(total[1] - begin, 3)},
        "left_out": sum(map(len, parts)) - sum(map(len, chosen)),
        "warnings": list(trace.warnings),
        "partial": trace.partial,
        "rank": trace.rank,
        "clock_us": trace.origin + begin + (trace.base_us if np.isfinite(trace.base_us) else 0.0),
        "counters": counters(analysis.memory, [row.group for row in rows if row.kind in ("idle", "kernel")], begin),
    }


def _finding_lanes(marked: Marked, shown: Window, names: list[str]) -> list[Lane]:
    rows = []
    for what, when in marked:
        if not len(when.start):
            continue
        own = _plain_events("finding", when.start, when.end, np.full(len(when.start), len(names)))
        names.append(what)
        rows.append(_lane(f"finding {what}", what, "", "what stands out", -1, own.within(shown.start, shown.end)))
    return [row for row in rows if len(row.events)]


def _device_lanes(
    analysis: Analysis,
    shown: Window,
    parts: Sequence[Events],
    names: list[str],
    facts: list[Facts],
    threads: dict[int, str],
) -> list[Lane]:
    trace, rows, streams = analysis.trace, [], stream_names(analysis.trace)
    waits = {gpu.device: gpu for gpu in analysis.idle}
    devices = distinct(np.concatenate([np.array(list(waits), np.float64), *(part.device for part in parts)]))
    watched = [thread for thread, name in threads.items() if name == MAIN or name.startswith(AUTOGRAD)]
    names_of_causes = len(names)
    names += CAUSES
    for device in devices.tolist():
        here = [part.where((part.device == device) | (np.isnan(part.device) & np.isnan(device))) for part in parts]
        number = int(device) if np.isfinite(device) else -1
        group = f"GPU {number}" if number >= 0 else "GPU"
        if number in waits and len(waits[number].start):
            idle = waits[number]
            gaps = np.flatnonzero((idle.start < shown.end) & (idle.end > shown.start))
            numbers = (trace.details.count if trace.details else 0) + len(facts) + np.arange(len(gaps))
            facts += gap_facts(trace, idle, gaps, watched)
            own = _plain_events(
                "idle", idle.start[gaps], idle.end[gaps], names_of_causes + gap_causes(idle)[gaps], numbers
            )
            rows.append(_lane(f"idle {number}", f"{group}, idle", "stretches without a kernel", group, -1, own))
        for kind in ("kernel", "copy"):
            of_kind = [part for part in here if part.kind == kind and len(part)]
            if not of_kind:
                continue
            both = joined(of_kind)
            for thread, label in streams.items():
                own = both.where(both.thread == thread)
                process, stream = trace.threads[thread]
                title = f"process {process}, {label.split(' (')[0]}"
                name = label if kind == "kernel" or label.endswith("(copies)") else f"{label.split(' (')[0]} (copies)"
                rows.append(
                    _lane(f"{kind} {number} {stream.removeprefix('stream ').strip()}", name, title, group, thread, own)
                )
    return [row for row in rows if len(row.events)]


def _cpu_lanes(trace: Trace, parts: Sequence[Events], threads: dict[int, str]) -> list[Lane]:
    rows, on_device = (
        [],
        sorted(set(distinct(np.concatenate([np.empty(0, np.int64), *(part.thread for part in parts)])).tolist())),
    )
    named = threads | {
        thread: f"process {trace.threads[thread][0]}, thread {trace.threads[thread][1]}"
        for thread in on_device
        if thread not in threads
    }
    by_kind = {kind: joined(own) for kind in ON_CPU if (own := [part for part in parts if part.kind == kind])}
    for thread, name in named.items():
        process, number = trace.threads[thread]
        for kind, addition in ON_CPU.items():
            if kind not in by_kind:
                continue
            own = by_kind[kind].where(by_kind[kind].thread == thread)
            title = f"process {process}, thread {number}"
            rows.append(_lane(f"{kind} {name}", name + addition, title, name, thread, own))
    return [row for row in rows if len(row.events)]


def _lane(identity: str, label: str, title: str, group: str, thread: int, own: Events) -> Lane:
    return Lane(identity, label, title, own.kind, group, thread, own, levels(own.start, own.end))


def _plain_events(
    kind: str, start: np.ndarray, end: np.ndarray, name: np.ndarray, detail: np.ndarray | None = None
) -> Events:
    """Events that are in no table of the trace."""
    none = np.full(len(start), -1)
    return Events(
        kind=kind,
        source=none,
        row=none,
        start=start,
        end=end,
        name=name,
        thread=none,
        detail=none if detail is None else detail,
        correlation=none,
        sequence=none,
        device=none.astype(np.float64),
        call=none,
        operator=none,
    )


def _make_unique(rows: list[Lane]) -> None:
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.id] = seen.get(row.id, 0) + 1
        if seen[row.id] > 1:
            row.id += f" {seen[row.id]}"


def _sent(
    trace: Trace, rows: Sequence[Lane], names: Sequence[str], facts: Sequence[Facts], begin: float
) -> dict[str, Any]:
    """{"names", "details", "lanes"}."""
    numbers = {
        table: np.full(len(getattr(trace, table)) + 1, -1) for table in ("runtime", "operators")
    }  # the last: none
    count = 0
    for row in rows:
        for table, of_row in numbers.items():
            mine = row.events.source == TABLES.index(table)
            of_row[row.events.row[mine]] = count + np.flatnonzero(mine)
        count += len(row.events)
    name_of, name_numbers = _renumbered([row.events.name for row in rows])
    detail_of, detail_numbers = _renumbered([row.events.detail for row in rows])
    details, index = _details(trace, facts, detail_of)
    return {
        "names": [names[number] for number in name_of],
        "details": details,
        "lanes": [
            _as_json(row, begin, name, index[detail], numbers)
            for row, name, detail in zip(rows, name_numbers, detail_numbers, strict=True)
        ],
    }


def _renumbered(columns: Sequence[np.ndarray]) -> tuple[list[int], list[np.ndarray]]:
    """The distinct values of all columns, and the columns as indices into them."""
    used, index = np.unique(np.concatenate([np.empty(0, np.int64), *columns]), return_inverse=True)
    edges = np.cumsum([len(column) for column in columns])[:-1] if columns else []
    return used.tolist(), np.split(index.reshape(-1), edges) if columns else []


def _details(trace: Trace, facts: Sequence[Facts], used: Sequence[int]) -> tuple[list[Facts], np.ndarray]:
    """The distinct lists of arguments, and for each used number its index, -1 for nothing and for what is too much."""
    kept = trace.details.count if trace.details else 0
    positions: dict[tuple[tuple[str, str | float], ...], int] = {}
    index, letters = np.full(len(used), -1), 0
    for at, number in enumerate(used):
        if number < 0:
            continue
        of_number = trace.details.facts(number) if trace.details and number < kept else facts[number - kept]
        key = tuple(of_number.items())
        if key and key not in positions:
            if len(positions) >= MAX_DETAILS or letters > MAX_LETTERS:
                continue
            positions[key] = len(positions)
            letters += sum(len(value) for value in of_number.values() if isinstance(value, str))
        index[at] = positions.get(key, -1)
    return [dict(key) for key in positions], index


def _as_json(
    lane: Lane, begin: float, name: np.ndarray, detail: np.ndarray, numbers: dict[str, np.ndarray]
) -> dict[str, Any]:
    own = lane.events
    answer: dict[str, Any] = {
        "id": lane.id,
        "label": lane.label,
        "title": lane.title,
        "kind": lane.kind,
        "group": lane.group,
        "thread": lane.thread,
        "levels": int(lane.level.max(initial=0)) + 1,
        "start": (own.start - begin).round(3).tolist(),
        "duration": (own.end - own.start).round(3).tolist(),
        "name": name.tolist(),
        "level": lane.level.tolist(),
    }
    if (detail >= 0).any():
        answer["detail"] = detail.tolist()
    if (own.sequence >= 0).any():
        answer["sequence"] = own.sequence.tolist()
    if lane.kind in ("runtime", "kernel", "copy"):
        answer["correlation"] = own.correlation.tolist()
    if lane.kind in ("kernel", "copy"):
        answer["launch"] = numbers["runtime"][own.call].tolist()
        answer["operator"] = numbers["operators"][own.operator].tolist()
    return answer
