"""The events of some steps as lanes of a timeline, as the tab's page draws them; names of threads and streams."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from walkthrough.results.errors import InputError
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import MAX_GPUS, Spans, Trace, distinct, joined, launching_operators, places
from walkthrough.trace.idle import CAUSES, gap_facts
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import is_collective, is_collective_mark
from walkthrough.trace.memory import CPU, Memory, thinned
from walkthrough.trace.operators import stepping_thread
from walkthrough.trace.steps import Steps, is_backward, is_loading, is_step

MAX_EVENTS = 500_000  # the page says how many are left out
MAX_FACTS = 30_000  # stretches without a kernel whose causes are sent
MAX_POINTS = 20_000  # of a counter
MARGIN = 0.02  # of the window, on either side
TABLES = ("operators", "annotations", "python", "runtime", "kernels", "copies", "sets")
ON_CPU = {  # the lanes of a thread, in their order, and what their labels add to the thread's name
    "mark": ", marks",
    "loader": ", DataLoader",
    "collective": ", collectives",
    "cpu": "",
    "python": ", Python",
    "runtime": ", calls",
}


class Events(Struct, frozen=True):
    """Events of one kind of lane, sorted by start, outer events first.

    table, row: where each is in the trace, an index into `TABLES` and its index there; -1 for none.
    """

    kind: str
    spans: Spans
    table: np.ndarray
    row: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: np.ndarray) -> "Events":
        """The events that a boolean mask or an index array selects."""
        return Events(self.kind, self.spans.where(mask), self.table[mask], self.row[mask])

    def within(self, begin: float, end: float) -> "Events":
        """The events that overlap [begin, end)."""
        start = self.spans.start
        return self.where((start < end) & ((self.spans.end > begin) | (start >= begin)))


class Lane(Struct):
    """One lane: its events, the row of each, and what it is called. thread: -1 for none. facts: of each event."""

    id: str
    label: str
    title: str
    group: str
    thread: int
    events: Events
    level: np.ndarray
    facts: Sequence[dict[str, str | float]] = ()


class Window(Struct, frozen=True):
    """Steps first to last (indices, inclusive), and from when to when all events are there, µs since `Trace.origin`."""

    first: int
    last: int
    start: float
    end: float


def lanes(
    analysis: Analysis,
    findings: Sequence[tuple[str, Cover]] = (),
    first: int | None = None,
    last: int | None = None,
) -> dict[str, Any]:
    """The events of steps first to last (indices, inclusive), or of as many of the first steps as fit: plain lists.

    findings: what each is, and when. Times in µs from the begin of the first step's mark, whatever steps are asked for.
    Events have numbers: those of the first lane from 0 on, then those of the next, and so on.

    - names: texts. steps: name, start, end of every step of the trace.
    - loaded: first and last step with events here, and start and end: inside these all events are here. total: start
      and end of the trace. left_out: events that are not here.
    - warnings, partial, rank: of the trace. clock_us: the trace's own clock at time 0. file_us: the same as
      the file's events have it.
    - lanes: id (the same in another trace of the same program, where it can be), label, title, kind, group (such as
      "GPU 0"), thread (the same number for lanes of the same thread or stream, or -1), pid and tid (its process and its
      thread or stream, as in the file, or ""), levels (rows for nested events); and of each event, sorted by start:
      start, duration, name (an index into names), level; for stretches without a kernel facts, {fact: text}, of the
      first `MAX_FACTS`; for calls and device work correlation, or -1; for device work launch and operator, the numbers
      of the call and of the innermost operator that launched it, or -1. An event's arguments: see `reader.event`.
    - counters: label, unit, group, time and value of each.

    Kinds: "finding" (named after it), "idle" (a stretch of a GPU without kernels, named by its main cause), "mark" (of
    the program), "python", "cpu" (operators), "loader" (waits for a DataLoader), "runtime" (calls), "kernel", "copy",
    "collective". Raises InputError where the trace has no such steps.
    """
    trace, steps = analysis.trace, analysis.steps
    parts = [part for part in events(trace) if len(part)]
    begin = float(steps.cpu_start[0])
    others = [gpu.start for gpu in analysis.idle] + [when.start for _, when in findings]
    shown = window(trace, parts, steps, first, last, np.concatenate([np.empty(0), *others]))
    chosen = [part for part in (part.within(shown.start, shown.end) for part in parts) if len(part)]
    names, threads = list(trace.names), thread_names(trace)
    on_device = [part for part in chosen if part.kind in ("kernel", "copy")]
    rows = _finding_lanes(findings, shown, names)
    rows += _device_lanes(analysis, shown, on_device, names, threads)
    rows += _cpu_lanes(trace, [part for part in chosen if part.kind in ON_CPU], threads)
    rows = [row for row in rows if len(row.events)]
    _make_unique(rows)
    total = whole(trace, parts, steps)
    edges = zip(steps.names, (steps.start - begin).tolist(), (steps.end - begin).tolist(), strict=True)
    return {
        **_sent(trace, rows, names, begin),
        "steps": [{"name": name, "start": start, "end": end} for name, start, end in edges],
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
        "file_us": trace.origin + begin,
        "clock_us": trace.origin + begin + (trace.base_us if np.isfinite(trace.base_us) else 0.0),
        "counters": _counters(analysis.memory, rows, begin),
    }


def events(trace: Trace) -> list[Events]:
    """All events of a trace that have a lane, by kind. The marks of steps have none."""
    operators, annotations = trace.operators, trace.annotations
    step, loading = trace.named(operators, is_step), trace.named(operators, is_loading)
    collective = trace.named(operators, is_collective_mark)
    marks = trace.named(operators, lambda name: name.startswith("Optimizer."))
    on_device = np.isin(annotations.thread, np.concatenate([trace.kernels.thread, trace.copies.thread]))
    in_operators = ("enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.")
    shown = ~on_device & ~trace.named(annotations, lambda name: is_step(name) or name.startswith(in_operators))
    with_collective = trace.named(annotations, is_collective_mark)
    selected: list[tuple[str, str, np.ndarray | slice]] = [
        ("mark", "operators", ~step & marks),
        ("mark", "annotations", shown & ~with_collective),
        ("loader", "operators", ~step & loading),
        ("collective", "operators", ~step & collective),
        ("collective", "annotations", shown & with_collective),
        ("cpu", "operators", ~step & ~loading & ~collective & ~marks),
        ("python", "python", slice(None)),
        ("runtime", "runtime", slice(None)),
        ("kernel", "kernels", slice(None)),
        ("copy", "copies", slice(None)),
        ("copy", "sets", slice(None)),
    ]
    parts = []
    for kind, table, mask in selected:
        spans: Spans = getattr(trace, table)
        row = np.arange(len(spans))[mask]
        parts.append(Events(kind, spans.where(row), np.full(len(row), TABLES.index(table)), row))
    return parts


def _joined(parts: Sequence[Events]) -> Events:
    """The events of several tables of one kind, sorted."""
    if len(parts) == 1:
        return parts[0]
    spans = joined([part.spans for part in parts])  # a column that one table does not have, no lane shows
    table, row = (np.concatenate([getattr(part, name) for part in parts]) for name in ("table", "row"))
    return Events(parts[0].kind, spans, table, row).where(np.lexsort([-spans.end, spans.start]))


def _plain_events(kind: str, start: np.ndarray, end: np.ndarray, name: np.ndarray) -> Events:
    """Events that are in no table of the trace."""
    none = np.full(len(start), -1)
    return Events(kind, Spans(start, end, name, none, none, none), none, none)


def whole(trace: Trace, parts: Sequence[Events], steps: Steps) -> tuple[float, float]:
    """From the first event to the last one, and the steps; µs."""
    starts = [*(part.spans.start.min() for part in parts), steps.cpu_start[0], *trace.memory.time[:1]]
    ends = [*(part.spans.end.max() for part in parts), steps.end[-1], *trace.memory.time[-1:]]
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
        raise InputError(f"{trace.file.name} has {count} step{'s' * (count > 1)}, so none with the index {begin}")
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
    overlapping = [part.start[(part.end > before) | (part.start >= before)] for part in (part.spans for part in parts)]
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


# Lanes


def _lane(identity: str, label: str, title: str, group: str, thread: int, own: Events) -> Lane:
    return Lane(identity, label, title, group, thread, own, levels(own.spans.start, own.spans.end))


def _finding_lanes(findings: Sequence[tuple[str, Cover]], shown: Window, names: list[str]) -> list[Lane]:
    rows = []
    for what, when in findings:
        own = _plain_events("finding", when.start, when.end, np.full(len(when.start), len(names)))
        names.append(what)
        rows.append(_lane(f"finding {what}", what, "", "what stands out", -1, own.within(shown.start, shown.end)))
    return rows


def _device_lanes(
    analysis: Analysis, shown: Window, parts: Sequence[Events], names: list[str], threads: dict[int, str]
) -> list[Lane]:
    """Adds the names of causes to `names`."""
    trace, rows, streams = analysis.trace, [], stream_names(analysis.trace)
    waits = {gpu.device: gpu for gpu in analysis.idle}
    place = {thread: number for number, thread in enumerate(streams)}
    by_device = [places(np.nan_to_num(part.spans.device, nan=-1.0)) for part in parts]
    watched = [thread for thread, name in threads.items() if name == MAIN or name.startswith(AUTOGRAD)][: MAX_GPUS + 1]
    names_of_causes = len(names)
    names += CAUSES
    for device in sorted({*waits, *(device for found in by_device for device in found)}):
        here = [part.where(at[device]) for part, at in zip(parts, by_device, strict=True) if device in at]
        number = int(device)
        group = f"GPU {number}" if number >= 0 else "GPU"
        if number in waits and len(waits[number].start):
            idle = waits[number]
            gaps = np.flatnonzero((idle.start < shown.end) & (idle.end > shown.start))
            causes = names_of_causes + idle.by_gap[:, gaps].argmax(axis=0)
            own = _plain_events("idle", idle.start[gaps], idle.end[gaps], causes)
            lane = _lane(f"idle {number}", f"{group}, idle", "stretches without a kernel", group, -1, own)
            lane.facts = gap_facts(trace, idle, gaps, watched)
            rows.append(lane)
        for kind in ("kernel", "copy"):
            of_kind = [part for part in here if part.kind == kind]
            if not of_kind:
                continue
            both = _joined(of_kind)
            by_stream = places(both.spans.thread)
            for thread in sorted(by_stream, key=place.__getitem__):
                (process, stream), label = trace.threads[thread], streams[thread]
                plain = label.split(" (")[0]
                name = label if kind == "kernel" or label.endswith("(copies)") else f"{plain} (copies)"
                identity = f"{kind} {number} {stream.removeprefix('stream ').strip()}"
                title = f"process {process}, {plain}"
                rows.append(_lane(identity, name, title, group, thread, both.where(by_stream[thread])))
    return rows


def _cpu_lanes(trace: Trace, parts: Sequence[Events], threads: dict[int, str]) -> list[Lane]:
    used = distinct(np.concatenate([np.empty(0, np.int64), *(part.spans.thread for part in parts)])).tolist()
    titles = {thread: "process {}, thread {}".format(*trace.threads[thread]) for thread in {*threads, *used}}
    by_kind = {kind: _joined(own) for kind in ON_CPU if (own := [part for part in parts if part.kind == kind])}
    by_thread = {kind: places(own.spans.thread) for kind, own in by_kind.items()}
    return [
        _lane(f"{kind} {name}", name + ON_CPU[kind], titles[thread], name, thread, own.where(by_thread[kind][thread]))
        for thread, name in (threads | {thread: titles[thread] for thread in used if thread not in threads}).items()
        for kind, own in by_kind.items()
        if thread in by_thread[kind]
    ]


def _make_unique(rows: list[Lane]) -> None:
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.id] = seen.get(row.id, 0) + 1
        if seen[row.id] > 1:
            row.id += f" {seen[row.id]}"


EPSILON = 0.0015  # µs: times are given in ns, and a start and a duration are rounded apart
MAX_LEVEL = 99


def levels(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The row of each event in its lane, 0 to `MAX_LEVEL`; int64. Sorted by start, outer events first.

    Below the events that contain it, so that no two events of a row overlap. Where all events nest, that is how many
    others contain each. Where some end inside others, as in a stream whose kernels overlap, it is the first free row
    below those that contain it.
    """
    end = np.maximum(end, start + 2 * EPSILON)
    begun, ended = np.arange(len(start)), np.searchsorted(np.sort(end), start + EPSILON, "right")
    level = np.maximum(begun - ended, 0)
    order = np.argsort(level, kind="stable")
    same = level[order][1:] == level[order][:-1]
    overlap = (same & (start[order][1:] + EPSILON < end[order][:-1])).any()
    return _first_free(start, end) if overlap else np.minimum(level, MAX_LEVEL)


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


# Names of threads and streams

MAIN, AUTOGRAD = "main thread", "autograd"
_GENERIC = re.compile(r"python[\d.]*|pt_main_thread")
_GIVEN = {"pt_autograd": AUTOGRAD, "pt_data_pin": "pin memory", "pt_data_worker": "DataLoader", "pt_gloo": "gloo"}
# What a thread runs that is not the main one: the first that it runs names it.
_OPERATORS = {
    AUTOGRAD: is_backward,
    "gloo": re.compile("gloo:").search,
    "pin memory": re.compile("aten::_?pin_memory").search,
}
_FUNCTIONS = {
    "pin memory": re.compile(r"_utils/pin_memory\.py").search,
    "DataLoader": re.compile(r"_utils/(worker|fetch)\.py|utils/data/dataloader\.py").search,
}
ORDER = (MAIN, AUTOGRAD, "", "gloo", "DataLoader", "pin memory")  # "": threads that have no name


def thread_names(trace: Trace) -> dict[int, str]:
    """The name of each thread of the CPU (an index into `Trace.threads`), each once, in the order of `ORDER`."""
    spans = (trace.operators, trace.annotations, trace.python, trace.runtime)
    devices = trace.device_work.thread
    used = np.concatenate([table.thread for table in spans])
    threads = distinct(used[~np.isin(used, devices)] if len(devices) else used).tolist()
    main = _main_thread(trace)
    roles = {thread: "" for thread in threads} | _named_by(trace, _FUNCTIONS, trace.python)
    roles |= _named_by(trace, _OPERATORS, trace.operators) | _named_by(trace, _OPERATORS, trace.annotations)
    roles |= _given(trace, main)
    roles[main] = MAIN
    place = {name: number for number, name in enumerate(ORDER)}
    shown = sorted(threads, key=lambda thread: (place.get(roles[thread], place[""]), thread))
    processes = {trace.threads[thread][0] for thread in threads}
    names, count = {}, {}
    for thread in shown:
        process, number = trace.threads[thread]
        name = roles[thread] or (f"thread {number}" if len(processes) == 1 else f"process {process}, thread {number}")
        count[name] = count.get(name, 0) + 1
        names[thread] = name if count[name] == 1 else f"{name} {count[name]}"
    return names


def stream_names(trace: Trace) -> dict[int, str]:
    """The name of each stream (an index into `Trace.threads`), such as "stream 20 (NCCL)", in order of its number."""
    collective = trace.named(trace.kernels, is_collective)
    by_nccl = trace.named(trace.kernels, lambda name: "nccl" in name.lower())
    library = ("RCCL" if trace.hip else "NCCL") if (collective & by_nccl).any() else "collectives"
    threads = distinct(trace.device_work.thread).tolist()
    numbers = {thread: re.search(r"\d+", trace.threads[thread][1]) for thread in threads}
    order = {thread: float(number[0]) if number else np.inf for thread, number in numbers.items()}
    names = {}
    thread, duration, most = trace.kernels.thread, trace.kernels.duration, len(trace.threads)
    count, us = np.bincount(thread, minlength=most), np.bincount(thread, duration, most)
    collectives_us = np.bincount(thread, duration * collective, most)
    for thread in sorted(threads, key=lambda thread: (order[thread], thread)):
        name = f"stream {trace.threads[thread][1].removeprefix('stream ').strip()}"
        if not count[thread]:
            name += " (copies)"
        elif collectives_us[thread] > us[thread] / 2:
            name += f" ({library})"
        names[thread] = name
    return names


def _main_thread(trace: Trace) -> int:
    if len(trace.operators) or trace.has_name(is_step, trace.annotations):
        return stepping_thread(trace)
    used = next((spans.thread for spans in (trace.annotations, trace.runtime, trace.python) if len(spans)), None)
    return -1 if used is None else int(np.bincount(used).argmax())


def _named_by(trace: Trace, tests: Mapping[str, Callable[[str], object]], spans: Spans) -> dict[int, str]:
    """{thread: name} of the threads that run what passes one of the tests."""
    names = {}
    for name, test in tests.items():
        for thread in distinct(spans.thread[trace.named(spans, test)]).tolist():
            names.setdefault(thread, name)
    return names


def _given(trace: Trace, main: int) -> dict[int, str]:
    """{thread: name} of the threads to which the trace gives a name that is not the whole process's."""
    given = {}
    for thread, key in enumerate(trace.threads):
        text = trace.thread_names.get(key, "")
        in_brackets = re.search(r"\((.+)\)\s*$", text)  # "thread 425 (pt_autograd_0)"
        given[thread] = in_brackets[1] if in_brackets else text
    return {
        thread: next((name for start, name in _GIVEN.items() if text.startswith(start)), text)
        for thread, text in given.items()
        if text and not _GENERIC.fullmatch(text) and text != given.get(main)
    }


# The answer


def _sent(trace: Trace, rows: Sequence[Lane], names: Sequence[str], begin: float) -> dict[str, Any]:
    """{"names", "lanes"}."""
    numbers = {
        table: np.full(len(getattr(trace, table)) + 1, -1) for table in ("runtime", "operators")
    }  # the last: none
    count = 0
    for row in rows:
        for table, of_row in numbers.items():
            mine = row.events.table == TABLES.index(table)
            of_row[row.events.row[mine]] = count + np.flatnonzero(mine)
        count += len(row.events)
    called_by = launching_operators(trace, np.arange(len(trace.runtime)))
    numbers["operators"] = np.append(numbers["operators"][called_by], -1)  # of the operator that made each call
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(row.events.spans.name for row in rows)]))
    return {
        "names": [names[number] for number in used.tolist()],
        "lanes": [_as_json(trace, row, begin, used, numbers) for row in rows],
    }


def _as_json(
    trace: Trace, lane: Lane, begin: float, used: np.ndarray, numbers: dict[str, np.ndarray]
) -> dict[str, Any]:
    pid, tid = trace.threads[lane.thread] if lane.thread >= 0 else ("", "")
    kind, spans = lane.events.kind, lane.events.spans
    answer: dict[str, Any] = {
        "id": lane.id,
        "label": lane.label,
        "title": lane.title,
        "kind": kind,
        "group": lane.group,
        "thread": lane.thread,
        "pid": pid,
        "tid": tid,
        "levels": int(lane.level.max(initial=0)) + 1,
        "start": (spans.start - begin).round(3).tolist(),
        "duration": (spans.end - spans.start).round(3).tolist(),
        "name": np.searchsorted(used, spans.name).tolist(),
        "level": lane.level.tolist(),
    }
    if kind == "idle":
        answer["facts"] = lane.facts[:MAX_FACTS]
    if kind in ("runtime", "kernel", "copy"):
        answer["correlation"] = spans.correlation.tolist()
    if kind in ("kernel", "copy"):
        answer["launch"] = numbers["runtime"][spans.call].tolist()
        answer["operator"] = numbers["operators"][spans.call].tolist()
    return answer


def _counters(memories: Sequence[Memory], rows: Sequence[Lane], begin: float) -> list[dict[str, Any]]:
    """The memory of each device over time."""
    answer, groups = [], [row.group for row in rows if row.events.kind in ("idle", "kernel")]
    for memory in memories:
        name = "CPU" if memory.device == CPU else f"GPU {memory.device}"
        of_gpus = sum(other.device != CPU for other in memories)
        # ROCm numbers a GPU among all processors in its kernels, and among the GPUs in its memory events.
        alone = memory.device != CPU and of_gpus == 1 and len(set(groups)) == 1
        for what, values in (("allocated", memory.allocated), ("reserved", memory.reserved)):
            known = np.flatnonzero(np.isfinite(values))
            if not len(known) or (what == "reserved" and memory.device == CPU):
                continue
            points = known[thinned(values[known], MAX_POINTS)]
            answer.append(
                {
                    "label": f"{name} memory, {what}",
                    "unit": "bytes",
                    "group": groups[0] if alone else name,
                    "time": (memory.time[points] - begin).round(3).tolist(),
                    "value": values[points].tolist(),
                }
            )
    return answer
