"""The memory of each device over time, the top allocations at its peak, and copies to the device, from it, and on it.

Memory is from the `[memory]` events, as in torch-tb-profiler 0.4.3, memory_parser.py; it has no numbers of copies.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import MAX_GPUS, Trace
from walkthrough.trace.steps import Steps, of_steps

DIRECTIONS = {  # CUDA's names, HIP's and Intel's; Intel's M is pageable memory, S is shared
    "h2d": r"HtoD|HostToDevice|[HMS]2D",
    "d2h": r"DtoH|DeviceToHost|D2[HMS]",
    "d2d": r"DtoD|PtoP|DeviceToDevice|PeerToPeer|D2D",
}


class Copies(Struct, frozen=True):
    """Copies in one direction. us: their summed time.

    pinned_bytes, pageable_bytes: by the kind of host memory, which is part of the copy's name.
    """

    count: int
    bytes: int
    us: float
    pinned_bytes: int
    pageable_bytes: int

    @property
    def gigabytes_per_second(self) -> float | None:
        """Achieved bandwidth while copying, 1e9 bytes per second; None where it took no time."""
        return self.bytes / self.us / 1e3 if self.us > 0 else None


def direction(trace: Trace, name: str) -> np.ndarray:
    """A mask over `Trace.copies`: those of the direction "h2d", "d2h" or "d2d"."""
    return trace.named(trace.copies, re.compile(DIRECTIONS[name]).search)


def from_pageable(trace: Trace) -> np.ndarray:
    """A mask over `Trace.copies`: those from pageable memory, or to it."""
    return trace.named(trace.copies, lambda name: "Pageable" in name)


def copies(trace: Trace, selected: np.ndarray) -> dict[str, Copies]:
    """The `Copies` of each direction, by its name, among the `selected` ones (a mask over `Trace.copies`)."""
    result, size = {}, np.nan_to_num(trace.copies.bytes)
    pinned = trace.named(trace.copies, lambda name: "Pinned" in name)
    for name in DIRECTIONS:
        mask = direction(trace, name) & selected
        result[name] = Copies(
            int(mask.sum()),
            int(size[mask].sum()),
            float(trace.copies.duration[mask].sum()),
            int(size[mask & pinned].sum()),
            int(size[mask & from_pageable(trace)].sum()),
        )
    return result


def step_bytes(trace: Trace, steps: Steps) -> float:
    """Bytes that a mean step copies to the device."""
    inside = direction(trace, "h2d") & of_steps(trace, steps, trace.copies)
    return float(np.nan_to_num(trace.copies.bytes)[inside].sum() / len(steps.names))


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
    callers = trace.nesting.around(innermost, trace.named(trace.operators, _ALLOCATES.match))
    totals = {}
    for operator, size in zip(callers.tolist(), events.allocation[blocks].tolist(), strict=True):
        name = trace.names[trace.operators.name[operator]] if operator >= 0 else "outside of any operator"
        totals[name] = totals.get(name, 0) + int(size)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
