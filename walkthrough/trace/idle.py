"""Why a GPU runs no kernel: mostly what the CPU was doing meanwhile. The plugin has no such view."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Nesting, Spans, Trace, distinct
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.operators import plain_name
from walkthrough.trace.steps import Steps, is_loading, is_mark, is_step

CAUSES: tuple[str, ...] = ("copy", "queued", "dataloader", "synchronisation", "setup", "launch", "other")
LAUNCH_LATENCY = 20  # µs from a launch's end to its kernel on an idle GPU, and some reserve: 2 to 10 are usual


class Idle(Struct, frozen=True):
    """The time inside the steps in which one GPU ran no kernel. Causes as in `CAUSES`, in order of precedence:

    copy: the GPU was copying or setting memory, or the CPU was inside a call that copies. queued: work that the GPU
    could begin was launched already (see `pending`), so it did not wait for the CPU, whatever that did. dataloader: the
    training loop waited for a batch. synchronisation: the CPU was inside a call that waits for the GPU. setup: inside a
    call that allocates memory, loads code (as does a long launch, see `columns.Calls`) or initialises the GPU, or
    torch.compile was compiling. launch: the CPU was running operators or calling the runtime, too slowly to keep the
    GPU busy. other: none of these, so Python or something that was not recorded.

    total_us and causes_us (by cause, summing to it): over all steps. start, end: µs, float64 [gaps], the stretches
    without a kernel, sorted; by_gap: µs, float64 [causes, gaps]. pending: when launched work had not begun.
    """

    device: int
    total_us: float
    causes_us: dict[str, float]
    start: np.ndarray
    end: np.ndarray
    by_gap: np.ndarray
    pending: Cover


class Stall(Struct, frozen=True):
    """A stretch in which a GPU ran no kernel although work was launched already. us: its length.

    work, call: the names of the work that ended it and of the call that launched that; call is "" where it is not
    recorded. first: whether nothing ran before that work in the same stream, so that the trace may lack what it waited
    for.
    """

    us: float
    work: str
    call: str
    first: bool


def idle(trace: Trace, steps: Steps, device: int) -> Idle:
    """The `Idle` of one GPU (its number) inside `steps`. That torch.compile compiles, Dynamo's own marks say."""
    kernels, runtime, operators = trace.kernels, trace.runtime, trace.operators
    busy = kernels.cover(kernels.device == device)
    gaps = busy.gaps(steps.start, steps.end)
    waiting, copying, setting_up = trace.calls.waits, trace.calls.copies, trace.calls.sets_up
    loading = trace.named(operators, is_loading)
    marks = trace.named(operators, is_mark)
    compiling = trace.spans(lambda name: name.endswith("(dynamo_timed)"), operators, trace.annotations)
    queued = pending(trace, device) | _launched_before(trace, gaps, device)
    causes = [
        trace.copies.cover(trace.copies.device == device)
        | trace.sets.cover(trace.sets.device == device)
        | queued.gaps(runtime.start[copying], runtime.end[copying]),  # no call holds up a GPU that has work queued
        queued,
        operators.cover(loading),
        runtime.cover(waiting),
        runtime.cover(setting_up) | compiling.cover(),
        runtime.cover(~waiting & ~copying & ~setting_up) | operators.cover(~loading & ~marks),
        Cover(gaps.start, gaps.end),
    ]
    by_gap = shares(causes, gaps.start, gaps.end)
    causes_us = dict(zip(CAUSES, by_gap.sum(axis=1).tolist(), strict=True))
    return Idle(device, gaps.total, causes_us, gaps.start, gaps.end, by_gap, queued)


def pending(trace: Trace, device: int) -> Cover:
    """When one GPU had work that was launched and had not begun: from `LAUNCH_LATENCY` after the launch to its begin.

    Whatever the GPU waits for then, it is not the CPU: an earlier part of the same CUDA graph (one call launches all of
    its kernels), another stream, another GPU, or work that the trace does not show.
    """
    work = trace.device_work
    work = work.where((work.device == device) & (work.call >= 0))
    return Cover(trace.runtime.end[work.call] + LAUNCH_LATENCY, work.start)


def longest_stall(trace: Trace, idle: Sequence[Idle]) -> Stall | None:
    """The longest stretch of the cause `queued` on one of these GPUs; None where none ends in a kernel."""
    found = [stall for gpu in idle if (stall := _longest_stall(trace, gpu))]
    return max(found, key=lambda stall: stall.us, default=None)


def _longest_stall(trace: Trace, idle: Idle) -> Stall | None:
    queued = idle.by_gap[CAUSES.index("queued")]
    if not (queued > 0).any():
        return None
    gap = int(queued.argmax())
    kernels, work = trace.kernels.where(trace.kernels.device == idle.device), trace.device_work
    following = int(np.searchsorted(kernels.start, idle.end[gap]))
    if following == len(kernels):
        return None
    launch = int(kernels.call[following])
    earlier = work.start[work.thread == kernels.thread[following]]
    return Stall(
        us=float(queued[gap]),
        work=trace.names[kernels.name[following]],
        call=trace.names[trace.runtime.name[launch]] if launch >= 0 else "",
        first=not (earlier < idle.start[gap]).any(),
    )


def _launched_before(trace: Trace, gaps: Cover, device: int) -> Cover:
    """The gaps between one GPU's kernels that began when the kernel after them had been launched already.

    The launch's latency then passed while an earlier kernel ran.
    """
    kernels = trace.kernels.where(trace.kernels.device == device)
    following = np.searchsorted(kernels.start, gaps.end)
    call = np.append(kernels.call, -1)[following]
    launched = np.append(trace.runtime.end, np.inf)[call] <= gaps.start
    return Cover(gaps.start[launched], gaps.end[launched])


LONG_GAP = 20.0  # µs: of shorter gaps, what ran meanwhile is not looked for
MOST_GAPS = 5_000  # gaps in which it is, the longest
LEAST = 0.05  # µs of a cause that is shown


def gap_facts(trace: Trace, idle: Idle, gaps: np.ndarray, threads: Sequence[int]) -> list[dict[str, str | float]]:
    """Of some gaps (their indices): µs by cause, and the operator and the Python function that ran longest inside.

    threads: whose operators and functions; of two threads, those that ran longer.
    """
    facts: list[dict[str, str | float]] = []
    for us in idle.by_gap[:, gaps].T.tolist():
        shown = sorted(((value, name) for value, name in zip(us, CAUSES, strict=True) if value > LEAST), reverse=True)
        facts.append({name: f"{value:.1f} µs" for value, name in shown})
    length = idle.end[gaps] - idle.start[gaps]
    long = np.flatnonzero(length >= LONG_GAP)
    long = np.sort(long[np.argsort(-length[long], kind="stable")[:MOST_GAPS]])
    if not len(long):
        return facts
    start, end = idle.start[gaps[long]], idle.end[gaps[long]]
    operators = trace.operators.where(~trace.named(trace.operators, is_step))
    for label, spans in (("operator", operators), ("Python", trace.python)):
        names = _longest_inside(spans, start, end, threads)
        for gap, name in zip(long.tolist(), names.tolist(), strict=True):
            if name >= 0:
                facts[gap][label] = plain_name(trace.names[name])[:400]
    return facts


def _longest_inside(spans: Spans, start: np.ndarray, end: np.ndarray, threads: Sequence[int]) -> np.ndarray:
    """The name of what was innermost for longest inside each of the intervals, disjoint and sorted; -1 for nothing."""
    best, name = np.zeros(len(start)), np.full(len(start), -1)
    near = spans.where(np.isin(spans.thread, threads) & (spans.start < end[-1]) & (spans.end > start[0]))
    nesting = Nesting(near)
    for thread in distinct(near.thread).tolist():
        innermost, low, high = nesting.innermost_during(thread, Cover(start, end))
        gap = np.searchsorted(start, low, "right") - 1
        width = int(near.name.max()) + 1
        keys, index = np.unique(gap * width + near.name[innermost], return_inverse=True)
        us = np.bincount(index, weights=high - low, minlength=len(keys))
        order = np.argsort(us, kind="stable")  # the longest is written last
        longest, of = np.zeros(len(start)), np.full(len(start), -1)
        longest[keys[order] // width], of[keys[order] // width] = us[order], keys[order] % width
        name = np.where(longest > best, of, name)
        best = np.maximum(best, longest)
    return name
