"""What each GPU did inside the steps.

Definitions: torch-tb-profiler 0.4.3, gpu_metrics_parser.py. As in its Overview, the steps' time runs from the start of
the first one to the end of the last one.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.intervals import Cover, integral

MAX_GPUS = 64  # of one machine, as in the plugin


class Gpu(Struct, frozen=True):
    """Shares 0..1, None where the trace cannot tell.

    utilization: of the time, with at least one kernel running. sm_efficiency: of the SMs that had work, estimated:
    blocks per SM of the running kernels, at most 1, over time. occupancy_percent: estimated achieved occupancy of the
    kernels, weighted by their time. tensor_core_share: see `tensor_cores.py`.
    """

    id: int
    name: str | None
    utilization: float
    sm_efficiency: float | None
    occupancy_percent: float | None
    tensor_core_share: float | None


def gpu_ids(trace: Trace) -> list[int]:
    """The devices on which kernels ran, sorted; of more than `MAX_GPUS` those with the most kernels."""
    ids, count = np.unique(trace.kernels.device, return_counts=True)
    ids = ids[np.argsort(-count, kind="stable")[:MAX_GPUS]]
    return sorted(int(number) for number in ids.tolist() if np.isfinite(number))


def utilization(kernels: Spans, start: float, end: float) -> float:
    """Share of [start, end) in which at least one of the kernels ran."""
    return float(Cover(kernels.start, kernels.end).within(start, end)) / (end - start) if end > start else 0.0


def sm_efficiency(kernels: Spans, start: float, end: float) -> float | None:
    """Mean over [start, end) of the blocks per SM of all kernels running, at most 1; None where not recorded."""
    known = kernels.blocks_per_sm > 0
    if not known.any() or not end > start:
        return None
    blocks = integral(kernels.start[known], kernels.end[known], kernels.blocks_per_sm[known], start, end, 1.0)
    return float(blocks) / (end - start)


def occupancy_percent(kernels: Spans, start: float, end: float) -> float | None:
    """Mean estimated achieved occupancy of the kernels, weighted by their time in [start, end); None if none known."""
    known = kernels.occupancy >= 0
    time = kernels.us_within(start, end)[known]
    return float(np.average(kernels.occupancy[known], weights=time)) if time.sum() > 0 else None


def gpu_name(trace: Trace, number: int) -> str | None:
    """The GPU's name in the trace; where its number has no properties, the one name of all others; or None."""
    if number in trace.properties:
        name = trace.properties[number].get("name")
        return name if isinstance(name, str) else None
    names = {name for device in trace.properties.values() if isinstance(name := device.get("name"), str)}
    return names.pop() if len(names) == 1 else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
