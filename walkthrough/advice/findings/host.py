"""Findings on the CPU's side: what keeps the GPU waiting."""

import re
from collections import Counter

import numpy as np

from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.trace.columns import distinct
from walkthrough.trace.idle import CAUSES, LAUNCH_LATENCY, Idle, longest_stall
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import COLLECTIVE, MATRIX, short_name
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import innermost_functions, stepping_thread
from walkthrough.trace.steps import Steps, is_mark, is_step, of_steps
from walkthrough.trace.units import time_text

MANY_KERNELS = 50  # of an optimizer's step: a fused one has a few
# An optimizer that costs more than its kernels show: so many of all kernels, and so much of the step on the CPU.
MANY, COSTLY = 0.2, 0.05
PAUSE = 10.0  # µs: shorter times between two kernels are usual
SHORT = 10.0  # µs: a kernel that takes about as long as its launch
TOP_FUNCTIONS = 3
LONG = 0.05  # of a step: shorter times without a kernel are many, and none of them stands out
_WRAPPER = re.compile(r"(Distributed)?DataParallel\.forward|enumerate\(Data")  # around other operators
_PREPARES_INPUT = re.compile(  # reading, decoding and transforming images, videos, sound and text
    r"image_transforms|image_processing|feature_extraction|video_processing|tokenization|torchvision/(transforms|io)"
    r"|read_(video|image)|decode_(jpeg|image|video)|imread|PIL/|cv2|albumentations|librosa"
)


def unfused_optimizer(look: Look) -> Finding | None:
    """Kernels launched inside `Optimizer.step`, one or more for each parameter or group."""
    kernels = look.launched_in(look.phases.optimizer) & ~look.of_kind(MATRIX, COLLECTIVE)
    count = look.per_step(kernels)
    us = look.us_per_step(kernels)
    waiting = sum(
        float(np.minimum(look.phases.optimizer.within(gpu.start, gpu.end), gpu.end - gpu.start).sum())
        for gpu in look.idle
    ) / max(1, len(look.idle) * look.step_count)
    steps = look.steps
    cpu_us = float(look.phases.optimizer.within(steps.cpu_start, steps.cpu_end).sum()) / look.step_count
    share = count / max(look.per_step(np.ones(len(kernels), bool)), 1e-9)
    costly = share >= MANY and cpu_us * look.step_count >= COSTLY * look.total_us
    if look.phases.fused or count < MANY_KERNELS or not (costly or look.worthwhile(us + waiting)):
        return None
    return Finding(
        "unfused_optimizer",
        "an optimizer of many kernels",
        f"{count:.0f} kernels per step, {share:.0%} of all, are launched inside Optimizer.step, which takes the CPU "
        f"{time_text(cpu_us)}: {time_text(us)} of kernels, and for {time_text(waiting)} no kernel runs meanwhile",
        us + waiting,
        "fused=True, or foreach=True where the optimizer has no fused form",
        advice="11_fused_optimizer",
        when=look.while_running(kernels),
    )


def host_python(look: Look) -> Finding | None:
    """What the CPU does while the GPU waits for it: Python's functions, or in a trace without stacks operators."""
    if not look.idle:
        return None
    return _functions(look) if len(look.trace.python) else _longest_wait(look)


def _functions(look: Look) -> Finding | None:
    """The innermost Python functions that run while the GPU is idle and no operator or call runs."""
    trace = look.trace
    marks = trace.named(trace.operators, lambda name: is_mark(name) or name.startswith("enumerate(Data"))
    working = trace.operators.cover(~marks) | trace.runtime.cover()
    pending = Cover()
    for gpu in look.idle:
        pending = pending | gpu.pending
    first = look.idle[0]
    free = (working | pending).gaps(first.start, first.end)
    us = free.total / look.step_count
    if not look.worthwhile(us):
        return None
    launching = trace.runtime.thread[look.call[look.call >= 0]]
    main = int(np.bincount(launching).argmax()) if len(launching) else stepping_thread(trace)
    functions = innermost_functions(trace, free, main)[:TOP_FUNCTIONS]
    named = [f"{name} {time_text(function_us / look.step_count)}" for name, function_us in functions]
    if not named:
        return None
    why = f"neither the GPU nor an operator works; the innermost functions: {'; '.join(named)}"
    do = "move this work out of the loop, or to a loader's process; what is the model's own, compile"
    loading_us = (free & look.phases.loading).total / look.step_count
    if loading_us >= us / 2:
        why = f"for {time_text(loading_us)} of it the loop waits for the DataLoader; {why}"
        do = "worker processes (num_workers) prepare batches while the GPU computes"
        if look.phases.workers:
            do = "more worker processes, or less work for each batch"
    elif any(_PREPARES_INPUT.search(name) for name in named):
        do = f"preparing input is for a DataLoader's worker processes, while the GPU computes. Else {do}"
    return Finding(
        "host_python",
        "Python while the GPU is idle",
        why,
        us,
        do,
        advice="04_multiprocess_loading" if loading_us >= us / 2 else "find the Python between operators",
        when=free,
    )


def _longest_wait(look: Look) -> Finding | None:
    """The outermost operators during the longest time without a kernel of each step, if it is `LONG`.

    On the thread that launches the kernel which ends that time, and only where they fill most of it.
    """
    trace, gpu, steps = look.trace, look.idle[0], look.steps
    gaps, begins, ends = _longest_gaps(gpu, steps)
    length = float((ends - begins).sum())
    cause = CAUSES[int(gpu.by_gap[:, gaps].sum(axis=1).argmax())] if len(gaps) else ""
    if cause not in ("launch", "other") or length < LONG * steps.duration.sum():
        return None
    operators, annotations = trace.operators, trace.annotations
    around = trace.named(operators, lambda name: is_mark(name) or _WRAPPER.match(name))
    outermost = ~around & ((trace.nesting.parent < 0) | np.append(around, False)[trace.nesting.parent])
    ranges = ~trace.named(annotations, is_step)
    kernels = np.flatnonzero(trace.kernels.device == gpu.device)
    call = np.append(look.call[kernels], -1)[np.searchsorted(trace.kernels.start[kernels], gpu.end[gaps])]
    known = call >= 0
    threads = trace.runtime.thread[call[known]]
    times, inside = np.zeros(len(trace.names)), Counter[str]()
    for begin, end, thread in zip(begins[known].tolist(), ends[known].tolist(), threads.tolist(), strict=True):
        running = operators.where(outermost & (operators.thread == thread))
        times += np.bincount(running.name, running.us_within(begin, end), len(times))
        around_it = annotations.where(ranges & (annotations.thread == thread))
        around_it = around_it.where(around_it.us_within(begin, end) >= 0.9 * (end - begin))
        if len(around_it):
            inside[trace.names[around_it.name[around_it.duration.argmin()]]] += 1
    if times.sum() < length / 2:
        return None
    count = len(steps.names)
    order = np.argsort(-times, kind="stable")[:TOP_FUNCTIONS]
    named = [f"{trace.names[n]} {time_text(float(times[n]) / count)}" for n in order if times[n] >= LONG * length]
    where = f", inside {inside.most_common(1)[0][0]}" if inside else ""
    do = "see whether each step needs these operators, or whether they can run before, or in another thread"
    if "aten::unflatten_dense_tensors" in trace.names[order[0]] and "DistributedDataParallel" in where:
        do = (
            "DDP broadcasts its buffers (means and variances of batch normalisation) before each forward pass: "
            "broadcast_buffers=False where the ranks need not agree on them"
        )
    us = length / count
    return Finding(
        "host_python",
        "a long wait for the CPU in each step",
        f"the longest time without a kernel is {time_text(us)} of a step; meanwhile the thread that launches the next "
        f"one runs{where}: {'; '.join(named)}",
        us,
        do,
        when=Cover(begins, ends),
    )


def _longest_gaps(gpu: Idle, steps: Steps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step the index of its longest stretch without a kernel, and where that begins and ends inside it, µs."""
    first, last = np.searchsorted(gpu.end, steps.start, "right"), np.searchsorted(gpu.start, steps.end)
    rows = []
    for low, high, start, end in zip(first, last, steps.start, steps.end, strict=True):
        begins, ends = np.maximum(gpu.start[low:high], start), np.minimum(gpu.end[low:high], end)
        if high > low:
            longest = int((ends - begins).argmax())
            rows.append((low + longest, begins[longest], ends[longest]))
    gaps, begins, ends = np.array(rows).reshape(-1, 3).T
    return gaps.astype(np.int64), begins, ends


def blocking_copies(look: Look) -> Finding | None:
    """Copies that hold the CPU up, and for which no kernel runs meanwhile."""
    trace = look.trace
    copies, runtime = trace.copies, trace.runtime
    if not len(copies) or not look.idle:
        return None
    call = copies.call
    pageable = trace.named(copies, lambda name: "Pageable" in name)
    synchronous = trace.named(runtime, lambda name: name in ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream"))
    blocking = (pageable | np.append(synchronous, False)[call]) & (call >= 0)
    calls = distinct(call[blocking])
    holding = Cover(runtime.start[calls], runtime.end[calls]) | copies.cover(blocking)
    held = [gpu.pending.gaps(holding.start, holding.end).within(gpu.start, gpu.end).sum() for gpu in look.idle]
    us = float(np.mean(held)) / look.step_count  # where work is pending, no call holds the GPU up
    if not look.worthwhile(us):
        return None
    blocking &= of_steps(trace, look.steps, copies)
    count = len(distinct(call[blocking])) / look.step_count
    size = np.nan_to_num(copies.bytes)[blocking].sum() / look.step_count
    return Finding(
        "blocking_copies",
        "copies that the CPU waits for",
        f"{count:.0f} per step, {size / 1e6:.2f} MB, from or to pageable memory or by a synchronous call, while no "
        "kernel runs",
        us,
        "pin_memory=True and .to(device, non_blocking=True); create small tensors on the device",
        advice="05_pinned_memory" if (pageable & direction(trace, "h2d")).any() else None,
        when=holding,
    )


def many_small_launches(look: Look) -> Finding | None:
    """Kernels about as short as a launch, and a GPU that waits for launches."""
    if look.nature.graphed > 0.5:
        return None
    us = look.idle_us_per_step("launch")
    inside = look.in_steps
    count = look.per_step(inside)
    if not look.worthwhile(us) or count < MANY_KERNELS:
        return None
    short = float((look.trace.kernels.duration[inside] < SHORT).mean())
    if short < 0.5:
        return None
    return Finding(
        "many_small_launches",
        "many small launches",
        f"{count:.0f} kernels per step, {short:.0%} of them shorter than {SHORT:.0f} us: the GPU waits for the CPU to "
        "launch the next one",
        us,
        'CUDA graphs (torch.compile with mode="reduce-overhead"), or fewer and larger operators'
        + ("" if look.nature.training is False else ", or a bigger batch"),
        advice="15_cuda_graphs",
        when=look.while_idle("launch"),
    )


def device_queue_stall(look: Look) -> Finding | None:
    """The GPU is idle although work has been launched: it waits for itself, a peer, or what was not recorded.

    Not the pause of a µs or two that is between any two kernels.
    """
    queued = [gpu.by_gap[CAUSES.index("queued")] for gpu in look.idle]
    waits = [float(us[gpu.end - gpu.start >= PAUSE].sum()) for us, gpu in zip(queued, look.idle, strict=True)]
    us = sum(waits) / max(1, len(waits)) / look.step_count
    if not look.worthwhile(us):
        return None
    longest = longest_stall(look.trace, look.idle)
    do = (
        "look in the Trace view at what the stream waits for: an event of another stream, a peer, a graph's nodes, or "
        "work that was not recorded. Nothing on the CPU would shorten it"
    )
    why = f"no kernel runs although the next one was launched at least {LAUNCH_LATENCY} us before"
    if longest:
        why += f"; the longest time is {time_text(longest.us)} before {short_name(longest.work, 50)}"
    if longest and longest.first:
        why += ", the first work of its stream in the trace"
        do = "most likely the GPU still ran what was launched before the trace began: look at the time after it"
    return Finding(
        "device_queue_stall",
        "a GPU that waits for itself",
        why,
        us,
        do,
        when=look.while_idle("queued", PAUSE),
    )
