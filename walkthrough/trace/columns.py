"""The events of one trace in columns: a table for each kind of event, as numpy arrays."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict

from walkthrough.trace.intervals import Cover
from walkthrough.trace.ordered import distinct
from walkthrough.trace.recording import Recording
from walkthrough.trace.source import PARTIAL

if TYPE_CHECKING:  # nothing needs the former but the timeline; the latter imports this module
    from walkthrough.trace.details import Details
    from walkthrough.trace.operators import Nesting


class Spans(Struct):
    """Events with a duration, sorted by start.

    start, end: µs since `Trace.origin`, float64. name: index into `Trace.names`. thread: index into `Trace.threads`.
    external, correlation: int64 ids, -1 for none. device, bytes, blocks_per_sm, occupancy: float64, NaN where not
    recorded; empty for anything but device work. inputs: index into `Trace.inputs`, -1 where not kept; empty for
    anything but operators. finished: False where the profiler stopped before it ended; empty for anything but
    annotations. detail, sequence: int64, -1 for none; empty unless the trace was read with details: a number in
    `Trace.details`, and what links an operator to its backward pass.
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
    finished: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    detail: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    sequence: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> np.ndarray:
        """µs, float64."""
        return self.end - self.start

    def cover(self, mask: np.ndarray | slice = slice(None)) -> Cover:
        """When any of the spans runs that a boolean mask or an index array selects."""
        return Cover(self.start[mask], self.end[mask])

    def us_within(self, begin: float, end: float) -> np.ndarray:
        """µs of each span that lie in [begin, end), float64."""
        return np.clip(np.minimum(self.end, end) - np.maximum(self.start, begin), 0, None)

    def where(self, mask: np.ndarray) -> "Spans":
        """The spans that a boolean mask or an index array selects."""
        return Spans(**{name: column[mask] if len(column) else column for name, column in asdict(self).items()})


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

    def __len__(self) -> int:
        return len(self.time)


class Trace(Struct, dict=True):
    """The contents of one trace file.

    operators: cpu_op events, and the user annotations of data loaders and optimizers, which were operators in 2021.
    annotations: other user annotations on the CPU (steps, collectives). python: calls of Python functions, recorded
    with stacks. inputs: shapes and types of the inputs of matrix products, as JSON. origin: µs, about the middle of the
    trace.
    threads: (process, thread) as text. properties: `deviceProperties` by device id. rank: of the process, or None.
    warnings: problems of the file that affect the numbers, one line each. hip: whether the header names HIP's version.
    accelerator: of which kind, such as "MTIA", the trace holds device work that is not read; "" for none.
    recording: what `walkthrough trace` wrote beside the events; None for any other trace. base_us: µs that the header
    adds to all times, NaN for none. details: what the timeline shows of the events' arguments, None unless asked for.
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
    hip: bool = False
    accelerator: str = ""
    recording: Recording | None = None
    base_us: float = np.nan
    details: "Details | None" = None

    @property
    def partial(self) -> bool:
        """True if the file is cut off or damaged, so that recorded events are missing."""
        return any(line.endswith(PARTIAL) for line in self.warnings)

    @cached_property
    def gpu_properties(self) -> list[dict[str, Any]]:
        """The `properties` of each GPU that ran a kernel; {} for one that the file does not describe."""
        return [self.properties.get(number, {}) for number in distinct(self.kernels.device).tolist()]

    @cached_property
    def nesting(self) -> "Nesting":
        """The operators, nested; computed once."""
        from walkthrough.trace.operators import Nesting

        return Nesting(self.operators)

    @cached_property
    def calls_by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """The correlations of the runtime's calls that have one, sorted, and the calls' indices; computed once."""
        known = np.flatnonzero(self.runtime.correlation >= 0)
        order = known[np.argsort(self.runtime.correlation[known], kind="stable")]
        return self.runtime.correlation[order], order

    def named(self, spans: Spans, test: Callable[[str], object]) -> np.ndarray:
        """A mask over `spans`: whether their names pass `test`, which is called once per name."""
        passed = np.zeros(len(self.names), bool)
        for number in np.flatnonzero(np.bincount(spans.name)).tolist():
            passed[number] = bool(test(self.names[number]))
        return passed[spans.name]
