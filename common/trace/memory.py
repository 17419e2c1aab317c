"""How much memory the allocators had handed out, device by device, and what held it at the peak.

Read from the `[memory]` events, as in torch-tb-profiler 0.4.3, memory_parser.py.
"""

import re

import numpy as np
from msgspec import Struct

from common.trace.gpus import MAX_GPUS
from common.trace.operators import Nesting

CPU = -1  # instead of a GPU's number
_ALLOCATES = re.compile(r"aten::(empty|new_|zeros|ones|full|resize_|clone|contiguous|_to_copy|to$)")  # for another


class Memory(Struct, frozen=True):
    """One device's allocator over the trace. device: a GPU's number, or `CPU`.

    time: µs, float64 [events]; allocated, reserved: bytes, float64 [events], NaN where not recorded (traces before
    1.10 have no totals; a CPU reserves nothing). peak_allocated, peak_reserved: bytes or None. growth: bytes from
    what was allocated when tracing began to the most there was, told by every trace. at_peak: bytes by operator of
    the blocks that were allocated while tracing and alive at the peak, largest first: the innermost one that does more
    than allocate.
    """

    device: int
    time: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray
    peak_allocated: int | None
    peak_reserved: int | None
    growth: int
    at_peak: dict[str, int]


def memory(trace):
    """The `Memory` of each device with events, GPUs first, by number."""
    events = trace.memory
    known = np.isfinite(events.device_type)
    device = np.where(events.device_type == 0, CPU, np.nan_to_num(events.device_id)).astype(np.int64)
    numbers, count = np.unique(device[known], return_counts=True)
    numbers = numbers[np.argsort(-count, kind="stable")[: MAX_GPUS + 1]].tolist()
    nesting = Nesting(trace.operators)
    found = [_of_device(trace, nesting, number, np.flatnonzero(known & (device == number))) for number in numbers]
    return sorted(found, key=lambda each: (each.device == CPU, each.device))


def _of_device(trace, nesting, number, index):
    events = trace.memory
    allocated, reserved = events.allocated[index], events.reserved[index]
    grown = np.cumsum(np.nan_to_num(events.allocation[index]))
    at = int(np.nanargmax(allocated)) if np.isfinite(allocated).any() else int(np.argmax(grown))
    return Memory(
        device=number,
        time=events.time[index],
        allocated=allocated,
        reserved=reserved,
        peak_allocated=_most(allocated),
        peak_reserved=_most(reserved) if number != CPU else None,
        growth=max(0, int(grown.max(initial=0))),
        at_peak=_alive(trace, nesting, index[: at + 1]),
    )


def _most(totals):
    return int(np.nanmax(totals)) if np.isfinite(totals).any() else None


def _alive(trace, nesting, index):
    """Bytes by operator of what these events allocated and did not give back; {} where blocks cannot be told apart."""
    events, alive = trace.memory, {}
    allocation = np.nan_to_num(events.allocation[index]).tolist()
    for each, address, change in zip(index.tolist(), events.address[index].tolist(), allocation, strict=True):
        if address >= 0 and change > 0:
            alive[address] = each
        elif address >= 0:
            alive.pop(address, None)
    kept = np.array(list(alive.values()), np.int64)
    if not len(kept):
        return {}
    operator = nesting.innermost(events.thread[kept], events.time[kept])
    held = {}
    for each, size in zip(operator.tolist(), events.allocation[kept].tolist(), strict=True):
        while each >= 0 and _ALLOCATES.match(trace.names[trace.operators.name[each]]):
            each = nesting.parent[each]
        name = trace.names[trace.operators.name[each]] if each >= 0 else "outside of any operator"
        held[name] = held.get(name, 0) + int(size)
    return dict(sorted(held.items(), key=lambda item: -item[1]))
