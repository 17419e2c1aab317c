"""What one trace holds, in columns: a table for each kind of event, as numpy arrays."""

from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict

from common.trace.source import PARTIAL


class Spans(Struct):
    """Events with a duration, in order of their start.

    start, end: µs since `Trace.origin`, float64. name: index into `Trace.names`. thread: index into `Trace.threads`.
    external, correlation: int64, -1 where there is none. The rest, float64 and NaN where not recorded, is only there
    for device work.
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

    def __len__(self):
        return len(self.start)

    @property
    def duration(self):
        return self.end - self.start

    def where(self, mask):
        """The spans that a boolean mask or an index array picks."""
        return Spans(**{name: column[mask] if len(column) else column for name, column in asdict(self).items()})


class MemoryEvents(Struct):
    """What allocators reported, in order of time (µs since `Trace.origin`, float64).

    device_type 0 is the CPU. allocation: bytes, negative where they were given back. allocated, reserved: the totals
    then. address: an id of the block, -1 where not recorded. Float64, NaN where not recorded, but for the ids.
    """

    time: np.ndarray
    thread: np.ndarray
    address: np.ndarray
    device_type: np.ndarray
    device_id: np.ndarray
    allocation: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray

    def __len__(self):
        return len(self.time)


class Trace(Struct):
    """What one trace file holds.

    operators: cpu_op events, with the user annotations of data loaders and optimizers, as the profiler plugin had
    them in 2021. annotations: other user annotations made on the CPU (steps, collectives). origin: µs, about the
    middle of the trace. properties: `deviceProperties` by device id. rank: of the process, or None. warnings: what a
    reader of the figures should know about the file.
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
    memory: MemoryEvents
    properties: dict[int, dict]
    rank: int | None
    warnings: list[str]

    @property
    def partial(self):
        """True where the file is cut off or damaged, so that events are missing that were recorded."""
        return any(line.endswith(PARTIAL) for line in self.warnings)

    def named(self, spans, test):
        """A mask over `spans`: whose names pass `test`, asked once for each name."""
        passed = np.zeros(len(self.names), bool)
        for number in np.flatnonzero(np.bincount(spans.name)).tolist():
            passed[number] = bool(test(self.names[number]))
        return passed[spans.name]
