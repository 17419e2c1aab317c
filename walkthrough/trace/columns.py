"""The columns of a trace's events, which operator lies in which, and which call launched what."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict

from walkthrough.trace.chrome_trace import PARTIAL
from walkthrough.trace.intervals import Cover

T = TypeVar("T")


def once(compute: Callable[[Any], T]) -> Callable[[Any], T]:
    """A decorator: the result is kept with its only argument, a `Trace` or an `Analysis`, for all that ask for it."""
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def computed(of: Any) -> T:
        kept = vars(of)
        if key not in kept:
            kept[key] = compute(of)
        return kept[key]

    return computed


# numpy's own `median`, `quantile` and `unique` import numpy.ma, for arrays with masks: 10 ms.


def median(values: np.ndarray) -> np.ndarray:
    """The median along the last axis, which is not empty; NaN is larger than all numbers."""
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2


def quantile(values: np.ndarray, share: float) -> float:
    """The number that this share of the values is below, interpolated; of a vector that is not empty."""
    return float(np.interp(share * (len(values) - 1), np.arange(len(values)), np.sort(values)))


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, sorted; one NaN."""
    return np.unique(values, return_counts=True)[0]  # with counts, it does not look for masks


def places(values: np.ndarray) -> dict[Any, np.ndarray]:
    """{value: the indices at which it is, in order}, sorted by value; one NaN."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero((ordered[1:] != ordered[:-1]) & (ordered[:-1] == ordered[:-1])) + 1  # NaN are last
    parts = np.split(order, first) if len(order) else []
    return {values[part[0]].item(): part for part in parts}


MAX_GPUS = 64  # of one machine, as in the plugin

if TYPE_CHECKING:  # their modules import this one
    from walkthrough.trace.reader import Recording


class Spans(Struct):
    """Events with a duration, sorted by start.

    start, end: µs since `Trace.origin`, float64. name: index into `Trace.names`. thread: index into `Trace.threads`.
    external, correlation: int64 ids, -1 for none. device, bytes, blocks_per_sm, occupancy: float64, NaN where not
    recorded; empty for anything but device work. inputs: index into `Trace.inputs`, -1 where not kept; empty for
    anything but operators. sequence: of an operator that may have a gradient the number of the next node of the
    backward pass, of such a node its own; -1 for none; empty for anything but operators. finished: False where the
    profiler stopped before it ended; empty for anything but annotations. call: index into `Trace.runtime` of the call
    that launched it, -1 for none; empty for anything but device work.
    """

    start: np.ndarray
    end: np.ndarray
    name: np.ndarray
    thread: np.ndarray
    external: np.ndarray
    correlation: np.ndarray
    device: np.ndarray = field(default_factory=lambda: np.empty(0))
    bytes: np.ndarray = field(default_factory=lambda: np.empty(0))
    blocks_per_sm: np.ndarray = field(default_factory=lambda: np.empty(0))
    occupancy: np.ndarray = field(default_factory=lambda: np.empty(0))
    inputs: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    sequence: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    finished: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    call: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> np.ndarray:
        """µs, float64."""
        return self.end - self.start

    def cover(self, mask: np.ndarray | slice = slice(None)) -> Cover:
        """When any of the spans runs that a boolean mask or an index array selects."""
        return Cover(self.start[mask], self.end[mask])

    def where(self, mask: np.ndarray) -> "Spans":
        """The spans that a boolean mask or an index array selects."""
        return Spans(**{name: column[mask] if len(column) else column for name, column in asdict(self).items()})


def in_turn(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """The indices of spans, and of those that begin next on the same thread: two arrays of pairs."""
    order = np.argsort(spans.thread, kind="stable")  # they are sorted by start
    first, second = order[:-1], order[1:]
    same = spans.thread[first] == spans.thread[second]
    return first[same], second[same]


def joined(tables: Sequence[Spans]) -> Spans:
    """The events of several tables, one after the other; a column that one of them lacks is empty."""
    filled = [spans for spans in tables if len(spans)]
    if len(filled) < 2:
        return (filled or tables)[0]
    columns = {name: [getattr(spans, name) for spans in filled] for name in Spans.__struct_fields__}
    return Spans(**{name: np.concatenate(parts) for name, parts in columns.items() if all(map(len, parts))})


class MemoryEvents(Struct):
    """The allocators' events, sorted by time (µs since `Trace.origin`, float64).

    device_type: 0 for the CPU. allocation: bytes, negative where freed. allocated, reserved: bytes in total after the
    event. address: an id of the block, -1 where not recorded. Float64 with NaN where not recorded, except for the ids.
    """

    time: np.ndarray
    thread: np.ndarray
    address: np.ndarray
    device_type: np.ndarray
    device_id: np.ndarray
    allocation: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray


_SETUP = re.compile(
    r"Malloc|Free|Host(Alloc|Register)|(Module|Library)Load|Init|Ctx|(Stream|Event)Create|StreamPriorityRange|GetDeviceProp"
)
LONG_LAUNCH = 2_000  # µs: a call that launches for so long is loading the kernel's code, if the GPU is idle meanwhile


class Calls(Struct, frozen=True):
    """What the runtime's calls do, by their names; masks over `Trace.runtime`.

    waits: for the GPU. copies: memory. launches: kernels or CUDA graphs. launches_graph: all kernels of a CUDA graph
    have the correlation of that call. sets_up: allocates memory, loads code (as does a launch longer than
    `LONG_LAUNCH`) or initialises the GPU, and neither waits nor copies.
    """

    waits: np.ndarray
    copies: np.ndarray
    launches: np.ndarray
    launches_graph: np.ndarray
    sets_up: np.ndarray


class Trace(Struct, dict=True):
    """The contents of one trace file.

    operators: cpu_op events, and the user annotations of data loaders and optimizers, which were operators in 2021.
    annotations: other user annotations on the CPU (steps, collectives). python: calls of Python functions, recorded
    with stacks. inputs: shapes and types of the inputs of matrix products, as JSON. origin: µs, about the middle of the
    trace.
    threads: (process, thread) as text. thread_names: of those that the trace names. properties: `deviceProperties` by
    device id. rank: of the process, or None.
    warnings: problems of the file that affect the numbers, one line each. hip: whether the header names HIP's version.
    accelerator: of which kind, such as "MTIA", the trace holds device work that is not read; "" for none.
    recording: what `walkthrough trace` added to the events; None for any other trace. base_us: µs that the header
    adds to all times, NaN for none.
    """

    file: Path
    origin: float
    names: list[str]
    threads: list[tuple[str, str]]
    operators: Spans
    runtime: Spans
    kernels: Spans
    copies: Spans
    sets: Spans
    annotations: Spans
    python: Spans
    inputs: list[tuple[bytes, bytes]]
    memory: MemoryEvents
    properties: dict[int, dict[str, Any]]  # as in the file: values of any type
    rank: int | None
    warnings: list[str]
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    hip: bool = False
    accelerator: str = ""
    recording: "Recording | None" = None
    base_us: float = np.nan

    @property
    def partial(self) -> bool:
        """True if the file is cut off or damaged, so that recorded events are missing."""
        return any(line.endswith(PARTIAL) for line in self.warnings)

    @cached_property
    def gpu_properties(self) -> list[dict[str, Any]]:
        """The `properties` of each GPU that ran a kernel; {} for one that the file does not describe."""
        return [self.properties.get(number, {}) for number in distinct(self.kernels.device).tolist()]

    @cached_property
    def device_work(self) -> Spans:
        """Kernels, copies and sets, in turn."""
        return joined([self.kernels, self.copies, self.sets])

    @cached_property
    def nesting(self) -> "Nesting":
        """The operators, nested; computed once."""
        return Nesting(self.operators)

    @cached_property
    def calls(self) -> Calls:
        """What each call of the runtime does; computed once."""
        named, runtime = self.named, self.runtime
        waits = named(runtime, lambda name: "ynchronize" in name)
        copies = named(runtime, lambda name: "emcpy" in name)
        launches = named(runtime, lambda name: "Launch" in name)
        sets_up = named(runtime, _SETUP.search) | (launches & (runtime.duration > LONG_LAUNCH))
        graph = named(runtime, lambda name: "GraphLaunch" in name)
        return Calls(waits, copies, launches, graph, sets_up & ~waits & ~copies)

    def named(self, spans: Spans, test: Callable[[str], object]) -> np.ndarray:
        """A mask over `spans`: whether their names pass `test`, which is called once per name."""
        passed = np.zeros(len(self.names), bool)
        for number in np.flatnonzero(np.bincount(spans.name)).tolist():
            passed[number] = bool(test(self.names[number]))
        return passed[spans.name]

    def spans(self, test: Callable[[str], object], *tables: Spans) -> Spans:
        """The spans of the tables, the operators by default, whose names pass `test`."""
        return joined([table.where(self.named(table, test)) for table in tables or (self.operators,)])

    def longest(self, name: np.ndarray, us: np.ndarray) -> list[tuple[str, float]]:
        """(name, its µs) of all that take time, the longest first. name: indices into `names`."""
        total = np.bincount(name, us, len(self.names))
        order = np.argsort(-total, kind="stable").tolist()
        return [(self.names[number], float(total[number])) for number in order if total[number] > 0]

    def has_name(self, test: Callable[[str], object], *tables: Spans) -> bool:
        """Whether any name in the tables passes `test`."""
        numbers = {number for spans in tables for number in distinct(spans.name).tolist()}
        return any(test(self.names[number]) for number in numbers)


def calls_of(runtime: Spans, correlation: np.ndarray) -> np.ndarray:
    """The index in `runtime` of the last call with each correlation (int64), -1 for none."""
    order = np.argsort(runtime.correlation, kind="stable")
    at = np.searchsorted(runtime.correlation, correlation, "right", order) - 1
    same = np.append(runtime.correlation[order], -1)[at] == correlation
    return np.where(same & (correlation >= 0), np.append(order, -1)[at], -1)


def launched_in(trace: Trace, work: Spans, code: Cover) -> np.ndarray:
    """Whether the call that launched each span of device work is made while `code` runs on the CPU; a mask."""
    return code.holds(np.append(trace.runtime.start, -np.inf)[work.call])


def graph_launched(trace: Trace, work: Spans) -> np.ndarray:
    """Whether a CUDA graph launched each span of device work; a mask."""
    return np.append(trace.calls.launches_graph, False)[work.call]


def launching_operators(trace: Trace, runtime: np.ndarray) -> np.ndarray:
    """The index of the operator that made each runtime call (indices into `trace.runtime`, -1 for none), or -1.

    By the profiler's External id, as in the profiler plugin. In some traces no id names an operator: then it is the
    innermost operator that runs on the calling thread when the call begins.
    """
    operators = trace.operators
    order, wanted = np.argsort(operators.external, kind="stable"), np.append(trace.runtime.external, -1)[runtime]
    at = np.searchsorted(operators.external, wanted, sorter=order)
    same = np.append(operators.external[order], -1)[at] == wanted
    result = np.where(same & (wanted > 0), np.append(order, -1)[at], -1)
    missing = np.flatnonzero((runtime >= 0) & (result < 0))
    if len(missing) and len(operators):
        calls = runtime[missing]
        result[missing] = trace.nesting.innermost(trace.runtime.thread[calls], trace.runtime.start[calls])
    return result


MAX_DEPTH = 1000  # of nested operators: more than that is overlap, which no program's thread has


class Nesting:
    """Operators of a trace, nested by their times on each thread.

    order: indices by thread, then start, then outermost first. `parent` of each operator: an index, -1 at the top.
    """

    def __init__(self, operators: Spans) -> None:
        self.operators = operators
        self.order: np.ndarray = np.lexsort([-operators.end, operators.start, operators.thread])
        self._first = np.searchsorted(operators.thread[self.order], np.arange(operators.thread.max(initial=-1) + 2))

    @cached_property
    def parent(self) -> np.ndarray:
        """Index of the operator around each operator, -1 for none; int64 [operators]."""
        parent = np.full(len(self.operators), -1)
        thread, end = self.operators.thread.tolist(), self.operators.end.tolist()
        start, stack, current = self.operators.start.tolist(), [], None
        for index in self.order.tolist():
            if thread[index] != current:
                current, stack = thread[index], []
            while stack and end[stack[-1]] <= start[index]:
                stack.pop()
            if stack:
                parent[index] = stack[-1]
            stack.append(index)
        return parent

    @cached_property
    def _begun(self) -> tuple[np.ndarray, np.ndarray]:
        """All starts, sorted; and for each of `order` one number of its thread and of how many start before it."""
        starts = np.sort(self.operators.start)
        begun = self.operators.thread * (len(starts) + 1) + np.searchsorted(starts, self.operators.start)
        return starts, begun[self.order]

    def own_time(self) -> np.ndarray:
        """µs of each operator without the operators inside it, float64 [operators]."""
        own, inner = self.operators.duration.copy(), self.parent >= 0
        np.subtract.at(own, self.parent[inner], self.operators.duration[inner])
        return np.maximum(own, 0.0)

    def innermost(self, thread: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Index of the innermost operator on each thread at each time, -1 where none runs. Arrays of equal length."""
        if not len(self.order):
            return np.full(len(time), -1)
        starts, begun = self._begun
        at = np.searchsorted(begun, thread * (len(starts) + 1) + np.searchsorted(starts, time, "right")) - 1
        result = self.order[at]
        result = np.where((at >= 0) & (self.operators.thread[result] == thread), result, -1)
        ended = np.flatnonzero(result >= 0)  # operators that began before that time, but may have ended before it too
        for _ in range(MAX_DEPTH):
            ended = ended[self.operators.end[result[ended]] <= time[ended]]
            result[ended] = self.parent[result[ended]]
            ended = ended[result[ended] >= 0]
        result[ended] = -1
        return result

    def around(self, inner: np.ndarray, passed: np.ndarray) -> np.ndarray:
        """Of each operator (-1 for none) itself or the first around it that is not `passed` (a mask), or -1."""
        upwards = np.append(np.where(passed, self.parent, np.arange(len(passed))), -1)
        while (upwards[upwards] != upwards).any():  # twice as far each time
            upwards = upwards[upwards]
        return upwards[inner]

    def innermost_during(self, thread: int, cover: Cover) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which operator is innermost on one thread, and when, during `cover`: (index, start, end), sorted by start.

        One operator may have several rows; there is none for the times in which no operator runs.
        """
        own = self.order[self._first[thread] : self._first[thread + 1]]
        edges = [self.operators.start[own], self.operators.end[own], cover.start, cover.end]
        times = distinct(np.concatenate(edges))  # between two of them the innermost one does not change
        low, high = times[:-1], times[1:]
        inside = cover.holds((low + high) / 2)
        low, high = low[inside], high[inside]
        innermost = self.innermost(np.full(len(low), thread), (low + high) / 2)
        known = innermost >= 0
        return innermost[known], low[known], high[known]

    def has_descendant(self, marked: np.ndarray) -> np.ndarray:
        """Whether a `marked` operator (a mask) runs inside each operator, the operator itself not counted."""
        inside = np.zeros(len(self.operators), bool)
        counted = np.concatenate([[0], np.cumsum(marked[self.order])])
        for low, high in zip(self._first[:-1], self._first[1:], strict=True):
            here = self.order[low:high]
            until = low + np.searchsorted(self.operators.start[here], self.operators.end[here])
            inside[here] = counted[np.maximum(until, np.arange(low, high) + 1)] > counted[np.arange(low, high) + 1]
        return inside
