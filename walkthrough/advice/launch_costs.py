"""What launching costs: many small kernels, the optimizer's, and operators that compiled code or a CUDA graph joins."""

import numpy as np

from walkthrough.advice.evidence import WORTHWHILE, Evidence, Finding, bounded, no_effect, once, step_time, worthwhile
from walkthrough.advice.kernel_costs import fused_away, shortest_us, without
from walkthrough.advice.replay import Change
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import distinct, median
from walkthrough.trace.communication import exposed_on_cpu
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover, integral
from walkthrough.trace.kernel_names import COLLECTIVE, MATRIX, is_collective, is_exchange
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import pauses

MANY_KERNELS = 50  # of a step, or of an optimizer's: a fused one has a few
# An optimizer that costs more than its kernels show: so many of all kernels, and so much of the step on the CPU.
MANY, COSTLY = 0.2, 0.05
SHORT = 10.0  # µs: a kernel that takes about as long as its launch
CALLS_PER_LAUNCH = 3  # a compiled launch takes as long on the CPU as that many bare calls of the driver
_INFERENCE = "no backward pass and no optimizer ran: inference"


def bigger_batch(a: Analysis) -> Evidence:
    """Waits for launches, and SMs that are idle because kernels have too few blocks."""
    if a.workload.training is False:
        return Evidence(f"{_INFERENCE}, in which each answer of a bigger batch takes longer")
    kernels, share = a.trace.kernels, a.idle_share("launch")
    inside = Cover(a.steps.start, a.steps.end).holds(kernels.start)
    mean_us = kernels.duration[inside].mean() if inside.any() else 0.0
    empty = max(0.0, mean_of_known(_without_blocks(a, gpu.id) for gpu in a.gpus) or 0.0)
    why = (
        f"{counted(inside.sum() / a.step_count, 'kernel', 'kernels')} per step, {mean_us:.0f} us on average: for "
        f"{step_time(a, share)} of it the GPU waits for the CPU to launch the next one"
    )
    if empty >= WORTHWHILE:
        why += f", and {step_time(a, empty)} are lost on SMs for which kernels have no blocks"
    why += "; a bigger batch gives each launch more work"
    if not a.workload.compiled and not a.workload.graphed:
        why += ", torch.compile needs fewer launches"
    return bounded(why, share + empty)


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
        return Evidence(f"{_INFERENCE}, in which each answer of a bigger batch takes longer")
    python = a.between_operators
    paused = a.share_within(pauses(python))
    calling, optimizer = a.share_within(python) - paused, a.share_within(a.phases.per_step)
    why = (
        f"{step_time(a, calling)} of a step are spent outside of operators and loading, so in Python, and "
        f"{step_time(a, optimizer)} in the optimizer: the same for a batch of any size. So is a part of every "
        "operator's time, which the trace of one batch size does not show"
    )
    if paused >= WORTHWHILE:
        why += f". Another {step_time(a, paused)} of Python, in longer pauses, may be work on single samples"
    return Evidence(why, min(calling + optimizer, 1.0))


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


def fused_optimizer(a: Analysis) -> Evidence:
    """Kernels launched inside `Optimizer.step`, and waits for them."""
    if a.phases.fused:
        return no_effect("the optimizer is fused already")
    working, waiting = _caused_by(a, a.phases.optimizer)
    waits = f", and for {step_time(a, waiting)} the GPU waits meanwhile" if waiting > 0 else ""
    why = f"Optimizer.step launches {step_time(a, working)} of kernels per step{waits}; fused, it is a few kernels"
    return bounded(why, working + waiting)


def fused_optimizer_on_cpu(a: Analysis) -> Evidence:
    """The time in `Optimizer.step`."""
    if a.phases.fused:
        return no_effect("the optimizer is fused already")
    share = a.share_within(a.phases.optimizer)
    return bounded(f"Optimizer.step takes {step_time(a, share)} of a step", share)


def unfused_optimizer(a: Analysis) -> Finding | None:
    """Kernels launched inside `Optimizer.step`, one or more for each parameter or group."""
    optimizer, steps = a.phases.optimizer, a.steps
    kernels = a.launched_in(optimizer) & ~a.of_kind(MATRIX, COLLECTIVE)
    count, us = a.count_per_step(kernels), a.us_per_step(kernels)
    waiting = sum(
        float(np.minimum(optimizer.within(gpu.start, gpu.end), gpu.end - gpu.start).sum()) for gpu in a.idle
    ) / max(1, len(a.idle) * a.step_count)
    cpu_us = float(optimizer.within(steps.cpu_start, steps.cpu_end).sum()) / a.step_count
    share = count / max(a.count_per_step(np.ones(len(kernels), bool)), 1e-9)
    costly = share >= MANY and cpu_us * a.step_count >= COSTLY * a.total_us
    if a.phases.fused or count < MANY_KERNELS or not (costly or worthwhile(a, us + waiting)):
        return None
    return Finding(
        "unfused_optimizer",
        "an optimizer of many kernels",
        f"{count:.0f} kernels per step, {share:.0%} of all, are launched inside Optimizer.step, which takes the CPU "
        f"{rounded_time(cpu_us)}: {rounded_time(us)} of kernels, and for {rounded_time(waiting)} no kernel runs "
        "meanwhile",
        us + waiting,
        "fused=True, or foreach=True where the optimizer has no fused form",
        advice="fused_optimizer",
        when=a.while_running(kernels),
    )


def compile_loss(a: Analysis) -> Evidence:
    """Operators that convert and normalise a batch, or compute the loss."""
    if a.workload.training is False and not a.phases.normalises:
        return no_effect(f"{_INFERENCE}, without a loss")
    working, waiting = _caused_by(a, a.phases.preparing | a.phases.loss)
    runs = f"runs their kernels for {step_time(a, working)} of a step, and " if working > 0 else ""
    why = (
        "operators convert and normalise the batch before the model, or compute the loss: the GPU "
        f"{runs}waits for them for {step_time(a, waiting)}; both can be compiled with the model"
    )
    return bounded(why, working + waiting)


def compile_loss_on_cpu(a: Analysis) -> Evidence:
    """The time of the same operators."""
    if a.workload.training is False and not a.phases.normalises:
        return no_effect(f"{_INFERENCE}, without a loss")
    preparing, loss = a.share_within(a.phases.preparing), a.share_within(a.phases.loss)
    why = (
        f"{step_time(a, preparing)} of a step convert and normalise the batch before the model, a pass over memory "
        f"for each operation, and {step_time(a, loss)} are the loss: both can be compiled with the model"
    )
    return bounded(why, preparing + loss)


def _caused_by(a: Analysis, code: Cover) -> tuple[float, float]:
    """Of the steps' time, the shares in which a GPU runs kernels that `code` (a cover on the CPU) launches, and waits
    while it runs, for other than copies and setting up."""
    runtime, kernels, launched = a.trace.runtime, a.trace.kernels, a.launched_in(code)
    alone = runtime.cover(a.trace.calls.copies).gaps(code.start, code.end)
    working_us, waiting_us = [], []
    for gpu in a.idle:
        cover = kernels.cover(launched & (kernels.device == gpu.device))
        working_us.append(float(cover.within(a.steps.start, a.steps.end).sum()))
        avoidable = sum(gpu.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other"))
        waiting_us.append(float(np.minimum(alone.within(gpu.start, gpu.end), avoidable).sum()))
    return (mean_of_known(working_us) or 0.0) / a.total_us, (mean_of_known(waiting_us) or 0.0) / a.total_us


def fused(a: Analysis, code: Cover) -> Change:
    """One launch in place of all, and of each kernel only what is not its fixed cost."""
    duration = np.maximum(a.trace.kernels.duration, 1e-9)
    rest = np.maximum(0.0, 1 - shortest_us(a) / duration)
    return Change(cpu=[(code, 0.0)], kernels=np.where(a.launched_in(code), rest, 1.0))


def compile_model(a: Analysis) -> Evidence:
    """Waits for launches, and kernels that compiled code fuses with those beside them."""
    if a.workload.compiled:
        return no_effect("compiled code runs already")
    if a.workload.graphed > 0.5:
        return no_effect("CUDA graphs launch most kernels already")
    why = f"{_wait_for_launches(a)}; torch.compile launches fewer kernels, which also read and write less"
    waits, fused_us = bounded(why, a.idle_share("launch")), a.us_per_step(fused_away(a))
    if waits.gain == 1.0 or not worthwhile(a, fused_us):
        return waits
    chains = f"{rounded_time(fused_us)} of a step are kernels that compiled code fuses with those beside them"
    why = f"{chains}, and {why}" if waits.share >= WORTHWHILE else chains
    return bounded(why, waits.share + a.share_of_steps(fused_us))


def compile_model_on_cpu(a: Analysis) -> Evidence:
    """At best all of the model's time is gone but its convolutions, its matrix products and the loss."""
    phases, model = a.phases, a.phases.model & Cover(a.steps.start, a.steps.end)
    if a.workload.compiled:
        return no_effect("compiled code runs already")
    elsewhere = exposed_on_cpu(a.trace) | pauses(a.between_operators)
    products = float(phases.products.within(model.start, model.end).sum()) / a.total_us
    remaining = phases.products | phases.loss | phases.per_step | phases.loading | elsewhere
    share = (model.total - float(remaining.within(model.start, model.end).sum())) / a.total_us
    computed = "convolutions and matrix products" if phases.convolves else "matrix products"
    why = (
        f"the model's {computed} take {step_time(a, products)} of a step, and "
        f"{step_time(a, share)} everything between them (normalisation, activations, additions, and calling them): "
        "compiled code does that in fewer passes over memory"
    )
    return bounded(why, share)


def cuda_graphs(a: Analysis) -> Evidence:
    """Waits for launches."""
    if a.workload.graphed:
        return no_effect("CUDA graphs are launched already")
    graph = 'a CUDA graph launches all kernels with one call (torch.compile with mode="reduce-overhead" records it)'
    return bounded(f"{_wait_for_launches(a)}; {graph}", a.idle_share("launch"))


def many_small_launches(a: Analysis) -> Finding | None:
    """Kernels about as short as a launch, and a GPU that waits for launches."""
    us, count = a.idle_us_per_step("launch"), a.count_per_step(a.in_steps)
    if a.workload.graphed > 0.5 or not worthwhile(a, us) or count < MANY_KERNELS:
        return None
    short = float((a.trace.kernels.duration[a.in_steps] < SHORT).mean())
    if short < 0.5:
        return None
    return Finding(
        "many_small_launches",
        "many small launches",
        f"{count:.0f} kernels per step, {short:.0%} of them shorter than {SHORT:.0f} us: the GPU waits for the CPU to "
        "launch the next one",
        us,
        'CUDA graphs (torch.compile with mode="reduce-overhead"), or fewer and larger operators'
        + ("" if a.workload.training is False else ", or a bigger batch"),
        advice="cuda_graphs",
        when=a.while_idle("launch"),
    )


def _wait_for_launches(a: Analysis) -> str:
    return f"for {step_time(a, a.idle_share('launch'))} of a step the GPU waits for a launch"


@once
def model_code(a: Analysis) -> Cover:
    """The forward and the backward pass on the CPU, to the last kernel that a step launches: what is compiled."""
    phases, runtime, call = a.phases, a.trace.runtime, a.trace.kernels.call
    elsewhere = phases.per_step | phases.loading
    calls = distinct(call[call >= 0])
    calls = calls[~elsewhere.holds(runtime.start[calls])]
    last = np.searchsorted(runtime.start[calls], phases.model.end) - 1
    end = np.where(last >= 0, np.append(runtime.end[calls], -np.inf)[last], -np.inf)
    return elsewhere.gaps(phases.model.start, np.maximum(end, phases.model.start))


def compiled_model(a: Analysis) -> Change:
    """Of a chain of pointwise kernels the longest stays; each launch left costs the CPU a few bare calls."""
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
