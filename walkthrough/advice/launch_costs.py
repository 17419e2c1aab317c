"""What launching costs: many small kernels, the optimizer's, and operators that compiled code or a CUDA graph joins."""

import re

import numpy as np

from walkthrough.advice.evidence import WORTHWHILE, Evidence, bounded, of_step, per_step, step_time, worthwhile
from walkthrough.advice.input_costs import calls_of_copies, no_kernels
from walkthrough.advice.kernel_costs import chains, fused_away, shortest_us
from walkthrough.advice.replay import Change, without
from walkthrough.advice.wait_costs import cpu_work
from walkthrough.results.errors import printable
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import distinct, median, once
from walkthrough.trace.communication import alone
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover, integral
from walkthrough.trace.kernel_names import COLLECTIVE, MATRIX, is_collective, is_compiled, is_exchange
from walkthrough.trace.kernels import mean_of_known, vendor
from walkthrough.trace.memory import direction, from_pageable
from walkthrough.trace.operators import pauses
from walkthrough.trace.steps import COMPILED, passes

FEW_KERNELS = 10  # of an optimizer: fused, it has hardly fewer
MANY_KERNELS = 50  # of a step, or of an optimizer's: a fused one has a few
# An optimizer that costs more than its kernels show: so many of all kernels, and so much of the step on the CPU.
MANY, COSTLY = 0.2, 0.05
LITTLE = 0.002  # of the step: not worth a word
SYNCHRONISES = 2  # times in a step's forward and backward pass: no graph holds a call that waits for the GPU
SHORT = 10.0  # µs: a kernel that takes about as long as its launch
CALLS_PER_LAUNCH = 3  # a compiled launch takes as long on the CPU as that many bare calls of the driver
# Optimizers of torch.optim: those with a fused form, and those without; the last three have no foreach=True either.
FUSED = frozenset(("Adam", "AdamW", "SGD", "Adagrad"))
UNFUSED = frozenset("ASGD Adadelta Adafactor Adamax NAdam RAdam RMSprop Rprop LBFGS Muon SparseAdam".split())
NO_FOREACH = frozenset(("LBFGS", "Muon", "SparseAdam"))
_CLASS = re.compile(r"Optimizer\.step#(\w+)\.step")
INFERENCE = "no backward pass and no optimizer ran: inference"
_SLOWER_ANSWERS = Evidence(f"{INFERENCE}, in which each answer of a bigger batch takes longer")


def waiting_for_launches(a: Analysis) -> float:
    """The share of the steps' time in which a GPU waits for a launch, and the CPU does no longer work meanwhile."""
    return max(0.0, a.idle_share("launch") - cpu_work(a).total / a.total_us)


def bigger_batch(a: Analysis) -> Evidence:
    """Waits for launches, and SMs that are idle because kernels have too few blocks."""
    if reason := no_kernels(a):
        return Evidence(reason, gain=1.0)
    if a.workload.training is False:
        return _SLOWER_ANSWERS
    kernels, share = a.trace.kernels, waiting_for_launches(a)
    inside = Cover(a.steps.start, a.steps.end).holds(kernels.start)
    mean_us = kernels.duration[inside].mean() if inside.any() else 0.0
    empty = max(0.0, mean_of_known(_without_blocks(a, gpu.id) for gpu in a.gpus) or 0.0)
    kernels_text = f"{counted(inside.sum() / a.step_count, 'kernel', 'kernels')} {per_step(a)}, {mean_us:.0f} us each"
    lost = [f"the GPU waits {step_time(a, share)} for launches"]
    if empty >= WORTHWHILE:
        lost.append(f"its SMs are partly empty, which costs {step_time(a, empty)}")
    return bounded(
        f"{' and '.join(lost)}; {kernels_text}",
        share + empty if share >= WORTHWHILE else 0.0,  # without waits, few blocks may be what the kernels need
        do="a bigger batch gives each launch more work; it changes the training, so check the learning rate",
    )


def _without_blocks(a: Analysis, device: int) -> float | None:
    """The share of the steps' time lost on one GPU's SMs for which the running kernels have no blocks; None if unknown.

    Without collectives: they need few SMs on purpose, and wait for other GPUs.
    """
    kernels, steps, total = a.trace.kernels, a.steps, float(a.steps.duration.sum())
    computing = (kernels.device == device) & np.isfinite(kernels.blocks_per_sm) & ~a.named(is_collective)
    if not computing.any() or not total > 0:
        return None
    start, end, blocks = kernels.start[computing], kernels.end[computing], kernels.blocks_per_sm[computing]
    running = Cover(start, end).within(steps.start, steps.end)
    filled = integral(start, end, np.maximum(blocks, 0.0), steps.start, steps.end, 1.0)
    return float((running - filled).sum()) / total


def bigger_batch_on_cpu(a: Analysis) -> Evidence:
    """Python and the optimizer take the same time for a batch of any size."""
    if a.workload.training is False:
        return _SLOWER_ANSWERS
    python = a.between_operators
    calling = a.share_within(python) - a.share_within(pauses(python))  # longer ones may be work on single samples
    optimizer = a.share_within(a.phases.per_step)
    return Evidence(
        f"{step_time(a, calling)} of Python and {step_time(a, optimizer)} of the optimizer take as long for a batch of "
        "any size",
        min(calling + optimizer, 1.0),
        do="it changes the training, so check the learning rate",
    )


def twice_the_batch(a: Analysis) -> Change:
    """Twice the samples. A kernel with less than a block per SM has room for more at the same time.

    Collectives take as long, since they join gradients or weights; but all-to-all, which exchanges samples.
    """
    kernels = a.trace.kernels
    blocks = np.where(kernels.blocks_per_sm > 0, kernels.blocks_per_sm, 1.0)
    unchanged = a.launched_in(a.phases.optimizer) | a.of_kind(COLLECTIVE)
    factor = np.where(unchanged, 1.0, np.clip(2 * blocks, 1.0, 2.0))
    return Change(
        cpu=[(a.phases.loading, 2.0)],
        kernels=np.where(a.named(is_exchange), 2.0, factor),
        copies=np.where(direction(a.trace, "h2d"), 2.0, 1.0),
        samples=2.0,
    )


def fused_already(a: Analysis) -> str:
    """Why the optimizer cannot be fused, or is, in words; "" where it can."""
    names = _classes(a)
    if a.phases.fused:
        return "the optimizer is fused already"
    compiled = a.trace.spans(COMPILED.search).cover() & a.phases.optimizer
    if compiled.total > a.phases.optimizer.total / 2:
        return "the optimizer is compiled already"
    has_foreach = a.trace.has_name(lambda name: name.startswith("aten::_foreach_"), a.trace.operators)
    if not names or names - UNFUSED or (a.on_gpu and not has_foreach and names - NO_FOREACH):
        return ""  # foreach=True, the default on a GPU, can be used
    return f"torch has no fused {' and no fused '.join(sorted(names))}"


def _classes(a: Analysis) -> set[str]:
    """The names of the optimizers' classes, as `Optimizer.step` is marked with them."""
    names = (_CLASS.match(a.trace.names[number]) for number in distinct(a.trace.operators.name).tolist())
    return {match[1] for match in names if match}


def _how_to_fuse(a: Analysis) -> str:
    """What to do about an optimizer that is not fused: of a class that is not torch's nobody knows what it computes."""
    names = _classes(a)
    if names & FUSED:
        return "create the optimizer with fused=True"
    if names & UNFUSED:
        return "create the optimizer with foreach=True"
    which = "torch's Adam, AdamW, SGD or Adagrad"
    return (
        f"fused=True, if it is or wraps {which}" if names else f"{which} with fused=True, if one of them does the same"
    )


@once
def optimizer_kernels(a: Analysis) -> np.ndarray:
    """A mask: kernels launched inside `Optimizer.step` that a fused one joins.

    Neither matrix products (as in Muon) nor collectives, nor what is compiled already.
    """
    return a.launched_in(a.phases.optimizer) & ~a.of_kind(MATRIX, COLLECTIVE) & ~a.named(is_compiled)


def fused_optimizer(a: Analysis) -> Evidence:
    """Kernels launched inside `Optimizer.step`, one or more for each parameter or group, and waits for them."""
    optimizer, steps, kernels = a.phases.optimizer, a.steps, optimizer_kernels(a)
    working, waiting = _caused_by(a, optimizer, kernels)
    count = a.count_per_step(kernels)
    cpu_share = float(optimizer.within(steps.cpu_start, steps.cpu_end).sum()) / a.total_us
    of_all = count / max(a.count_per_step(np.ones(len(kernels), bool)), 1e-9)
    costly = of_all >= MANY and cpu_share >= COSTLY
    waits = f", and the GPU waits {step_time(a, waiting)} meanwhile" if waiting >= LITTLE else ""
    why = f"{_update(a)} launches {counted(count, 'kernel', 'kernels')} {per_step(a)}"
    why += f", {step_time(a, working)}{waits}" if working >= LITTLE else waits
    do = _how_to_fuse(a)
    if count < FEW_KERNELS:
        do = "its kernels are few: see what else it does on the CPU, such as hooks, or state that lies there"
    return bounded(
        why,
        working + waiting,
        do=do,
        what="an optimizer of many kernels"
        if count >= MANY_KERNELS and (costly or working + waiting >= WORTHWHILE)
        else "",
        detail=f"{why}; it takes the CPU {step_time(a, cpu_share)}, for {of_all:.0%} of all kernels",
        when=a.while_running(kernels),
    )


def fused_optimizer_on_cpu(a: Analysis) -> Evidence:
    """The time in `Optimizer.step`."""
    share = a.share_within(a.phases.optimizer)
    return bounded(f"{_update(a)} takes {step_time(a, share)} {of_step(a)}", share, do=_how_to_fuse(a))


def _update(a: Analysis) -> str:
    return "Optimizer.step" if passes(a.trace).marked else "what follows the backward pass, an optimizer most likely,"


def without_a_loss(a: Analysis) -> str:
    """That an inference has no loss, in words; "" for training, or where something else could be compiled."""
    return f"{INFERENCE}, without a loss" if a.workload.training is False and not a.phases.normalises else ""


def compile_loss(a: Analysis) -> Evidence:
    """Operators that convert and normalise a batch, or compute the loss."""
    code = a.phases.preparing | a.phases.loss
    working, waiting = _caused_by(a, code, loss_kernels(a))
    parts = [(working, "{} of kernels"), (waiting, "the GPU waits {} meanwhile")]
    listed = " and ".join(text.format(step_time(a, share)) for share, text in parts if share >= LITTLE)
    why = f"preparing the batch and the loss: {listed or 'hardly any time'}"
    return bounded(why, working + waiting, do="compile them with the model, in one function")


def loss_kernels(a: Analysis) -> np.ndarray:
    """A mask: kernels that operators which prepare a batch or compute the loss launched."""
    return a.launched_in(a.phases.preparing | a.phases.loss) & ~a.of_kind(COLLECTIVE) & ~a.named(is_compiled)


def compile_loss_on_cpu(a: Analysis) -> Evidence:
    """The time of the same operators."""
    preparing, loss = a.share_within(a.phases.preparing), a.share_within(a.phases.loss)
    parts = [(preparing, "convert and normalise the batch"), (loss, "are the loss")]
    listed = " and ".join(f"{step_time(a, share)} {text}" for share, text in parts if share >= LITTLE)
    why = f"{listed or 'hardly any time'} {per_step(a)}, a pass over memory for each operation"
    return bounded(why, preparing + loss, do="compile them with the model, in one function")


def _caused_by(a: Analysis, code: Cover, launched: np.ndarray) -> tuple[float, float]:
    """Of the steps' time, the shares in which a GPU runs kernels that `code` (a cover on the CPU) launched (a mask),
    and waits while it runs, for other than copies and setting up."""
    runtime, kernels = a.trace.runtime, a.trace.kernels
    alone = runtime.cover(a.trace.calls.copies).gaps(code.start, code.end)
    working_us, waiting_us = [], []
    for gpu in a.idle:
        cover = kernels.cover(launched & (kernels.device == gpu.device))
        working_us.append(float(cover.within(a.steps.start, a.steps.end).sum()))
        avoidable = sum(gpu.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other"))
        waiting_us.append(float(np.minimum(alone.within(gpu.start, gpu.end), avoidable).sum()))
    working, waiting = (max(mean_of_known(us) or 0.0, 0.0) / a.total_us for us in (working_us, waiting_us))
    return working, waiting


def one_launch(a: Analysis, code: Cover, kernels: np.ndarray) -> Change:
    """One launch in place of all that `code` makes for `kernels` (a mask), of which only their fixed cost goes."""
    launched = a.launched_in(code)
    rest = np.maximum(0.0, 1 - shortest_us(a) / np.maximum(a.trace.kernels.duration, 1e-9))
    left = float((launched & ~kernels).sum()) / max(float(launched.sum()), 1.0)  # of the CPU's time, for other kernels
    return Change(cpu=[(code, left)], kernels=np.where(kernels, rest, 1.0))


def compile_model(a: Analysis) -> Evidence:
    """Waits for launches, and chains of elementwise kernels, each of which reads and writes memory anew."""
    gone = fused_away(a)
    fused_us, waits = a.us_per_step(gone), waiting_for_launches(a)
    title, do = "", "torch.compile fuses them, with the products before them where it can"
    if a.workload.compiled or a.workload.graphed > 0.5:
        waits = 0.0
    if a.workload.compiled:
        title, do = "Compile the rest of the model", "look for what is not compiled, and for graph breaks"
        if not a.workload.fused:
            do = "compiled code runs, but none of its kernels is fused: use torch.compile's backend inductor"
    if not worthwhile(a, fused_us):
        why = f"the GPU waits {step_time(a, waits)} {of_step(a)} for launches"
        return bounded(why, waits, do="torch.compile launches fewer kernels, which also read and write less")
    text = f"{rounded_time(fused_us)} {per_step(a)} of elementwise kernels that could be fused"
    members = a.count_per_step(np.isin(chains(a), chains(a)[gone]))
    return bounded(
        f"{text}, and {step_time(a, waits)} of waits for launches" if waits >= WORTHWHILE else text,
        waits + a.share_of_steps(fused_us),
        do=do,
        title=title,
        what="chains of elementwise kernels",
        detail=f"of {members:.0f} elementwise kernels and reductions {per_step(a)} that follow one another, all but "
        f"the longest of each chain{_operators_of(a, gone)}",
        us_per_step=fused_us,
        when=a.while_running(gone),
    )


def _operators_of(a: Analysis, kernels: np.ndarray) -> str:
    """The operators that launched most of the time of the kernels of a mask, in words; "" where none is recorded."""
    operator, us = a.launching_operator[kernels], a.us_in_steps[kernels]
    known = operator >= 0
    longest = a.trace.longest(a.trace.operators.name[operator[known]], us[known])[:3]
    named = [
        f"{printable(name, 60)} {rounded_time(time / a.step_count)}" for name, time in longest if time >= us.sum() / 10
    ]
    return f"; most of it {', '.join(named)}" if named else ""


def nothing_to_compile(a: Analysis) -> str:
    """Why there is nothing to compile on a GPU, in words; "" where there is."""
    if reason := no_kernels(a):
        return reason
    if worthwhile(a, a.us_per_step(fused_away(a))):
        return ""
    if a.workload.compiled:
        return "compiled code runs already"
    return "CUDA graphs launch most kernels already" if a.workload.graphed > 0.5 else ""


def compile_model_on_cpu(a: Analysis) -> Evidence:
    """At best all of the model's time is gone but its convolutions, its matrix products and the loss."""
    phases, model = a.phases, a.phases.model & Cover(a.steps.start, a.steps.end)
    elsewhere = alone(a.trace) | pauses(a.between_operators)
    products = float(phases.products.within(model.start, model.end).sum()) / a.total_us
    remaining = phases.products | phases.loss | phases.per_step | phases.loading | elsewhere
    share = (model.total - float(remaining.within(model.start, model.end).sum())) / a.total_us
    computed = "convolutions and matrix products" if phases.convolves else "matrix products"
    why = f"{step_time(a, share)} {of_step(a)} are between the model's {computed} ({step_time(a, products)})"
    return bounded(why, share, do="compiled code does that in fewer passes over memory")


def nothing_to_capture(a: Analysis) -> str:
    """Why CUDA graphs would change nothing, or could not be captured, in words; else ""."""
    if reason := no_kernels(a):
        return reason
    if vendor(a.trace) == "intel":
        return "CUDA graphs are for GPUs of NVIDIA and AMD"
    if a.workload.graphed > 0.5:
        return "CUDA graphs launch most kernels already"
    runtime, pageable = a.trace.runtime, calls_of_copies(a, from_pageable(a.trace))
    waits = (a.trace.calls.waits | pageable) & model_code(a).holds(runtime.start)
    count = (waits & Cover(a.steps.cpu_start, a.steps.cpu_end).holds(runtime.start)).sum() / a.step_count
    if count <= SYNCHRONISES:
        return ""
    return f"the model waits for the GPU {count:.0f}x {per_step(a)}, which no graph can hold: remove these waits first"


def cuda_graphs(a: Analysis) -> Evidence:
    """Waits for launches."""
    share, count = waiting_for_launches(a), a.count_per_step(a.in_steps)
    short = float((a.trace.kernels.duration[a.in_steps] < SHORT).mean()) if a.in_steps.any() else 0.0
    many = share >= WORTHWHILE and count >= MANY_KERNELS and short >= 0.5
    kernels = f"{counted(count, 'kernel', 'kernels')} {per_step(a)}, {short:.0%} of them shorter than {SHORT:.0f} us"
    return bounded(
        f"the GPU waits {step_time(a, share)} for launches; {kernels}",
        share,
        do='torch.compile(mode="reduce-overhead") records the kernels, and launches all with one call',
        what="many small launches" if many else "",
        when=a.while_idle("launch") if many else Cover(),
    )


@once
def model_code(a: Analysis) -> Cover:
    """The forward and the backward pass on the CPU, to the last kernel that a step launches: what is compiled.

    Without long pauses of Python: no compiler knows what the program does there.
    """
    phases, runtime, call = a.phases, a.trace.runtime, a.trace.kernels.call
    elsewhere = phases.per_step | phases.loading | pauses(a.whole.between_operators) | cpu_work(a.whole)
    calls = distinct(call[call >= 0])
    calls = calls[~elsewhere.holds(runtime.start[calls])]
    last = np.searchsorted(runtime.start[calls], phases.model.end) - 1
    end = np.where(last >= 0, np.append(runtime.end[calls], -np.inf)[last], -np.inf)
    return elsewhere.gaps(phases.model.start, np.maximum(end, phases.model.start))


def compiled_model(a: Analysis) -> Change:
    """Of a chain of pointwise kernels the longest stays; each launch left costs the CPU a few bare calls."""
    if a.workload.compiled or a.workload.graphed > 0.5:
        return without(fused_away(a))
    trace, model = a.trace, model_code(a)
    inside = a.launched_in(model)
    if not model.total:  # no operator was recorded, so only what fusion saves is known
        inside = np.ones(len(inside), bool)
    gone = fused_away(a) & inside
    launches, runtime = trace.calls.launches, trace.runtime
    call_us = float(median(runtime.duration[launches])) if launches.any() else 0.0
    busy = runtime.cover(trace.calls.waits).gaps(model.start, model.end).total
    factor = CALLS_PER_LAUNCH * call_us * int((inside & ~gone).sum()) / busy if busy > 0 else 1.0
    return without(gone) | Change(cpu=[(model, min(1.0, factor))])
