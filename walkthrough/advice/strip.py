"""A typical step as a strip: what its CPU and its GPUs do in each of many short stretches."""

from typing import Any

import numpy as np

from walkthrough.advice.report import tables
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import KINDS
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import stepping_thread
from walkthrough.trace.steps import is_mark

BINS = 400  # stretches that a step is divided into: about two pixels each
LONG_WAIT = 100.0  # µs: a call that takes longer waits for the GPU


def page(analysis: Analysis) -> dict[str, Any]:
    """What a page about a trace shows: `report.tables`, and its "strip"."""
    return tables(analysis) | {"strip": strip(analysis.typical)}


def strip(a: Analysis) -> dict[str, Any]:
    """The step most like the mean: {"step": its name, "us": its length, "lanes": {lane: {group: share of each bin}}}.

    Lanes are "CPU", then "GPU n" by kind of kernel and "copies n" by direction. A moment of a lane counts for the first
    group that covers it.
    """
    steps, kernels, copies = a.steps, a.trace.kernels, a.trace.copies
    at = int(np.abs(steps.breakdown - steps.breakdown.mean(axis=1)[:, None]).sum(axis=0).argmin())
    edges = np.linspace(float(steps.start[at]), float(steps.end[at]), BINS + 1)
    lanes = {"CPU": _cpu(a)}
    for gpu in a.gpus:
        own, copied = kernels.device == gpu.id, copies.device == gpu.id
        lanes[f"GPU {gpu.id}"] = {kind: kernels.cover(own & a.of_kind(kind)) for kind in KINDS}
        to_gpu = copied & direction(a.trace, "h2d")
        lanes[f"copies {gpu.id}"] = {"to the GPU": copies.cover(to_gpu), "other copies": copies.cover(copied & ~to_gpu)}
    binned = {lane: _binned(groups, edges) for lane, groups in lanes.items()}
    return {
        "step": steps.names[at],
        "us": float(steps.duration[at]),
        "lanes": {lane: groups for lane, groups in binned.items() if groups},
    }


def _cpu(a: Analysis) -> dict[str, Cover]:
    trace, operators, runtime = a.trace, a.trace.operators, a.trace.runtime
    own, marks = operators.thread == stepping_thread(trace), trace.named(operators, is_mark)
    waits = (trace.calls.waits | trace.calls.copies) & (runtime.duration > LONG_WAIT)
    return {
        "waits for the GPU": runtime.cover(waits),
        "DataLoader": a.phases.loading,
        "optimizer": a.phases.per_step,
        "operators": operators.cover(own & ~marks),
        "operators, other threads": operators.cover(~own & ~marks),
    }


def _binned(groups: dict[str, Cover], edges: np.ndarray) -> dict[str, list[float]]:
    """The share of each bin by group, without groups that are in none."""
    parts = shares(groups.values(), edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1e-9)
    return {name: np.round(row, 3).tolist() for name, row in zip(groups, parts, strict=True) if row.any()}
