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

    row: the place of an operator, or of a call, among those of the trace; -1 for all others.
    """

    kind: str
    spans: Spans
    row: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: np.ndarray) -> "Events":
        """The events that a boolean mask or an index array selects."""
        return Events(self.kind, self.spans.where(mask), self.row[mask])

    def within(self, begin: float, end: float) -> "Events":
        """The events that overlap [begin, end)."""
        start = self.spans.start
        return self.where((start < end) & ((self.spans.end > begin) | (start >= begin)))


class Lane(Struct):
    """One lane: its events, and what it is called. thread: -1 for none. facts: of each event."""

    id: str
    label: str
    title: str
    group: str
    thread: int
    events: Events
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
    begin, memory = float(steps.cpu_start[0]), trace.memory.time
    total = (
        float(min([*(part.spans.start.min() for part in parts), steps.cpu_start[0], *memory[:1]])),
        float(max([*(part.spans.end.max() for part in parts), steps.end[-1], *memory[-1:]])),
    )
    others = [gpu.start for gpu in analysis.idle] + [when.start for _, when in findings]
    shown = window(trace, parts, steps, first, last, np.concatenate([np.empty(0), *others]), total)
    chosen = {part.kind: part.within(shown.start, shown.end) for part in parts}
    names, threads, rows = list(trace.names), thread_names(trace), list[Lane]()
    for what, when in findings:
        own = _plain_events("finding", when.start, when.end, np.full(len(when.start), len(names)))
        names.append(what)
        rows.append(Lane(f"finding {what}", what, "", "what stands out", -1, own.within(shown.start, shown.end)))
    rows += _device_lanes(analysis, shown, chosen, len(names), threads)
    names += CAUSES
    rows = [row for row in rows + _cpu_lanes(trace, chosen, threads) if len(row.events)]
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.id] = seen.get(row.id, 0) + 1
        row.id += f" {seen[row.id]}" * (seen[row.id] > 1)
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
        "left_out": sum(map(len, parts)) - sum(map(len, chosen.values())),
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
    with_collective, everything = trace.named(annotations, is_collective_mark), slice(None)
    return [
        _events(trace, "mark", (operators, ~step & marks), (annotations, shown & ~with_collective)),
        _events(trace, "loader", (operators, ~step & loading)),
        _events(trace, "collective", (operators, ~step & collective), (annotations, shown & with_collective)),
        _events(trace, "cpu", (operators, ~step & ~loading & ~collective & ~marks)),
        _events(trace, "python", (trace.python, everything)),
        _events(trace, "runtime", (trace.runtime, everything)),
        _events(trace, "kernel", (trace.kernels, everything)),
        _events(trace, "copy", (trace.copies, everything), (trace.sets, everything)),
    ]


def _events(trace: Trace, kind: str, *parts: tuple[Spans, np.ndarray | slice]) -> Events:
    """The events of a kind: of each table those that a mask selects. A column that one table lacks, no lane shows."""
    tables, rows = [], []
    for table, mask in parts:
        row = np.arange(len(table))[mask]
        tables.append(table.where(row))
        rows.append(row if table is trace.operators or table is trace.runtime else np.full(len(row), -1))
    events = Events(kind, joined(tables), np.concatenate(rows))
    return events if len(parts) == 1 else events.where(np.lexsort([-events.spans.end, events.spans.start]))


def _plain_events(kind: str, start: np.ndarray, end: np.ndarray, name: np.ndarray) -> Events:
    """Events that are in no table of the trace."""
    none = np.full(len(start), -1)
    return Events(kind, Spans(start, end, name, none, none, none), none)


def window(
    trace: Trace,
    parts: Sequence[Events],
    steps: Steps,
    first: int | None,
    last: int | None,
    extra: np.ndarray,
    total: tuple[float, float],
) -> Window:
    """The `Window` of the steps that are asked for; None for the first one, and for as many as fit into `MAX_EVENTS`.

    Where none are asked for and all events of the trace fit, also those outside of the steps, it is the whole trace. Of
    steps with more events, it ends before they do. extra: starts of the events that are in no part. total: from the
    first event to the last one, and the steps. Raises InputError where the trace has no such steps.
    """
    count = len(steps.names)
    begin = 0 if first is None else first
    stop = count - 1 if last is None else min(last, count - 1)
    if begin >= count:
        raise InputError(f"{trace.file.name} has {count} step{'s' * (count > 1)}, so none with the index {begin}")
    low, highs = np.minimum(steps.cpu_start, steps.start), np.maximum(steps.cpu_end, steps.end)
    if not steps.marked or (first is None and last is None):
        if sum(map(len, parts)) + len(extra) <= MAX_EVENTS:
            return Window(0, count - 1, total[0], float(np.nextafter(total[1], np.inf)))
        if not steps.marked:
            low, highs = np.array(total[:1]), np.array(total[1:])
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


def _device_lanes(
    analysis: Analysis, shown: Window, chosen: Mapping[str, Events], first_cause: int, threads: dict[int, str]
) -> list[Lane]:
    """first_cause: the number of the name of the first of `CAUSES`."""
    trace, streams, rows = analysis.trace, stream_names(analysis.trace), []
    place = {thread: number for number, thread in enumerate(streams)}
    watched = [thread for thread, name in threads.items() if name == MAIN or name.startswith(AUTOGRAD)][: MAX_GPUS + 1]
    for gpu in analysis.idle:
        gaps = np.flatnonzero((gpu.start < shown.end) & (gpu.end > shown.start))
        causes = first_cause + gpu.by_gap[:, gaps].argmax(axis=0)
        own, group = _plain_events("idle", gpu.start[gaps], gpu.end[gaps], causes), _group(gpu.device)
        facts = gap_facts(trace, gpu, gaps, watched)
        lane = Lane(f"idle {gpu.device}", f"{group}, idle", "stretches without a kernel", group, -1, own, facts)
        rows.append((gpu.device, 0, 0, lane))
    for order, kind in enumerate(("kernel", "copy"), 1):
        devices = np.nan_to_num(chosen[kind].spans.device, nan=-1.0) if kind in chosen else np.empty(0)
        for device, here in places(devices).items():
            of_device = chosen[kind].where(here)
            for thread, own in places(of_device.spans.thread).items():
                (process, stream), label = trace.threads[thread], streams[thread]
                plain = label.split(" (")[0]
                name = label if kind == "kernel" or label.endswith("(copies)") else f"{plain} (copies)"
                identity = f"{kind} {int(device)} {stream.removeprefix('stream ').strip()}"
                title = f"process {process}, {plain}"
                lane = Lane(identity, name, title, _group(device), thread, of_device.where(own))
                rows.append((device, order, place[thread], lane))
    return [lane for *_, lane in sorted(rows, key=lambda row: row[:3])]


def _group(device: float) -> str:
    return f"GPU {int(device)}" if device >= 0 else "GPU"


def _cpu_lanes(trace: Trace, chosen: Mapping[str, Events], threads: dict[int, str]) -> list[Lane]:
    by_thread = {kind: places(chosen[kind].spans.thread) for kind in ON_CPU if kind in chosen}
    used = sorted({thread for found in by_thread.values() for thread in found})
    titles = {thread: "process {}, thread {}".format(*trace.threads[thread]) for thread in {*threads, *used}}
    return [
        Lane(f"{kind} {name}", name + ON_CPU[kind], titles[thread], name, thread, chosen[kind].where(found[thread]))
        for thread, name in (threads | {thread: titles[thread] for thread in used if thread not in threads}).items()
        for kind, found in by_thread.items()
        if thread in found
    ]


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
    main = -1
    if len(trace.operators) or trace.has_name(is_step, trace.annotations):
        main = stepping_thread(trace)
    elif filled := [spans.thread for spans in (trace.annotations, trace.runtime, trace.python) if len(spans)]:
        main = int(np.bincount(filled[0]).argmax())
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
    calls, operators, count = np.full(len(trace.runtime) + 1, -1), np.full(len(trace.operators) + 1, -1), 0
    for row in rows:
        numbered = row.events.row >= 0
        numbers = calls if row.events.kind == "runtime" else operators
        numbers[row.events.row[numbered]] = count + np.flatnonzero(numbered)
        count += len(row.events)
    called_by = launching_operators(trace, np.arange(len(trace.runtime)))
    operators = np.append(operators[called_by], -1)  # of the operator that made each call
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(row.events.spans.name for row in rows)]))
    return {
        "names": [names[number] for number in used.tolist()],
        "lanes": [_as_json(trace, row, begin, used, calls, operators) for row in rows],
    }


def _as_json(
    trace: Trace, lane: Lane, begin: float, used: np.ndarray, calls: np.ndarray, operators: np.ndarray
) -> dict[str, Any]:
    """calls, operators: the numbers of the events of calls, and of the operators that made them."""
    pid, tid = trace.threads[lane.thread] if lane.thread >= 0 else ("", "")
    kind, spans = lane.events.kind, lane.events.spans
    level = levels(spans.start, spans.end)
    answer: dict[str, Any] = {
        "id": lane.id,
        "label": lane.label,
        "title": lane.title,
        "kind": kind,
        "group": lane.group,
        "thread": lane.thread,
        "pid": pid,
        "tid": tid,
        "levels": int(level.max(initial=0)) + 1,
        "start": (spans.start - begin).round(3).tolist(),
        "duration": (spans.end - spans.start).round(3).tolist(),
        "name": np.searchsorted(used, spans.name).tolist(),
        "level": level.tolist(),
    }
    if kind == "idle":
        answer["facts"] = lane.facts[:MAX_FACTS]
    if kind in ("runtime", "kernel", "copy"):
        answer["correlation"] = spans.correlation.tolist()
    if kind in ("kernel", "copy"):
        answer["launch"] = calls[spans.call].tolist()
        answer["operator"] = operators[spans.call].tolist()
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
