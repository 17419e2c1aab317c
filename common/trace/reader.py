"""From a file to a `Trace`: the events that numbers are computed from, sorted by kind and put into columns."""

import gc
from contextlib import suppress
from operator import attrgetter

import numpy as np

from common.errors import InputError
from common.trace import decode, source
from common.trace.columns import MemoryEvents, Spans, Trace
from common.trace.event import Args

OPERATOR, RUNTIME, KERNEL, COPY, SET, ANNOTATION = "operator", "runtime", "kernel", "copy", "set", "annotation"
MEMORY = "memory"

# Categories of torch.profiler from 2021 to today, lower case. Those that name a runtime's or a driver's calls
# (cuda_runtime, cuda_driver, hip_runtime, xpu_runtime, …) are told by their ending.
KINDS = {
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "python": OPERATOR,
    "runtime": RUNTIME,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": SET,
    "memset": SET,
    "user_annotation": ANNOTATION,
}
FARTHEST = 1e16  # µs, 300 years: what lies beyond is no time, and would cost the others their precision

NUMBERS = ("device", "bytes", "blocks_per_sm", "occupancy")
MEMORY_NUMBERS = ("device_type", "device_id", "allocation", "allocated", "reserved")


def read(trace):
    """Read a trace of torch.profiler, of any year and device, into a `Trace`.

    trace: the path of a file, JSON or gzipped JSON, or the `source.Chunks` of one. Raises InputError where it cannot be
    read, holds no trace, or is larger than allowed. What is damaged is left out, and `Trace.warnings` says so.
    """
    pieces = trace if isinstance(trace, source.Chunks) else source.Chunks(trace)
    path, header, warnings = pieces.path, {}, pieces.warnings
    columns = _Columns()
    collecting = gc.isenabled()
    gc.disable()  # events are many, short-lived and free of cycles
    try:
        for run in decode.events(pieces, path, header, warnings):
            columns.add(run)
    finally:
        pieces.close()
        if collecting:
            gc.enable()
    if not columns.seen:
        raise InputError(f"{path} holds no events: nothing was recorded, or nothing could be read")
    return columns.trace(path, header, warnings)


def rank_of(path):
    """The rank that a trace's opening lines name, or None. Reads no further than its first events."""
    header = {}
    with source.Chunks(path) as pieces, suppress(InputError):
        next(decode.events(pieces, path, header, []), None)
    return _rank(header)


class _Columns:
    def __init__(self):
        self.seen = 0
        self.names, self.threads, self.addresses = _Numbered(), _Numbered(), _Numbered()
        self.runs = {kind: [] for kind in (OPERATOR, RUNTIME, KERNEL, COPY, SET, ANNOTATION, MEMORY)}
        self.odd = 0  # events without a usable time

    def add(self, events):
        self.seen += len(events)
        picked = {kind: [] for kind in self.runs}
        pick = _Picks(picked)
        for event in events:
            if event.ph == "X":
                if append := pick[event.cat]:
                    append(event)
            elif event.ph == "i" and event.name == "[memory]" and event.args:
                picked[MEMORY].append(event)
        for event in picked[ANNOTATION]:
            if (event.name or "").startswith(("enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.")):
                picked[OPERATOR].append(event)
        for kind, found in picked.items():
            if found:
                self.runs[kind].append(self._columns(kind, found))

    def _columns(self, kind, events):
        names, threads = self.names, self.threads
        start = _numbers([event.ts for event in events])
        columns = {"start": start, "thread": [threads[e.pid, e.tid] for e in events]}
        args = [event.args or NO_ARGS for event in events]
        usable = np.abs(start) < FARTHEST
        if kind == MEMORY:
            addresses = self.addresses
            columns["address"] = [-1 if a.address is None else addresses[a.address] for a in args]
            for name in MEMORY_NUMBERS:
                columns[name] = _numbers(list(map(attrgetter(name), args)))
        else:
            length = _numbers([event.dur for event in events])
            usable &= (length >= 0) & (length < FARTHEST)
            columns["duration"] = length
            columns["name"] = [names[event.name] for event in events]
            columns["external"] = _ids([a.external if a.external_2021 is None else a.external_2021 for a in args])
            columns["correlation"] = _ids([a.correlation for a in args])
            if kind in (KERNEL, COPY, SET):
                for name in NUMBERS:
                    columns[name] = _numbers(list(map(attrgetter(name), args)))
                lacking = np.isnan(columns["device"])
                if lacking.any():  # on a device's row the process is the device's number
                    columns["device"] = np.where(lacking, _numbers([e.pid for e in events]), columns["device"])
        self.odd += int(len(usable) - usable.sum())
        return {name: np.asarray(column)[usable] for name, column in columns.items()}

    def trace(self, path, header, warnings):
        if self.odd:
            warnings.append(f"{path.name}: {self.odd} events without a usable time are left out")
        # The order of events that begin together must not depend on the order in the file: the outer one first.
        tables = {kind: _joined(runs) for kind, runs in self.runs.items()}
        starts = [table["start"] for table in tables.values() if table]
        if not starts or not sum(map(len, starts)):
            raise InputError(f"{path} holds no event of a kind that torch.profiler records: nothing to explain")
        starts = np.concatenate(starts)
        origin = float(np.floor(np.partition(starts, len(starts) // 2)[len(starts) // 2]))
        for table in tables.values():
            if table:
                table["start"] -= origin
            if "duration" in table:
                table["end"] = table["start"] + table.pop("duration")
        threads = {}  # a thread's id is a number in some events and a text in others
        same = [threads.setdefault((str(pid), str(tid)), len(threads)) for pid, tid in self.threads]
        for table in filter(None, tables.values()):
            table["thread"] = np.array(same)[table["thread"]]
        memory = tables.pop(MEMORY) or {"start": np.empty(0)}
        annotations = _spans(tables[ANNOTATION])
        return Trace(
            file=path,
            origin=origin,
            names=[name or "" for name in self.names],
            threads=list(threads),
            operators=_spans(tables[OPERATOR]),
            runtime=_spans(tables[RUNTIME]),
            kernels=_spans(tables[KERNEL]),
            copies=_spans(tables[COPY]),
            sets=_spans(tables[SET]),
            annotations=annotations,
            memory=MemoryEvents(
                time=memory["start"],
                **{name: memory.get(name, np.empty(0)) for name in ("thread", "address", *MEMORY_NUMBERS)},
            ),
            properties=_properties(header),
            rank=_rank(header),
            warnings=warnings,
        )


NO_ARGS = Args()


class _Numbered(dict):
    """From a value to its number, in order of appearance."""

    def __missing__(self, value):
        self[value] = number = len(self)
        return number


class _Picks(dict):
    """From a category to the `append` of the list of its kind; None for those that nothing here is computed from."""

    def __init__(self, picked):
        self.picked = picked

    def __missing__(self, category):
        lower = (category or "").lower()
        kind = RUNTIME if lower.endswith(("_runtime", "_driver")) else KINDS.get(lower)
        self[category] = self.picked[kind].append if kind else None
        return self[category]


def _numbers(values):
    """A float64 array; NaN for what is no number, or beyond all that is ever counted."""
    try:
        made = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        made = np.array([_number(value) for value in values], np.float64)
    made[~(abs(made) < 2**62)] = np.nan
    return made


def _number(value):
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return np.nan


def _ids(values):
    """An int64 array of ids; -1 where there is none."""
    values = [-1 if value is None else value for value in values]
    try:
        return np.array(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_id(value) for value in values], np.int64)


def _id(value):
    number = _number(value)
    return int(number) if abs(number) < 2**62 else hash(value) >> 2


def _joined(runs):
    if not runs:
        return {}
    table = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    keys = [table["name"], -table["duration"], table["start"]] if "duration" in table else [table["start"]]
    order = np.lexsort(keys)
    return {name: column[order] for name, column in table.items()}


def _spans(table):
    if table:
        return Spans(**table)
    whole = np.empty(0, np.int64)
    return Spans(np.empty(0), np.empty(0), whole, whole, whole, whole)


def _properties(header):
    found = header.get("deviceProperties")
    devices = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return {int(_number(d.get("id"))): d for d in devices if np.isfinite(_number(d.get("id")))}


def _rank(header):
    found = header.get("distributedInfo")
    rank = found.get("rank") if isinstance(found, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None
