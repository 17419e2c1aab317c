"""What waiting costs: for the GPU, Python, other ranks, memory and code; and steps that stand for no others.

Waits for input and for launches have files of their own.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.advice.evidence import WORTHWHILE, Evidence, bounded, of_step, per_step, step_time, worthwhile
from walkthrough.advice.input_costs import blocked_share, calls_of_copies, copies_text, without_copies
from walkthrough.advice.replay import Change, without
from walkthrough.results.errors import printable
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace import outliers
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import Spans, distinct, in_turn, once, places
from walkthrough.trace.communication import Communication, alone
from walkthrough.trace.idle import CAUSES, LAUNCH_LATENCY, Idle, longest_stall
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import COLLECTIVE, short_name
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import between_operators, innermost_functions, stepping_thread
from walkthrough.trace.outliers import CUT, FORWARD, LongSteps, Outlier
from walkthrough.trace.reader import CHECKPOINT, EVALUATION, NEW_EPOCH
from walkthrough.trace.steps import COMPILED, is_loading, is_mark

MUCH_PYTHON = 0.1  # of the step: calling operators takes less in most programs
TOP_FUNCTIONS = 3
LONG_WORK = 1_000.0  # µs between two calls of the runtime: to call operators takes a tenth of that
LONG = 0.05  # of a step: what takes less does not stand out
PAUSE = 10.0  # µs: shorter times between two kernels are usual
MUCH_WAITING = 0.1  # of the step: collectives alone for longer are a wait for another rank, in part
MANY_COLLECTIVES = 50  # of a step: DDP has one for 25 MB of gradients, so 50 for a model of 300 million parameters
SHORT_COLLECTIVE = 250.0  # µs: ten times what the smallest takes between GPUs of one machine
BESIDES = {  # what a step does besides training, after a verb
    EVALUATION: "an evaluation",
    FORWARD: "forward passes without backward ones (an evaluation, or a rollout)",
    CHECKPOINT: "a checkpoint",
    NEW_EPOCH: "a new epoch",
}
VERBS = {EVALUATION: "holds", FORWARD: "holds", CHECKPOINT: "writes", NEW_EPOCH: "begins"}
DOING = {reason: f"{verb} {BESIDES[reason]}" for reason, verb in VERBS.items()}
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


class Waits(Struct, frozen=True):
    """Per step: how often the CPU waits for the GPU, for how long, and how long a GPU is idle because of that.

    idle_us: of a mean GPU, the time without a kernel that there would not be if no call waited.
    """

    count: float
    us: float
    idle_us: float


@once
def waits(a: Analysis) -> Waits:
    """The `Waits` inside calls that synchronise or copy to the CPU; a copy and the wait for it are one."""
    runtime, waiting = a.trace.runtime, waiting_calls(a)
    when = runtime.cover(waiting) & Cover(a.steps.cpu_start, a.steps.end)
    copying = calls_of_copies(a, direction(a.trace, "d2h")) & _before_a_wait(a)
    inside = Cover(a.steps.start, a.steps.end).holds(runtime.start)
    idle_us = mean_of_known([_idle_for_waits(a, gpu, when) for gpu in a.idle]) or 0.0
    count = int((waiting & inside & ~copying).sum())
    return Waits(count / a.step_count, when.total / a.step_count, idle_us / a.step_count)


def hidden_syncs(a: Analysis) -> Evidence:
    """Waits for the GPU, by what the GPU could have done meanwhile."""
    all_waits, copies, back = waits(a), blocked_share(a, "d2h"), direction(a.trace, "d2h")
    return bounded(
        f"the CPU waits for the GPU {all_waits.count:.0f}x {per_step(a)}, {rounded_time(all_waits.us)} in all; because "
        f"of that no kernel runs for {rounded_time(all_waits.idle_us)}",
        a.share_of_steps(all_waits.idle_us),
        do="look for .item(), .cpu(), print, synchronize and .to(device) from pageable memory; keep results on the "
        "GPU, and read them now and then",
        what="copies that the CPU waits for" if copies >= WORTHWHILE else "",
        detail=f"{copies_text(a, back)} to the CPU, while no kernel runs",
        us_per_step=copies * a.steps.mean_us,
        when=a.trace.copies.cover(back) | a.trace.runtime.cover(calls_of_copies(a, back)),
    )


def _before_a_wait(a: Analysis) -> np.ndarray:
    """A mask over the runtime's calls: those that the same thread follows with a call that waits."""
    before = np.zeros(len(a.trace.runtime), bool)
    this, following = in_turn(a.trace.runtime)
    before[this] = a.trace.calls.waits[following]
    return before


def _idle_for_waits(a: Analysis, gpu: Idle, waits: Cover) -> float:
    """µs without a kernel that one GPU would work in if no call waited, and nothing were copied back.

    Without a wait the CPU is ahead by its length, which shortens the gaps that follow, whatever the CPU does in them,
    until it is used up. Not the time in which work is queued, or in which copies and sets run that stay.
    """
    trace, here = a.trace, a.trace.copies.device == gpu.device
    back = direction(trace, "d2h") & here
    gone, staying = trace.copies.cover(back), trace.copies.cover(~back & here)
    staying = staying | trace.sets.cover(trace.sets.device == gpu.device) | gpu.pending
    most = (staying.gaps(gpu.start, gpu.end) | gone).within(gpu.start, gpu.end)
    waited = waits.within(-np.inf, gpu.end)
    saved = used = 0.0
    copied = gone.within(gpu.start, gpu.end)
    for until, copied_us, most_us in zip(waited.tolist(), copied.tolist(), most.tolist(), strict=True):
        us = min(most_us, max(until - used, copied_us))
        saved, used = saved + us, min(used + us, until)
    return saved


def waiting_calls(a: Analysis) -> np.ndarray:
    """A mask over the runtime's calls: those that wait for the GPU or copy to the CPU.

    Only on threads that launch kernels, unless they copy: one that pins memory has to wait.
    """
    trace, call = a.trace, a.trace.kernels.call
    launching = np.isin(trace.runtime.thread, distinct(trace.runtime.thread[call[call >= 0]]))
    return (trace.calls.waits & launching) | calls_of_copies(a, direction(trace, "d2h"))


def without_waits(a: Analysis) -> Change:
    """No call waits for the GPU, and nothing is copied back."""
    return Change(returns=waiting_calls(a)) | without_copies(a, "d2h")


def host_python(a: Analysis) -> Evidence:
    """Neither the GPU works nor an operator; with stacks, the innermost Python functions meanwhile."""
    share, trace = a.idle_share("other"), a.trace
    idle = f"{step_time(a, share)} {of_step(a)}"
    if not len(trace.python):
        why = f"for {idle} neither the GPU nor any operator works: Python, most likely"
        if not len(trace.operators):
            why = f"for {idle} no kernel runs, and no operator or function was recorded"
        return bounded(why, share, do="record with stacks to see its functions: `walkthrough trace --stacks`")
    free = Cover()
    for gpu in a.idle[:1]:
        free = between_operators(trace, gpu.start, gpu.end, gpu.pending)
    launching = trace.runtime.thread[trace.kernels.call[trace.kernels.call >= 0]]
    named = _functions(a, free, int(np.bincount(launching).argmax()) if len(launching) else stepping_thread(trace))
    do = "move it out of the loop; what is the model's own, compile"
    if _PREPARES_INPUT.search(named):
        do = "preparing input is for a DataLoader's worker processes, while the GPU computes"
    return bounded(
        f"{idle} are Python while the GPU is idle{': ' * bool(named)}{named}",
        share,
        do=do,
        what="Python while the GPU is idle" if named and share >= WORTHWHILE else "",
        detail=f"neither the GPU nor an operator works; the innermost functions: {named}",
        when=free,
    )


def host_python_on_cpu(a: Analysis) -> Evidence | None:
    """Python outside of operators, also in a closure that the optimizer runs; named, where the trace has stacks."""
    python = a.between_operators
    share = a.share_within(python)
    if share < MUCH_PYTHON:
        return None
    idle = "no operator runs and the loop does not wait for a DataLoader"
    why = f"for {step_time(a, share)} {of_step(a)} {idle if len(a.phases.loading.start) else 'no operator runs'}"
    if named := _functions(a, python, stepping_thread(a.trace)):
        return bounded(f"{why}: {named}", share, do="move it out of the loop, or compile it with the model")
    do = "record with stacks to see its functions: `walkthrough trace --stacks`"
    return bounded(f"{why}: Python, most likely", share, do=do)


def _functions(a: Analysis, when: Cover, thread: int) -> str:
    """The innermost Python functions of a thread meanwhile, with their time of a step; "" without stacks."""
    functions = innermost_functions(a.trace, when, thread)[:TOP_FUNCTIONS]
    return "; ".join(f"{name} {rounded_time(us / a.step_count)}" for name, us in functions)


@once
def cpu_work(a: Analysis) -> Cover:
    """When a GPU idles while the threads that launch run operators, and call nothing for `LONG_WORK` or longer.

    To call operators and to launch kernels takes less from one call to the next: so this is work on the CPU, which no
    compiler and no graph makes shorter. Not in an operator that launches kernels itself, and not before the first
    kernel of a trace without steps.
    """
    trace, runtime = a.trace, a.trace.runtime
    launching = distinct(runtime.thread[trace.device_work.call[trace.device_work.call >= 0]])
    operators = trace.operators
    running = ~trace.named(operators, lambda name: is_mark(name) or is_loading(name))
    own = operators.where(running & np.isin(operators.thread, launching))
    running = own.cover()
    idle = Cover()
    for gpu in a.idle[:1]:
        idle = (runtime.cover() | gpu.pending | trace.copies.cover() | a.phases.loading).gaps(gpu.start, gpu.end)
    if not a.steps.marked:
        idle = idle & Cover(trace.device_work.start[:1], a.steps.end[-1:])
    long = idle.end - idle.start >= LONG_WORK
    work = Cover(idle.start[long], idle.end[long]) & running
    launches = _launching(a, own)  # what such an operator does before its kernel is a part of launching it
    return launches.gaps(work.start, work.end)


def _launching(a: Analysis, operators: Spans) -> Cover:
    """When torch's own operators run that call the runtime themselves, of those that take so long."""
    long = operators.duration >= LONG_WORK
    own = operators.where(long & a.trace.named(operators, lambda name: name.startswith("aten::")))
    calling, calls = np.zeros(len(own), bool), places(a.trace.runtime.thread)
    for thread, here in places(own.thread).items():
        start = a.trace.runtime.start[calls.get(thread, np.empty(0, np.int64))]
        calling[here] = np.searchsorted(start, own.end[here]) > np.searchsorted(start, own.start[here])
    return own.cover(calling)


def cpu_operators(a: Analysis) -> Evidence | None:
    """Operators that work on the CPU while the GPU waits."""
    work = cpu_work(a)
    share = work.total / a.total_us
    if share < WORTHWHILE:
        return None
    trace, operators = a.trace, a.trace.operators
    wrapper = trace.named(operators, lambda name: is_mark(name) or is_loading(name) or _WRAPPER.match(name))
    outermost = np.flatnonzero(
        ~wrapper & ((trace.nesting.parent < 0) | np.append(wrapper, False)[trace.nesting.parent])
    )
    us = work.within(operators.start[outermost], operators.end[outermost])
    named = [
        f"{printable(name, 60)} {rounded_time(time / a.step_count)}"
        for name, time in trace.longest(operators.name[outermost], us)[:TOP_FUNCTIONS]
        if time >= LONG * work.total
    ]
    do = "run it on the GPU (device=), or before the loop"
    if named and re.match(f"{COMPILED.pattern}|autograd::", named[0]):
        do = (
            "record with stacks to see its Python functions: `walkthrough trace --stacks`; a CUDA graph leaves them out"
        )
    is_ddp = trace.has_name(lambda name: "DistributedDataParallel" in name, operators, trace.annotations)
    if is_ddp and named and "aten::unflatten_dense_tensors" in named[0]:
        do = (
            "DDP broadcasts its buffers (means and variances of batch normalisation) before each forward pass: where "
            "the ranks need not agree on them, forward_sync_buffers=False (before torch 2.13: broadcast_buffers=False)"
        )
    return bounded(
        f"{step_time(a, share)} {of_step(a)} the GPU waits while the CPU runs "
        f"{'; '.join(named) or 'what no operator names'}",
        share,
        do=do,
        what="operators on the CPU while the GPU is idle" if share >= LONG and not len(trace.python) else "",
        when=work,
    )


def ways_to_communicate_less(communication: Communication | None, training: bool | None) -> str:
    """What to do about collectives that nothing hides, after a look at the ranks."""
    if communication and communication.exchanges:
        return "exchange fewer bytes (16 bits), or exchange during layers that do not need the result"
    if training is False:
        return "fuse products with their collectives, or use fewer GPUs for each answer"
    return (
        "fewer collectives per sample (DDP's no_sync() while gradients are accumulated, or a bigger batch per rank), "
        "fewer bytes (bf16_compress_hook), or another size of bucket (bucket_cap_mb: larger if they are many, smaller "
        "if they begin late)"
    )


def exposed_communication(a: Analysis) -> Evidence | None:
    """Collectives with no kernel beside them; on a CPU gloo's, with no operator beside them."""
    collectives = a.communication
    if collectives is None:
        return None
    share, count = collectives.exposed_us / a.total_us, collectives.count / a.step_count
    mean_us = collectives.us / max(collectives.count, 1)
    long = f", {rounded_time(collectives.longest_us)} the longest" if collectives.longest_us >= 3 * mean_us else ""
    number = f"{counted(count, 'collective', 'collectives')} {per_step(a)}, {rounded_time(mean_us)} on average{long}"
    ways = ways_to_communicate_less(collectives, a.workload.training)
    if a.workload.training and count >= MANY_COLLECTIVES and mean_us < SHORT_COLLECTIVE:
        ways = (
            f"join them in buckets, as DDP does with gradients: one takes {rounded_time(mean_us)}, and its launch and "
            "its wait for the other ranks take as long for any size"
        )
    return bounded(
        f"{step_time(a, share)} {of_step(a)} only collectives run: {number}",
        share,
        do=ways,
        what="collectives that nothing hides" if len(a.trace.kernels) and share >= WORTHWHILE else "",
        detail=f"{number}, {rounded_time(collectives.us / a.step_count)} in all, {step_time(a, share)} of it with "
        "nothing else running",
        when=while_only_communicating(a),
    )


def slowest_rank(a: Analysis) -> Evidence | None:
    """Collectives with nothing beside them, for so long that this rank most likely waits for another in them."""
    share = a.communication.exposed_us / a.total_us if a.communication else 0.0
    if a.communication is None or share < MUCH_WAITING:
        return None
    return Evidence(
        f"{step_time(a, share)} {of_step(a)} only collectives run, the longest for "
        f"{rounded_time(a.communication.longest_us)}: in part a wait for another rank",
        share,
        do="put a trace of each rank in one folder, and `explain` that folder",
    )


def hidden_collectives(a: Analysis) -> Change:
    """Collectives run beside the rest, and no step is faster than they are."""
    steps, collective = a.whole.steps, a.of_kind(COLLECTIVE)
    return without(collective) | Change(at_least=a.trace.kernels.cover(collective).within(steps.start, steps.end))


def while_only_communicating(a: Analysis) -> Cover:
    """When, in the steps, a collective runs with nothing beside it."""
    return alone(a.trace) & Cover(a.steps.start, a.steps.end)


def device_queue_stall(a: Analysis) -> Evidence | None:
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
    what = "GPU stalls between launched kernels"
    return bounded(why, a.share_of_steps(us), do=do, what=what, when=a.while_idle("queued", PAUSE))


def warm_up(a: Analysis) -> Evidence:
    """The GPU waits while memory is allocated, code is loaded, or it starts."""
    share = a.idle_share("setup")
    return bounded(
        f"{step_time(a, share)} {of_step(a)} go into allocating GPU memory, loading code or starting the GPU",
        share,
        do="trace after a warm-up (schedule(wait, warmup, active)); see that no step has larger tensors than before",
        what="set-up inside the traced steps" if share >= WORTHWHILE else "",
        when=a.while_idle("setup"),
    )


def graph_capture(a: Analysis) -> Evidence | None:
    """A CUDA graph is captured: what is recorded is not how the program runs."""
    if a.workload.capturing < WORTHWHILE:
        return None
    return bounded(
        "kernels are recorded meanwhile, and run when the graph is launched",
        a.workload.capturing,
        do="trace the launches of the graph, after its capture",
        what="a CUDA graph is captured",
    )


def doing(step: Outlier) -> str:
    """What an outlier does besides training, after "step 3"; "" where that is not known."""
    return " and ".join(DOING[reason] for reason in step.reasons)


@once
def long_steps(a: Analysis) -> LongSteps:
    """The far longer steps of the program, traced or not."""
    return outliers.long_steps(a.trace, a.whole.steps)


def outlier_steps(a: Analysis) -> Evidence | None:
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
    longest, what = f"step {worst.name}", "a step that takes far longer than the others"
    if len(longer) > 1:
        longest, what = f"steps {names}; the longest, {longest},", "steps that take far longer than the others"
    besides = f", and {doing(worst)}" if worst.reasons else ""
    do = "see in the Trace view what happens there: a garbage collection, a larger batch, another program"
    if besides:
        do = REMEDIES[worst.workers] or "see how often it does; to trace training alone, trace other steps"
    elif worst.name == a.whole.steps.names[0] and a.trace.recording is None:
        do = f"step {worst.name} is the first traced one, before which nothing was launched: trace after more warm-up"
    steps = a.whole.steps
    far = np.isin(steps.names, [step.name for step in longer])
    return Evidence(
        f"{longest} takes {rounded_time(worst.excess_us)} more than the median step, {rounded_time(worst.role_us)} of "
        f"it {worst.role}{gap}{besides}. Other findings and advice leave {'them' if len(longer) > 1 else 'it'} out",
        do=do,
        what=what,
        us_per_step=sum(step.excess_us for step in longer) / len(steps.names),
        when=Cover(steps.start[far], steps.end[far]),
    )
