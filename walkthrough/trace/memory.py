"""How much memory was allocated on each device, and the top allocations at the peak.

From the `[memory]` events, as in torch-tb-profiler 0.4.3, memory_parser.py.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.gpus import MAX_GPUS

CPU = -1  # in place of a GPU's number
_ALLOCATES = re.compile(r"aten::(empty|new_|zeros|ones|full|resize_|clone|contiguous|_to_copy|to$)")  # for a caller


class Memory(Struct, frozen=True):
    """One device's allocator over the trace. device: a GPU's number, or `CPU`.

    time: µs, float64 [events]; allocated, reserved: bytes, float64 [events], NaN where not recorded (traces of torch
    before 1.10 have no totals; a CPU reserves nothing). peak_allocated, peak_reserved: bytes or None. growth: bytes
    from the start of tracing to the peak, which every trace has. at_peak: bytes per operator of the blocks that were
    allocated while tracing and alive at the peak, largest first; the operator is the innermost one that does more than
    allocate.
    """

    device: int
    time: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray
    peak_allocated: int | None
    peak_reserved: int | None
    growth: int
    at_peak: dict[str, int]


def memory(trace: Trace) -> list[Memory]:
    """The `Memory` of each device with events, GPUs first, by number."""
    events = trace.memory
    known = np.isfinite(events.device_type)
    device = np.where(events.device_type == 0, CPU, np.nan_to_num(events.device_id)).astype(np.int64)
    numbers, count = np.unique(device[known], return_counts=True)
    numbers = numbers[np.argsort(-count, kind="stable")[: MAX_GPUS + 1]].tolist()
    devices = [_of_device(trace, number, np.flatnonzero(known & (device == number))) for number in numbers]
    return sorted(devices, key=lambda memory: (memory.device == CPU, memory.device))


def thinned(values: np.ndarray, points: int) -> np.ndarray:
    """Indices of at most `points` points of a curve: the first, the last, the extremes of each stretch of time."""
    if len(values) <= points:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), points // 2 - 1)
    known = np.nan_to_num(values)
    indices = {0, len(values) - 1}
    for part in parts:
        indices |= {int(part[np.argmin(known[part])]), int(part[np.argmax(known[part])])}
    return np.array(sorted(indices))


def _of_device(trace: Trace, number: int, index: np.ndarray) -> Memory:
    events = trace.memory
    allocated, reserved = events.allocated[index], events.reserved[index]
    growth = np.cumsum(np.nan_to_num(events.allocation[index]))
    peak = int(np.nanargmax(allocated)) if np.isfinite(allocated).any() else int(np.argmax(growth))
    return Memory(
        device=number,
        time=events.time[index],
        allocated=allocated,
        reserved=reserved,
        peak_allocated=_largest(allocated),
        peak_reserved=_largest(reserved) if number != CPU else None,
        growth=max(0, int(growth.max(initial=0))),
        at_peak=_by_operator(trace, index[: peak + 1]),
    )


def _largest(totals: np.ndarray) -> int | None:
    return int(np.nanmax(totals)) if np.isfinite(totals).any() else None


def _by_operator(trace: Trace, index: np.ndarray) -> dict[str, int]:
    """Bytes per operator that these events allocated and did not free; {} if blocks have no addresses."""
    events, alive = trace.memory, {}
    allocation = np.nan_to_num(events.allocation[index]).tolist()
    for event, address, change in zip(index.tolist(), events.address[index].tolist(), allocation, strict=True):
        if address >= 0 and change > 0:
            alive[address] = event
        elif address >= 0:
            alive.pop(address, None)
    blocks = np.array(list(alive.values()), np.int64)
    if not len(blocks):
        return {}
    innermost = trace.nesting.innermost(events.thread[blocks], events.time[blocks])
    totals = {}
    for operator, size in zip(innermost.tolist(), events.allocation[blocks].tolist(), strict=True):
        while operator >= 0 and _ALLOCATES.match(trace.names[trace.operators.name[operator]]):
            operator = trace.nesting.parent[operator]
        name = trace.names[trace.operators.name[operator]] if operator >= 0 else "outside of any operator"
        totals[name] = totals.get(name, 0) + int(size)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
