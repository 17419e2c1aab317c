"""Why a GPU runs no kernel: mostly what the CPU was doing meanwhile. The plugin has no such view."""

import re

import numpy as np
from msgspec import Struct

from common.trace.columns import Spans, Trace
from common.trace.intervals import Cover, shares
from common.trace.operators import launches
from common.trace.steps import Steps, is_loading, is_step

CAUSES: tuple[str, ...] = ("copy", "queued", "dataloader", "synchronisation", "setup", "launch", "other")
_SETUP = re.compile(
    r"Malloc|Free|Host(Alloc|Register)|(Module|Library)Load|Init|Ctx|(Stream|Event)Create|StreamPriorityRange|GetDeviceProp"
)
LONG_LAUNCH = 10_000  # µs: with the GPU idle, a call that launches for so long is loading the kernel's code


class Idle(Struct, frozen=True):
    """The time inside the steps in which one GPU ran no kernel. Causes as in `CAUSES`, in order of precedence:

    copy: the GPU was copying or setting memory, or the CPU was inside a call that copies. queued: the next kernel had
    been launched before the one in front of it ended, so the GPU did not wait for the CPU, whatever that did.
    dataloader: the training loop waited for a batch. synchronisation: the CPU was inside a call that waits for the GPU.
    setup: inside a call that allocates memory, loads code (as does a launch longer than `LONG_LAUNCH`) or initialises
    the GPU. launch: the CPU was running operators or calling the runtime, too slowly to keep the GPU busy. other: none
    of these, so Python or something that was not recorded.

    total_us and causes_us (by cause, summing to it): over all steps. start, end: µs, float64 [gaps], the stretches
    without a kernel, sorted; by_gap: µs, float64 [causes, gaps].
    """

    device: int
    total_us: float
    causes_us: dict[str, float]
    start: np.ndarray
    end: np.ndarray
    by_gap: np.ndarray


def idle(trace: Trace, steps: Steps, device: int) -> Idle:
    """The `Idle` of one GPU (its number) inside `steps`."""
    kernels, runtime, operators = trace.kernels, trace.runtime, trace.operators
    busy = Cover(*_edges(kernels, kernels.device == device))
    gaps = busy.gaps(steps.start, steps.end)
    copying = trace.named(runtime, lambda name: "emcpy" in name)
    waiting = trace.named(runtime, lambda name: "ynchronize" in name)
    long_launch = trace.named(runtime, lambda name: "Launch" in name) & (runtime.duration > LONG_LAUNCH)
    setting_up = (trace.named(runtime, _SETUP.search) | long_launch) & ~copying & ~waiting
    loading = trace.named(operators, is_loading)
    marks = trace.named(operators, lambda name: is_step(name) or name.startswith("Optimizer."))  # Python, in part
    queued = _queued(trace, gaps, device)
    causes = [
        Cover(*_edges(trace.copies, trace.copies.device == device))
        | Cover(*_edges(trace.sets, trace.sets.device == device))
        | queued.gaps(*_edges(runtime, copying)),  # where a kernel is queued, no call holds the GPU up
        queued,
        Cover(*_edges(operators, loading)),
        Cover(*_edges(runtime, waiting)),
        Cover(*_edges(runtime, setting_up)),
        Cover(*_edges(runtime, ~waiting & ~copying & ~setting_up)) | Cover(*_edges(operators, ~loading & ~marks)),
        Cover(gaps.start, gaps.end),
    ]
    by_gap = shares(causes, gaps.start, gaps.end)
    causes_us = dict(zip(CAUSES, by_gap.sum(axis=1).tolist(), strict=True))
    return Idle(device, gaps.total, causes_us, gaps.start, gaps.end, by_gap)


def _queued(trace: Trace, gaps: Cover, device: int) -> Cover:
    """The gaps between one GPU's kernels that began when the kernel after them had been launched already."""
    kernels = trace.kernels.where(trace.kernels.device == device)
    following = np.searchsorted(kernels.start, gaps.end)
    call = np.append(launches(trace, kernels), -1)[following]
    launched = np.append(trace.runtime.end, np.inf)[call] <= gaps.start
    return Cover(gaps.start[launched], gaps.end[launched])


def _edges(spans: Spans, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return spans.start[mask], spans.end[mask]
