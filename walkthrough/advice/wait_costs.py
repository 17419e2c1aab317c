"""What waiting costs: for the GPU, Python, other ranks, memory and code; and steps that stand for no others.

Waits for input and for launches have files of their own.
"""

import re
from collections import Counter

import numpy as np

from walkthrough.advice.evidence import Evidence, Finding, bounded, step_time, worthwhile
from walkthrough.advice.input_costs import calls_of_copies
from walkthrough.advice.replay import Change
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import MAX_DEPTH, Nesting, Spans, distinct, places
from walkthrough.trace.communication import Communication, exposed_on_cpu
from walkthrough.trace.idle import CAUSES, LAUNCH_LATENCY, longest_stall
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import COLLECTIVE, is_collective, short_name
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import innermost_functions, pauses, stepping_thread
from walkthrough.trace.outliers import CUT, Outlier
from walkthrough.trace.reader import CHECKPOINT, EVALUATION, NEW_EPOCH
from walkthrough.trace.steps import is_mark, is_step

MUCH_PYTHON = 0.1  # of the step: calling operators takes less in most programs
TOP_FUNCTIONS = 3
LONG = 0.05  # of a step: shorter times without a kernel are many, and none of them stands out
PAUSE = 10.0  # µs: shorter times between two kernels are usual
MANY_COLLECTIVES = 50  # of a step: DDP has one for 25 MB of gradients, so 50 for a model of 300 million parameters
SHORT_COLLECTIVE = 250.0  # µs: ten times what the smallest takes between GPUs of one machine
DOING = {EVALUATION: "holds an evaluation", CHECKPOINT: "writes a checkpoint", NEW_EPOCH: "begins a new epoch"}
DOING |= {CUT: "begins while the GPU still runs earlier work"}
REMEDIES = {  # by `Outlier.workers`
    "kept": "persistent_workers=True keeps the workers, but their queue is filled anew in each epoch",
    "anew": "the worker processes start anew in each epoch; persistent_workers=True keeps them",
    "yes": "the worker processes start anew in each epoch, unless persistent_workers=True keeps them",
    "": "",
}
_WRAPPER = re.compile(r"(Distributed)?DataParallel\.forward|enumerate\(Data")  # around other operators
_PREPARES_INPUT = re.compile(  # reading, decoding and transforming images, videos, sound and text
    r"image_transforms|image_processing|feature_extraction|video_processing|tokenization|torchvision/(transforms|io)"
    r"|read_(video|image)|decode_(jpeg|image|video)|imread|PIL/|cv2|albumentations|librosa"
)


def hidden_syncs(a: Analysis) -> Evidence:
    """Waits inside calls that synchronise, and after them until the GPU has work again."""
    runtime, waiting = a.trace.runtime, a.trace.calls.waits
    drained = Cover(runtime.start[waiting], runtime.end[waiting] + 1)  # the call returns as the last kernel ends
    waits_us = []
    for gpu in a.idle:
        after = drained.holds(gpu.start)
        inside, launching, other = (gpu.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other"))
        waits_us.append(inside.sum() + launching[after].sum() + other[after].sum())
    share = (mean_of_known(waits_us) or 0.0) / a.total_us
    count = (waiting & Cover(a.steps.start, a.steps.end).holds(runtime.start)).sum() / a.step_count
    why = (
        f"the CPU waits for the GPU, {count:.0f}x per step (.item(), .cpu(), synchronize), "
        f"and then the GPU for the CPU: {step_time(a, share)} without a kernel"
    )
    return bounded(why, share)


def without_waits(a: Analysis) -> Change:
    """No call waits; but on threads that launch no kernels, such as one that pins memory, which has to."""
    trace, call = a.trace, a.trace.kernels.call
    launching = distinct(trace.runtime.thread[call[call >= 0]])
    waits = trace.calls.waits | calls_of_copies(a, direction(trace, "d2h"))
    return Change(returns=waits & np.isin(trace.runtime.thread, launching))


def host_python(a: Analysis) -> Evidence:
    """Neither the GPU works nor an operator."""
    share = a.idle_share("other")
    why = f"for {step_time(a, share)} of a step neither the GPU nor any operator works: Python, most likely"
    look = "what stands out names its functions" if a.workload.stacks else "trace with stacks to see its functions"
    if not len(a.trace.operators) and not a.workload.stacks:
        why = f"for {step_time(a, share)} of a step no kernel runs, and no operator or function was recorded"
        look = "trace with stacks, and with ProfilerActivity.CPU"
    return bounded(f"{why}; {look}", share)


def host_python_on_cpu(a: Analysis) -> Evidence | None:
    """Python outside of operators, also in a closure that the optimizer runs; named, where the trace has stacks."""
    python = a.between_operators
    share = a.share_within(python)
    if share < MUCH_PYTHON:
        return None
    inside = "neither an operator runs nor the loop waits for a DataLoader"
    why = f"for {step_time(a, share)} of a step {inside if len(a.phases.loading.start) else 'no operator runs'}"
    if named := _functions(a, python, stepping_thread(a.trace)):
        why += f"; the innermost functions: {named}"
    else:
        why += ": Python, most likely"
        if a.share_within(pauses(python)) >= share / 2:
            why += ", mostly in long pauses, which may be your own loader or preprocessing"
        why += ". Record with stacks (walkthrough trace --stacks) to see its functions"
    return bounded(why, share)


def _functions(a: Analysis, when: Cover, thread: int) -> str:
    """The innermost Python functions of a thread meanwhile, with their time of a step; "" without stacks."""
    functions = innermost_functions(a.trace, when, thread)[:TOP_FUNCTIONS]
    return "; ".join(f"{name} {rounded_time(us / a.step_count)}" for name, us in functions)


def without_python(a: Analysis) -> Change:
    """No Python runs where the CPU runs no operator and no call."""
    operators, steps = a.trace.operators, a.whole.steps
    busy = operators.cover(~a.trace.named(operators, is_mark)) | a.trace.runtime.cover()
    return Change(cpu=[(busy.gaps(steps.cpu_start, steps.cpu_end), 0.0)])


def functions_while_idle(a: Analysis) -> Finding | None:
    """The innermost Python functions that run while the GPU is idle and no operator or call runs."""
    trace = a.trace
    if not a.idle or not len(trace.python):
        return None
    marks = trace.named(trace.operators, lambda name: is_mark(name) or name.startswith("enumerate(Data"))
    busy = trace.operators.cover(~marks) | trace.runtime.cover()
    for gpu in a.idle:
        busy = busy | gpu.pending
    free = busy.gaps(a.idle[0].start, a.idle[0].end)
    us = free.total / a.step_count
    if not worthwhile(a, us):
        return None
    launching = trace.runtime.thread[trace.kernels.call[trace.kernels.call >= 0]]
    main = int(np.bincount(launching).argmax()) if len(launching) else stepping_thread(trace)
    named = _functions(a, free, main)
    if not named:
        return None
    why = f"neither the GPU nor an operator works; the innermost functions: {named}"
    do = "move this work out of the loop, or to a loader's process; what is the model's own, compile"
    loading_us = (free & a.phases.loading).total / a.step_count
    if loading_us >= us / 2:
        why = f"for {rounded_time(loading_us)} of it the loop waits for the DataLoader; {why}"
        do = "worker processes (num_workers) prepare batches while the GPU computes"
        if a.phases.workers:
            do = "more worker processes, or less work for each batch"
    elif _PREPARES_INPUT.search(named):
        do = f"preparing input is for a DataLoader's worker processes, while the GPU computes. Else {do}"
    return Finding(
        "host_python",
        "Python while the GPU is idle",
        why,
        us,
        do,
        advice="dataloader_workers" if loading_us >= us / 2 else "host_python",
        when=free,
    )


def long_host_wait(a: Analysis) -> Finding | None:
    """Without stacks: the outermost operators during the longest time without a kernel of each step, if it is `LONG`.

    On the thread that launches the kernel which ends that time, and only where they fill most of it.
    """
    trace, steps = a.trace, a.steps
    if not a.idle or len(trace.python):
        return None
    gpu = a.idle[0]
    gaps, begins, ends = _longest_gaps(a)
    length = float((ends - begins).sum())
    cause = CAUSES[int(gpu.by_gap[:, gaps].sum(axis=1).argmax())] if len(gaps) else ""
    if cause not in ("launch", "other") or length < LONG * steps.duration.sum():
        return None
    operators = trace.operators
    wrapper = trace.named(operators, lambda name: is_mark(name) or _WRAPPER.match(name))
    outermost = ~wrapper & ((trace.nesting.parent < 0) | np.append(wrapper, False)[trace.nesting.parent])
    kernels = trace.kernels.where(trace.kernels.device == gpu.device)
    call = np.append(kernels.call, -1)[np.searchsorted(kernels.start, gpu.end[gaps])]
    known = call >= 0
    threads = trace.runtime.thread[call[known]]
    begin, end, times = begins[known], ends[known], np.zeros(len(trace.names))
    by_thread = places(np.where(outermost, operators.thread, -1))
    for thread, here in places(threads).items():
        running = operators.where(by_thread.get(thread, np.empty(0, np.int64)))
        waiting = Cover(begin[here], end[here]).within(running.start, running.end)
        times += np.bincount(running.name, waiting, len(times))
    around = _around(trace.annotations.where(~trace.named(trace.annotations, is_step)), threads, begin, end)
    inside = Counter(trace.names[number] for number in around.tolist())
    if times.sum() < length / 2:
        return None
    order = np.argsort(-times, kind="stable")[:TOP_FUNCTIONS]
    named = [
        f"{trace.names[n]} {rounded_time(float(times[n]) / a.step_count)}" for n in order if times[n] >= LONG * length
    ]
    where = f", inside {inside.most_common(1)[0][0]}" if inside else ""
    do = "see whether each step needs these operators, or whether they can run before, or in another thread"
    if "aten::unflatten_dense_tensors" in trace.names[order[0]] and "DistributedDataParallel" in where:
        do = (
            "DDP broadcasts its buffers (means and variances of batch normalisation) before each forward pass: "
            "broadcast_buffers=False where the ranks need not agree on them"
        )
    us = length / a.step_count
    return Finding(
        "host_python",
        "a long wait for the CPU in each step",
        f"the longest time without a kernel is {rounded_time(us)} of a step; meanwhile the thread that launches the "
        f"next one runs{where}: {'; '.join(named)}",
        us,
        do,
        when=Cover(begins, ends),
    )


def _around(ranges: Spans, thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The names of the innermost ranges that hold nine tenths of each interval on its thread, where there is one."""
    nesting = Nesting(ranges)
    at = nesting.innermost(thread, (start + end) / 2)
    for _ in range(MAX_DEPTH):
        known = np.flatnonzero(at >= 0)
        held = np.minimum(ranges.end[at[known]], end[known]) - np.maximum(ranges.start[at[known]], start[known])
        short = known[held < 0.9 * (end - start)[known]]
        at[short] = nesting.parent[at[short]]
        if not len(short):
            break
    return ranges.name[at[at >= 0]]


def _longest_gaps(a: Analysis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step the index of its longest stretch without a kernel, and where that begins and ends inside it, µs."""
    gpu, steps = a.idle[0], a.steps
    first, last = np.searchsorted(gpu.end, steps.start, "right"), np.searchsorted(gpu.start, steps.end)
    rows = []
    for low, high, start, end in zip(first, last, steps.start, steps.end, strict=True):
        begins, ends = np.maximum(gpu.start[low:high], start), np.minimum(gpu.end[low:high], end)
        if high > low:
            longest = int((ends - begins).argmax())
            rows.append((low + longest, begins[longest], ends[longest]))
    gaps, begins, ends = np.array(rows).reshape(-1, 3).T
    return gaps.astype(np.int64), begins, ends


def ways_to_communicate_less(communication: Communication | None, training: bool | None) -> str:
    """What to do about collectives that nothing hides, after a look at the ranks."""
    if communication and communication.exchanges:
        return "fewer bytes (16 bits), or an exchange beside layers that do not need its result"
    if training is False:
        return "products fused with their collectives, or fewer ranks for each answer"
    return (
        "fewer collectives per sample (DDP's no_sync() while gradients are accumulated, or a bigger batch per rank), "
        "fewer bytes (bf16_compress_hook), or another size of bucket (bucket_cap_mb: larger if they are many, smaller "
        "if they begin late)"
    )


def exposed_communication(a: Analysis) -> Evidence:
    """Collectives with no kernel beside them."""
    share = a.communication.exposed_us / a.total_us if a.communication else 0.0
    how = ways_to_communicate_less(a.communication, a.workload.training)
    why = (
        f"collectives run {step_time(a, share)} of a step with nothing beside them; compare the ranks first, since "
        f"waiting for the slowest is part of it; then {how}"
    )
    return bounded(why, share)


def exposed_communication_on_cpu(a: Analysis) -> Evidence | None:
    """Collectives of gloo with no operator beside them."""
    if a.communication is None:
        return None
    count, share = a.communication.count / a.step_count, a.communication.exposed_us / a.total_us
    mean = rounded_time(a.communication.us / max(a.communication.count, 1))
    why = (
        f"for {step_time(a, share)} of a step a collective runs and no operator does "
        f"({counted(count, 'collective', 'collectives')} per step, {mean} on average). Waiting for the slowest rank is "
        "part of it: compare the ranks, a trace of each in one folder. Then "
        f"{ways_to_communicate_less(a.communication, a.workload.training)}"
    )
    return bounded(why, share)


def exposed_collectives(a: Analysis) -> Finding | None:
    """The same as evidence of how many collectives of which length there are."""
    collectives = a.communication
    if collectives is None:
        return None
    us, count = collectives.exposed_us / a.step_count, collectives.count / a.step_count
    if not worthwhile(a, us):
        return None
    mean_us = collectives.us / max(collectives.count, 1)
    do = "larger buckets (bucket_cap_mb) if they are many, smaller ones if they begin late"
    if collectives.exchanges:
        do = "exchange fewer bytes (16 bits), or exchange beside layers that do not need the result"
    elif a.workload.training is False:
        do = "products fused with their collectives, or fewer GPUs for each answer"
    elif count >= MANY_COLLECTIVES and mean_us < SHORT_COLLECTIVE:
        do = (
            f"join them in buckets, as DDP does with gradients: one takes {rounded_time(mean_us)}, of which a launch "
            "and a wait for the other ranks are the same for any size"
        )
    communicating = a.while_running(a.of_kind(COLLECTIVE))
    return Finding(
        "exposed_collectives",
        "collectives that nothing hides",
        f"{counted(count, 'collective per step takes', 'collectives per step take')} "
        f"{rounded_time(collectives.us / a.step_count)}, {rounded_time(us)} of it "
        "with no other kernel beside them; waiting for the slowest rank is part of it",
        us,
        f"compare the ranks first; then {do}",
        advice="overlap_communication",
        when=a.while_running(~a.of_kind(COLLECTIVE)).gaps(communicating.start, communicating.end),
    )


def hidden_collectives(a: Analysis) -> Change:
    """Collectives run beside the rest, and no step is faster than they are."""
    kernels, steps, collective = a.trace.kernels, a.whole.steps, a.of_kind(COLLECTIVE)
    alone = kernels.cover(collective).within(steps.start, steps.end)
    return Change(kernels=np.where(collective, 0.0, 1.0), at_least=alone)


def while_only_communicating(a: Analysis) -> Cover:
    """When, in the steps, a collective runs with nothing beside it."""
    trace, steps = a.trace, Cover(a.steps.start, a.steps.end)
    if not len(trace.kernels):
        return exposed_on_cpu(trace) & steps
    collective = a.named(is_collective)
    alone = trace.kernels.cover(collective)
    return trace.kernels.cover(~collective).gaps(alone.start, alone.end) & steps


def device_queue_stall(a: Analysis) -> Finding | None:
    """The GPU is idle although work has been launched: it waits for itself, a peer, or what was not recorded.

    Not the pause of a µs or two that is between any two kernels.
    """
    queued = [gpu.by_gap[CAUSES.index("queued")] for gpu in a.idle]
    waits = [float(us[gpu.end - gpu.start >= PAUSE].sum()) for us, gpu in zip(queued, a.idle, strict=True)]
    us = sum(waits) / max(1, len(waits)) / a.step_count
    if not worthwhile(a, us):
        return None
    longest = longest_stall(a.trace, a.idle)
    do = (
        "look in the Trace view at what the stream waits for: an event of another stream, a peer, a graph's nodes, or "
        "work that was not recorded. Nothing on the CPU would shorten it"
    )
    why = f"no kernel runs although the next one was launched at least {LAUNCH_LATENCY} us before"
    if longest:
        why += f"; the longest time is {rounded_time(longest.us)} before {short_name(longest.work, 50)}"
    if longest and longest.first:
        why += ", the first work of its stream in the trace"
        do = "most likely the GPU still ran what was launched before the trace began: look at the time after it"
    return Finding(
        "device_queue_stall",
        "a GPU that waits for itself",
        why,
        us,
        do,
        when=a.while_idle("queued", PAUSE),
    )


def warm_up(a: Analysis) -> Evidence:
    """The GPU waits for memory, code, or its own start."""
    share = a.idle_share("setup")
    why = (
        f"{step_time(a, share)} of a step go into allocating GPU memory, loading code or starting the GPU up: "
        "trace after a warm-up, and see that no step has larger tensors than those before"
    )
    return bounded(why, share)


def startup(a: Analysis) -> Finding | None:
    """The same: memory is allocated, code is loaded, the GPU starts."""
    us = a.idle_us_per_step("setup")
    if not worthwhile(a, us):
        return None
    return Finding(
        "startup",
        "set-up inside the traced steps",
        "the GPU waits while memory is allocated, code is loaded or it starts",
        us,
        "trace after a warm-up: schedule(wait, warmup, active); see that no step has larger tensors than those before",
        when=a.while_idle("setup"),
    )


def graph_capture(a: Analysis) -> Finding | None:
    """A CUDA graph is captured: what is recorded is not how the program runs."""
    us = a.workload.capturing * a.total_us / a.step_count
    if not a.workload.capturing or not worthwhile(a, us):
        return None
    return Finding(
        "graph_capture",
        "a CUDA graph is captured",
        "kernels are recorded meanwhile, and run when the graph is launched",
        us,
        "trace the launches of the graph, after its capture",
    )


def doing(step: Outlier) -> str:
    """What an outlier does besides training, after "step 3"; "" where that is not known."""
    return " and ".join(DOING[reason] for reason in step.reasons)


def outlier_steps(a: Analysis) -> Finding | None:
    """Steps that take far longer than the others."""
    longer = [step for step in a.outliers if CUT not in step.reasons]
    if not longer:
        return None
    worst = max(longer, key=lambda step: step.excess_us)
    gap = (
        f"; no kernel runs for {rounded_time(worst.gap_us)} of it in one stretch, mostly {worst.cause}"
        if worst.cause
        else ""
    )
    names = ", ".join(step.name for step in longer[:5])
    longest = f"step {worst.name}"
    if len(longer) > 1:
        longest = f"steps {names}; the longest, {longest},"
    besides = f", and {doing(worst)}" if worst.reasons else ""
    do = "see in the Trace view what happens there: a garbage collection, a larger batch, another program"
    if besides:
        do = REMEDIES[worst.workers] or "see how often it does; to trace training alone, trace other steps"
    steps = a.whole.steps
    far = np.isin(steps.names, [step.name for step in longer])
    return Finding(
        "outlier_steps",
        "steps that take far longer than the others",
        f"{longest} takes {rounded_time(worst.excess_us)} more than the median step, {rounded_time(worst.role_us)} of "
        f"it {worst.role}{gap}{besides}. Other findings and advice leave them out",
        sum(step.excess_us for step in longer) / len(steps.names),
        do,
        when=Cover(steps.start[far], steps.end[far]),
    )
