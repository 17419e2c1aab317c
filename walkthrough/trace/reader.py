"""From a file to a `Trace`: events in columns, and what `walkthrough trace` recorded; and one event's arguments.

What it recorded (the steps before tracing, the optimizers, the loaders, the cores) is in the trace's header under
"walkthrough". A file from elsewhere may hold anything there: what is not of the right type is left out.
"""

import gc
from collections.abc import Sequence
from contextlib import closing, suppress
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import Meta, Struct

from walkthrough.results.errors import InputError, printable
from walkthrough.trace.chrome_trace import Args, Chunks, Event, Header, Number, clean, values_of
from walkthrough.trace.chrome_trace import events as events_of_trace
from walkthrough.trace.columns import MemoryEvents, Spans, Trace, calls_of, median

# Kinds of events, named after the tables of a `Trace`.
OPERATOR, RUNTIME, KERNEL, COPY, SET = "operators", "runtime", "kernels", "copies", "sets"
ANNOTATION, PYTHON, MEMORY = "annotations", "python", "memory"
SPANS = (OPERATOR, RUNTIME, KERNEL, COPY, SET, ANNOTATION, PYTHON)

# Categories of torch.profiler from 2021 to today, lower case. Those of a runtime's or a driver's calls (cuda_runtime,
# cuda_driver, hip_runtime, xpu_runtime, …) are recognised by the ending.
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
    "python_function": PYTHON,
    # Device work that is not read (Kineto's ActivityType.h): Meta's MTIA, Intel's Gaudi.
    "mtia_ccp_events": "MTIA",
    "mtia_insight": "MTIA",
    "hpu_op": "HPU",
}
# Operators whose inputs' shapes and types are kept.
SHAPED = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation"}
MAX_NAME = 10_000  # letters, twice the longest name in public traces: each is compared with many expressions
MAX_THREAD_NAME = 200  # letters: the system's own have 15, and the profiler adds the number
EVENT_BYTES = 128  # of the largest trace that is read there may be an event each: those of a real one are longer
MAX_DISTINCT = 1_000_000  # names, threads, or shapes: several times as many as in any real trace
MAX_RANK = 2**31
MAX_NUMBER = 2**62  # larger ones are damage
MAX_TIME = 1e16  # µs, 300 years: larger values are damage, and would cost the other times their precision

HEADER = ("deviceProperties", "distributedInfo", "hip_runtime_version", "baseTimeNanoseconds", "walkthrough")
NUMBERS = ("device", "bytes", "blocks_per_sm", "occupancy")
MEMORY_NUMBERS = ("device_type", "device_id", "allocation", "allocated", "reserved")

Table = dict[str, np.ndarray]  # columns of equal length by their names


def read(path: str | Path | Chunks) -> Trace:
    """Read a trace of torch.profiler, of any year and device.

    path: of a file, JSON or gzipped JSON; or the `Chunks` of one. Raises InputError if it cannot be read, is not a
    trace, or is larger than allowed. A damaged file is read up to the damage, with a line in `Trace.warnings`.
    """
    chunks = path if isinstance(path, Chunks) else Chunks(path)
    header: Header = {}
    columns = _Columns()
    collecting = gc.isenabled()
    gc.disable()  # events are many, short-lived and free of cycles
    try:
        for run in events_of_trace(chunks, chunks.path, header, chunks.warnings, Event):
            columns.add(run)
            if columns.seen > (most := chunks.max_size // EVENT_BYTES):
                raise InputError(f"{chunks.path} holds more than {most:,} events; {chunks.option} raises the limit")
            # more than a trace holds, such as millions of names in a file that was packed to be small
            kept = (columns.names, columns.threads, columns.inputs, columns.thread_names)
            if max(map(len, kept)) > MAX_DISTINCT:
                raise InputError(f"{chunks.path} holds more names or threads than any trace of torch.profiler")
    finally:
        chunks.close()
        if collecting:
            gc.enable()
    if not columns.seen:
        raise InputError(f"{chunks.path} holds no events: nothing was recorded, or nothing could be read")
    return columns.trace(chunks.path, values_of(header, HEADER), chunks.warnings)


def rank_of(path: str | Path) -> int | None:
    """The rank in a trace's header, or None. Reads no further than the first events."""
    header: Header = {}
    with closing(Chunks(path)) as chunks, suppress(InputError):
        next(events_of_trace(chunks, path, header, [], Event), None)
    return _rank(values_of(header, ["distributedInfo"]))


class _Columns:
    """Collects the columns of a trace's events, run by run."""

    def __init__(self) -> None:
        self.none = Args()
        self.seen = 0
        self.names, self.threads, self.addresses, self.inputs = _Numbered(), _Numbered(), _Numbered(), _Numbered()
        self.runs: dict[str, list[Table]] = {kind: [] for kind in (*SPANS, MEMORY)}
        self.thread_names = _Numbered()
        self.accelerator = ""

    def add(self, events: list[Event]) -> None:
        self.seen += len(events)
        by_kind: dict[str, list[Event]] = {kind: [] for kind in (*self.runs, *KINDS.values())}
        kinds = {category: _kind(category) for category in {event.cat for event in events}}
        for event in events:
            if event.ph == "X":
                if kind := kinds[event.cat]:
                    by_kind[kind].append(event)
            elif event.ph == "i" and event.name == "[memory]" and event.args:
                by_kind[MEMORY].append(event)
            elif event.ph == "M" and event.name == "thread_name" and event.args:
                self.thread_names[str(event.pid), str(event.tid), _thread_name(event.args.name)]
        for event in by_kind[ANNOTATION]:
            if (event.name or "").startswith(("enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.")):
                by_kind[OPERATOR].append(event)
        for kind, selected in by_kind.items():
            if selected and kind in self.runs:
                self.runs[kind].append(self._columns(kind, selected))
            elif selected:
                self.accelerator = kind

    def _columns(self, kind: str, events: list[Event]) -> Table:
        """The columns of a run's events of one kind, with their times and numbers as in the file."""
        names, threads = self.names, self.threads
        columns: dict[str, np.ndarray | list[int]] = {
            "start": _numbers([event.ts for event in events]),
            "thread": [threads[event.pid, event.tid] for event in events],
        }
        args: list[Args] = [] if kind == PYTHON else [event.args or self.none for event in events]
        if kind == MEMORY:
            addresses = self.addresses
            columns["address"] = [-1 if arg.address is None else addresses[arg.address] for arg in args]
            for name in MEMORY_NUMBERS:
                columns[name] = _numbers(list(map(attrgetter(name), args)))
        else:
            columns["duration"] = _numbers([event.dur for event in events])
            columns["name"] = name_numbers = [names[event.name] for event in events]
            if kind == PYTHON:
                columns["external"] = columns["correlation"] = np.full(len(events), -1)
            else:
                external = _ids([arg.external for arg in args])
                if external.min() < 0:  # an event without the id of today has that of 2021, or none
                    external = np.where(external < 0, _ids([arg.external_2021 for arg in args]), external)
                columns["external"] = external
                columns["correlation"] = _ids([arg.correlation for arg in args])
            if kind == OPERATOR:
                columns["sequence"] = _ids([arg.sequence for arg in args])
                shaped = {number for name in SHAPED if (number := names.get(name)) is not None}
                columns["inputs"] = [
                    self.inputs[bytes(arg.shapes), bytes(arg.types)] if number in shaped else -1
                    for number, arg in zip(name_numbers, args, strict=True)
                ]
            if kind == ANNOTATION:
                columns["finished"] = np.array([bytes(arg.finished) != b"false" for arg in args], bool)
            if kind in (KERNEL, COPY, SET):
                for name in NUMBERS:
                    columns[name] = _numbers(list(map(attrgetter(name), args)))
                missing = ~(abs(np.asarray(columns["device"])) < MAX_NUMBER)
                if missing.any():  # in a device's row the process is the device's number
                    pids = _numbers([event.pid for event in events])
                    columns["device"] = np.where(missing, pids, columns["device"])
        return {name: np.asarray(column) for name, column in columns.items()}

    def trace(self, path: Path, header: dict[str, object], warnings: list[str]) -> Trace:
        tables = {kind: _joined(runs) for kind, runs in self.runs.items() if runs}
        starts = np.concatenate([np.empty(0), *(table["start"] for table in tables.values())])
        if untimed := sum(len(run["start"]) for runs in self.runs.values() for run in runs) - len(starts):
            warnings.append(f"{path.name}: {untimed} events without a usable time are left out")
        if not len(starts):
            raise InputError(f"{path} holds no event of a kind that torch.profiler records: nothing to explain")
        if PYTHON in tables and len(starts) == len(tables[PYTHON]["start"]):
            raise InputError(f"{path} holds calls of Python functions alone: record ProfilerActivity.CPU too")
        origin = float(np.floor(np.partition(starts, len(starts) // 2)[len(starts) // 2]))
        threads: dict[tuple[str, str], int] = {}  # a thread's id is a number in some events and a text in others
        merged = [threads.setdefault((str(pid), str(tid)), len(threads)) for pid, tid in self.threads]
        for table in tables.values():
            table["start"] -= origin
            table["thread"] = np.array(merged)[table["thread"]]
            if "duration" in table:
                table["end"] = table["start"] + table.pop("duration")
        memory = tables.pop(MEMORY, {"start": np.empty(0)})
        spans = {kind: _spans(tables.get(kind)) for kind in SPANS}
        for kind in (KERNEL, COPY, SET):
            spans[kind].call = calls_of(spans[RUNTIME], spans[kind].correlation)
        return Trace(
            file=path,
            origin=origin,
            names=[name or "" for name in self.names],
            threads=list(threads),
            thread_names={(pid, tid): name for pid, tid, name in self.thread_names if name},
            **spans,
            inputs=list(self.inputs),
            memory=MemoryEvents(
                time=memory["start"],
                **{name: memory.get(name, np.empty(0)) for name in ("thread", "address", *MEMORY_NUMBERS)},
            ),
            properties=_properties(header),
            rank=_rank(header),
            warnings=warnings,
            hip=header.get("hip_runtime_version") is not None,
            accelerator=self.accelerator,
            recording=_recording(header),
            base_us=as_number(header.get("baseTimeNanoseconds")) / 1e3,
        )


class _Numbered(dict[Any, int]):
    """From a value, of which `_cut` remains, to its number, in order of appearance."""

    def __missing__(self, value: object) -> int:
        if (short := _cut(value)) != value:
            return self[short]
        self[value] = number = len(self)
        return number


def _cut(value: Any) -> Any:
    """The value without what is longer in it than any name of torch's."""
    if isinstance(value, tuple):
        return tuple(map(_cut, value))
    return value[:MAX_NAME] if isinstance(value, str | bytes) else value


def _kind(category: str | None) -> str | None:
    """The kind of the events of a category; None for categories that no number needs."""
    lower = (category or "").lower()
    return RUNTIME if lower.endswith(("_runtime", "_driver")) else KINDS.get(lower)


def _numbers(values: Sequence[Number]) -> np.ndarray:
    """A float64 array; NaN for what is not a number."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (ValueError, TypeError, OverflowError):
        return np.array([as_number(value) for value in values], np.float64)


def as_number(value: Any) -> float:
    """A number of a trace, which may be a text; NaN for what is none."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return np.nan


def _ids(values: Sequence[Number]) -> np.ndarray:
    """An int64 array of ids; -1 for none."""
    try:
        return np.array(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([-1 if value is None else _id(value) for value in values], np.int64)


def _id(value: Number) -> int:
    number = as_number(value)
    return int(number) if abs(number) < MAX_NUMBER else hash(value) >> 2


def _thread_name(raw: msgspec.Raw) -> str:
    """A text as JSON; "" for anything else."""
    text = bytes(raw)
    try:
        return msgspec.json.decode(clean(text), type=str)[:MAX_THREAD_NAME] if 0 < len(text) < MAX_NAME else ""
    except msgspec.DecodeError:
        return ""


def _joined(runs: list[Table]) -> Table:
    """The columns of all runs, of the events with a usable time, sorted by start; NaN for numbers out of range.

    Events that begin together do not depend on the order in the file: the outer one comes first.
    """
    table = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    usable = abs(table["start"]) < MAX_TIME
    if "duration" in table:
        usable &= (table["duration"] >= 0) & (table["duration"] < MAX_TIME)
    if not usable.all():
        table = {name: column[usable] for name, column in table.items()}
    for column in table.values():
        if column.dtype == np.float64:
            column[~(abs(column) < MAX_NUMBER)] = np.nan
    keys = [table["name"], -table["duration"], table["start"]] if "duration" in table else [table["start"]]
    order = np.lexsort(keys)
    return {name: column[order] for name, column in table.items()}


def _spans(table: Table | None) -> Spans:
    if table:
        return Spans(**table)
    no_ids = np.empty(0, np.int64)
    return Spans(np.empty(0), np.empty(0), no_ids, no_ids, no_ids, no_ids)


def _properties(header: dict[str, object]) -> dict[int, dict[str, Any]]:
    value = header.get("deviceProperties")
    devices = [device for device in value if isinstance(device, dict)] if isinstance(value, list) else []
    return {int(as_number(device.get("id"))): device for device in devices if np.isfinite(as_number(device.get("id")))}


def _rank(header: dict[str, object]) -> int | None:
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if type(rank) is int and 0 <= rank < MAX_RANK else None


NEW_EPOCH, EVALUATION, CHECKPOINT = "new epoch", "evaluation", "checkpoint"


class Optimizer(Struct, frozen=True):
    """An optimizer of the program. name: its class. steps: how often it ran. lead: whether it marks steps."""

    name: str
    steps: int = 0
    lead: bool = False


class Loader(Struct, frozen=True):
    """A DataLoader that the program trains on, as it was constructed."""

    batch_size: int | None = None
    num_workers: int = 0
    persistent_workers: bool = False
    pin_memory: bool = False
    prefetch_factor: int | None = None


class Happening(Struct, frozen=True):
    """What a step does besides training. step: the text after "ProfilerStep#". what: `NEW_EPOCH`, …"""

    step: str
    what: str


Milliseconds = Annotated[float, Meta(ge=0, lt=MAX_TIME / 1e3)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]


class Recording(Struct, frozen=True):
    """What the program itself knew when the trace was recorded.

    untraced_step_ms, untraced_after_ms: of steps before and after the traced ones, in order, without the first steps of
    the program. untraced_happenings: of those steps, by their index in both lists, as text. steps_per_epoch: None where
    no second epoch began. epoch_step_ms: of steps that began an epoch, traced or not, without an evaluation before it.
    warmup: steps before the traced ones. asked: "warmup" and "steps" as the user asked for. total_steps: that the
    program made. cores: that the process may use. processes: of the training, on the same machine. threads: of torch.
    openmp: the variables of its environment that say how OpenMP's threads wait. backwards_per_step: backward passes per
    traced step, more than 1 where gradients are accumulated. skipped: traced steps whose optimizer GradScaler did not
    run. samples_per_step: of the DataLoader's batches; None without one. moved: how often tracing began anew because of
    an evaluation or a new epoch. happenings: of the traced steps.

    Of the untraced steps' wall time, 0..1: workers_cpu: in which the mean worker process computed, or waited for a
    core. cpu_waiting: in which the training thread could run and had no core. asleep: in which it waited for something
    else. cpus_used: cores that the training process used, on average. None where unknown.
    """

    untraced_step_ms: list[Milliseconds] = []
    untraced_after_ms: list[Milliseconds] = []
    untraced_happenings: list[Happening] = []
    steps_per_epoch: Count | None = None
    epoch_step_ms: list[Milliseconds] = []
    warmup: Count | None = None
    asked: dict[str, Count] = {}
    total_steps: Count | None = None
    cores: int | None = None
    processes: int = 1
    threads: Count | None = None
    openmp: dict[str, str] = {}
    workers_cpu: float | None = None
    cpu_waiting: float | None = None
    asleep: float | None = None
    cpus_used: float | None = None
    mark: str = "optimizer"
    backwards_per_step: float | None = None
    skipped: int = 0
    samples_per_step: float | None = None
    moved: int = 0
    optimizers: list[Optimizer] = []
    loaders: list[Loader] = []
    happenings: list[Happening] = []

    @property
    def untraced_us(self) -> float | None:
        """The median step before tracing, µs; None where none was timed."""
        return float(median(np.array(self.untraced_step_ms))) * 1e3 if self.untraced_step_ms else None

    @property
    def epoch_begin_us(self) -> float:
        """µs that the median step that begins an epoch takes longer than the median step; 0.0 where that is unknown."""
        if not self.epoch_step_ms or self.untraced_us is None:
            return 0.0
        return max(0.0, float(median(np.array(self.epoch_step_ms))) * 1e3 - self.untraced_us)

    @property
    def epoch_steps(self) -> float:
        """Steps of an epoch, at least as many as there were for each that began; 0.0 where no second one did."""
        begun = len(self.epoch_step_ms) + 1  # the first one began with the program
        return max(self.steps_per_epoch, (self.total_steps or 0) / begun) if self.steps_per_epoch else 0.0

    @property
    def epoch_share(self) -> float:
        """Of the time of all steps, what those that begin an epoch take longer, 0..1; 0.0 where that is unknown."""
        longer = self.epoch_begin_us if self.epoch_steps else 0.0
        return longer / (longer + self.epoch_steps * (self.untraced_us or 0.0)) if longer else 0.0

    @property
    def workers(self) -> int:
        """The worker processes of the loader that has most of them."""
        return max((loader.num_workers for loader in self.loaders), default=0)

    @property
    def has_cores_left(self) -> bool:
        """False where the loader's workers and the training process use all cores, as far as that is known."""
        return not self.cores or not self.workers or self.cores > (self.workers + 1) * self.processes


def _recording(header: dict[str, Any]) -> Recording | None:
    """The `Recording` in a trace's header; None for a trace that is not of `walkthrough trace`."""
    value = header.get("walkthrough")
    if not isinstance(value, dict):
        return None
    fields = {}
    for field in msgspec.structs.fields(Recording):
        with suppress(KeyError, msgspec.ValidationError):
            fields[field.name] = msgspec.convert(value[field.name], field.type)
    return Recording(**fields)


NEAR = 1.0  # µs: times of 2021 are whole µs since 1970, of which a float64 holds quarters
MAX_VALUE, MAX_STACK = 400, 4_000  # letters that are shown of a value, and of a stack
STACK, FORWARD = "Call stack", "Fwd thread id"
LABELS = {  # of the arguments whose names a page would not show
    "Input Dims": "shapes",
    "Input type": "types",
    "Concrete Inputs": "values",
    FORWARD: "forward thread",
    "Module Hierarchy": "module",
    STACK: "stack",
    "kernel_backend": "backend",
    "kernel_kwargs": "Triton",
    "kernel_file": "source",
    "num_warps": "warps",
    "num_stages": "stages",
    "est. achieved occupancy %": "estimated occupancy, %",
    "memory bandwidth (GB/s)": "GB/s",
    "Collective name": "collective",
    "In msg nelems": "elements in",
    "Out msg nelems": "elements out",
    "dtype": "type",
    "In split size": "split in",
    "Out split size": "split out",
    "Group size": "group size",
    "Process Group Name": "group",
    "Process Group Description": "group of",
    "Process Group Ranks": "ranks",
    "Src Rank": "from rank",
    "Dst Rank": "to rank",
}
IDS = frozenset(  # and pointers: they tell nothing of what an event does
    {"External id", "external id", "correlation", "device", "context", "stream", "queued", "cbid", "Ev Idx", "Addr"}
    | {"Record function id", "Sequence number", "Python id", "Python parent id", "Python module id", "finished"}
)


class _Event(Event, gc=False):
    args: msgspec.Raw = msgspec.Raw()  # pyright: ignore[reportIncompatibleVariableOverride]


def event(
    path: str | Path | Chunks, name: str, thread: tuple[str, str], at_us: float, duration_us: float
) -> dict[str, str | float]:
    """What the file says of one event: {argument: text or number}, without ids; {} where it says nothing.

    thread: its process and thread or stream, as in `Trace.threads`. at_us: its start as in the file, µs. The file is
    read once more. Raises InputError if it cannot be read, or holds no such event.
    """
    nearest, found = NEAR, None
    with closing(path if isinstance(path, Chunks) else Chunks(path)) as chunks:
        for run in events_of_trace(chunks, chunks.path, {}, [], _Event):
            for one in run:
                if (one.name or "")[:MAX_NAME] == name and one.ph == "X" and (str(one.pid), str(one.tid)) == thread:
                    apart = abs(as_number(one.ts) - at_us) + abs(as_number(one.dur) - duration_us)
                    if apart < nearest:
                        nearest, found = apart, one
    if found is None:
        raise InputError(f"{chunks.path.name} holds no event {printable(name, 100)} at that time")
    try:
        args = msgspec.json.decode(clean(bytes(cast(msgspec.Raw, found.args))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # nothing, or damaged
        return {}
    facts: dict[str, str | float] = {}
    for key, value in args.items() if isinstance(args, dict) else ():
        shown = _shown(value, MAX_STACK if key == STACK else MAX_VALUE)
        in_every_operator = key == FORWARD and value == 0
        if shown is not None and key not in IDS and not in_every_operator:
            facts[LABELS.get(key, key)] = shown
    return facts


def _shown(value: object, most: int) -> str | float | None:
    """A number, or a text without quotes of at most so many letters; None for nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else str(value)
    text = _text(value)
    if not text.strip("[], "):
        return None
    return text if len(text) <= most else text[: most - 2] + " …"


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "" if value is None else str(value)
