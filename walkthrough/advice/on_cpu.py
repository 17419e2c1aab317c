"""The costs that a trace without a GPU shows, one for each step of the walkthrough: see `advice`.

Worker processes run on the cores that also train, and no trace of the training process shows how much they slow it
down. What takes work from them, or bytes from the memory that all share, may therefore gain more than the time that it
removes from the step: such a cost has no bound.
"""

from walkthrough.advice.advice import WORTHWHILE, Advice, bounded, step_time
from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import Communication, exposed_on_cpu, ways_to_communicate_less
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import Phases, between_operators, innermost_functions, pauses, stepping_thread
from walkthrough.trace.steps import Steps
from walkthrough.trace.units import counted, time_text
from walkthrough.trace.workload import Nature

MUCH_PYTHON = 0.1  # of the step: calling operators takes less in most programs
TOP_FUNCTIONS = 3
_CORES = "Workers need cores, which the training uses too"
LESS = "do less for each batch"
_NO_IMAGES = "no operator of this trace works on images"
_NOTHING_COPIED = "no GPU in this trace: nothing is copied to a device"


def costs_on_cpu(
    trace: Trace, steps: Steps, phases: Phases, communication: Communication | None, nature: Nature
) -> list[Advice]:
    """An `Advice` for each step of the ladder, and others; its share is 0 where the trace does not show the cost."""
    python = between_operators(trace, steps)
    unsure = "whether bf16 is faster depends on this CPU's instructions, which no trace shows"
    return [
        Advice("01_amp", "mixed precision", unsure, 0.0, None),
        _per_step(steps, phases, nature, python),
        _converting(steps, phases, nature),
        *_loading(trace, steps, phases),
        _without_effect("05_pinned_memory", "pinned memory", _NOTHING_COPIED),
        _without_effect("06_prefetch_stream", "copy the next batch early", _NOTHING_COPIED),
        *_less_loading(trace, steps, phases, nature, python),
        Advice(
            "09_channels_last", "channels last", "which layout suits a CPU's convolutions, no trace shows", 0.0, None
        ),
        _without_effect("10_no_hidden_syncs", "do not synchronise", "no GPU in this trace: nothing to wait for"),
        _optimizer(steps, phases),
        _without_effect("12_cudnn_benchmark", "choose algorithms by timing", "cuDNN's algorithms are for GPUs"),
        _compiling(steps, phases, nature, exposed_on_cpu(trace) | pauses(python)),
        _compiling_the_rest(steps, phases, nature),
        _without_effect("15_cuda_graphs", "CUDA graphs", "no GPU in this trace: nothing is launched"),
        Advice("16_data_parallel", "train in several processes", "they share these cores: no trace shows", 0.0, None),
        *_communicating(steps, communication, nature),
        *_python(trace, steps, phases, python),
    ]


def _without_effect(step: str, title: str, why: str) -> Advice:
    return Advice(step, title, why, 0.0, 1.0)


def _share(steps: Steps, us: float) -> float:
    """The share of the steps' time that so many µs are, of all steps together."""
    total = float(steps.duration.sum())
    return us / total if total > 0 else 0.0


def _within(steps: Steps, cover: Cover) -> float:
    """The share of the steps' time that a cover fills."""
    return _share(steps, float(cover.within(steps.start, steps.end).sum()))


def _per_step(steps: Steps, phases: Phases, nature: Nature, python: Cover) -> Advice:
    if nature.training is False:
        why = "no backward pass and no optimizer ran: inference, in which each answer of a bigger batch takes longer"
        return Advice("02_bigger_batch", "do more work per step", why, 0.0, None)
    paused = _within(steps, pauses(python))
    calling = _within(steps, python) - paused
    optimizer = _within(steps, phases.per_step)
    why = (
        f"{step_time(steps, calling)} of a step are spent outside of operators and loading, so in Python, and "
        f"{step_time(steps, optimizer)} in the optimizer: the same for a batch of any size. So is a part of every "
        "operator's time, which the trace of one batch size does not show"
    )
    if paused >= WORTHWHILE:
        why += f". Another {step_time(steps, paused)} of Python, in longer pauses, may be work on single samples"
    return Advice("02_bigger_batch", "do more work per step", why, min(calling + optimizer, 1.0), None)


def _converting(steps: Steps, phases: Phases, nature: Nature) -> Advice:
    step, title = "03_reduced_h2d_copy", "load images as uint8"
    if not nature.images:
        return _without_effect(step, title, _NO_IMAGES)
    if phases.normalises or not len(phases.loading.start):
        return _without_effect(step, title, "batches are converted after loading, not image by image")
    if phases.workers:
        why = "whether worker processes convert images, a trace of the training process does not show"
        return Advice(step, title, why, 0.0, None)
    if not phases.converts:
        return _without_effect(step, title, "the DataLoader scales no images, so that nothing is left to convert later")
    waiting, converting = _within(steps, phases.loading), _within(steps, phases.converting)
    why = (
        f"a step waits {step_time(steps, waiting)} for the DataLoader; {step_time(steps, converting)} of it convert, "
        "normalise and stack images one by one, in float32. A batch of uint8 is a quarter of the bytes, and converted "
        "at once; what fewer bytes save in other operators, no trace shows"
    )
    return Advice(step, title, why, converting, None)


def _loading(trace: Trace, steps: Steps, phases: Phases) -> list[Advice]:
    """Waits for the DataLoader: for processes, and where these load already and cores are left, for more of them."""
    step, title = "04_multiprocess_loading", "load in processes"
    if not len(phases.loading.start):
        return [_without_effect(step, title, "no DataLoader in this trace")]
    waiting, cores = _within(steps, phases.loading), trace.recording.cores if trace.recording else None
    if not phases.workers:
        why = (
            f"each step waits {step_time(steps, waiting)} for the DataLoader, which does its work in the training "
            f"process. {_CORES}{_of_cores(cores)}, so a step may even take longer. Measure it with walkthrough time: "
            "this command versus the same with num_workers=2. Or do less for each batch"
            f"{_functions_of_loading(trace, phases)}"
        )
        return [Advice(step, title, why, waiting, None)]
    why = "worker processes load already; more of them would take cores from the training"
    loading = _without_effect(step, title, why)
    workers = trace.recording.workers if trace.recording else 0
    if not workers or not cores or not trace.recording or not trace.recording.has_cores_left:
        return [loading]
    why = (
        f"although {workers} worker process{'es load' if workers > 1 else ' loads'}, each step waits "
        f"{step_time(steps, waiting)} for its batch. {_CORES}{_of_cores(cores)}, so a step may even take longer with "
        "more. Measure it with walkthrough time: this command versus the same with more of them"
    )
    return [loading, Advice(None, "load in more processes", why, waiting, None)]


def _functions_of_loading(trace: Trace, phases: Phases) -> str:
    """The innermost Python functions while the loop waits for its DataLoader, where the trace has stacks; else ""."""
    functions = innermost_functions(trace, phases.loading, stepping_thread(trace))[:3]
    total = max(phases.loading.total, 1e-9)
    return f": {'; '.join(f'{name} {us / total:.0%} of that' for name, us in functions)}" if functions else ""


def _of_cores(cores: int | None) -> str:
    return f" (this process may use {cores} core{'s' * (cores > 1)})" if cores else ""


def _less_loading(trace: Trace, steps: Steps, phases: Phases, nature: Nature, python: Cover) -> list[Advice]:
    """Less work for the workers: the operators of the training, too, then have more of the cores."""
    small, on_device = (
        ("07_small_images", "resize batches, not images"),
        ("08_on_device_data", "prepare a batch at once"),
    )
    if not len(phases.loading.start):
        why = "no DataLoader in this trace"
        return [_without_effect(*small, why), _without_effect(*on_device, why)]
    if not phases.workers:
        why = "the training process loads by itself: that is the first thing to change"
        return [Advice(*small, why, 0.0, None), Advice(*on_device, why, 0.0, None)]
    waiting = _within(steps, phases.loading)
    busy = 1 - _within(steps, python)
    concerned = busy if waiting >= WORTHWHILE else waiting
    both = (
        f"although worker processes load, a step waits {step_time(steps, waiting)} for its batch, and they take cores "
        "from the training; how much that slows it down, its trace does not show"
    )
    if trace.recording:  # of any program: what its workers do is not known
        less = (
            f"{both}. Do what can be done once before training, and what can be done for a batch at once after loading"
        )
        return [_without_effect(*small, "what the workers do is not known"), Advice(None, LESS, less, waiting, None)]
    fewer = Advice(
        *on_device, f"{both}. Small data fits in memory, from where a batch is picked at once", concerned, None
    )
    if phases.resizes or not nature.images:
        why = "batches are resized after loading already" if phases.resizes else _NO_IMAGES
        return [_without_effect(*small, why), fewer]
    why = f"{both}. Images that are enlarged could be loaded as they are stored, and enlarged a batch at a time"
    return [Advice(*small, why, concerned, None), fewer]


def _optimizer(steps: Steps, phases: Phases) -> Advice:
    step, title = "11_fused_optimizer", "a fused optimizer"
    if phases.fused:
        return _without_effect(step, title, "the optimizer is fused already")
    share = _within(steps, phases.optimizer)
    return bounded(step, title, f"Optimizer.step takes {step_time(steps, share)} of a step", share)


def _compiling(steps: Steps, phases: Phases, nature: Nature, other: Cover) -> Advice:
    """At best all of the model's time is gone but its convolutions, its matrix products and the loss.

    other: when the process does something else, such as waiting for collectives.
    """
    step, title, model = "13_compile", "compile the model", phases.model & Cover(steps.start, steps.end)
    if nature.compiled:
        return _without_effect(step, title, "compiled code runs already")
    products = _share(steps, float(phases.products.within(model.start, model.end).sum()))
    remaining = phases.products | phases.loss | phases.per_step | phases.loading | other
    share = _share(steps, model.total - float(remaining.within(model.start, model.end).sum()))
    computed = "convolutions and matrix products" if phases.convolves else "matrix products"
    why = (
        f"the model's {computed} take {step_time(steps, products)} of a step, and "
        f"{step_time(steps, share)} everything between them (normalisation, activations, additions, and calling them): "
        "compiled code does that in fewer passes over memory"
    )
    return bounded(step, title, why, share)


def _compiling_the_rest(steps: Steps, phases: Phases, nature: Nature) -> Advice:
    step, title = "14_compile_loss", "compile normalisation and loss"
    if nature.training is False and not phases.normalises:
        return _without_effect(step, title, "no backward pass and no optimizer ran: inference, without a loss")
    preparing, loss = _within(steps, phases.preparing), _within(steps, phases.loss)
    why = (
        f"{step_time(steps, preparing)} of a step convert and normalise the batch before the model, a pass over memory "
        f"for each operation, and {step_time(steps, loss)} are the loss: both can be compiled with the model"
    )
    return bounded(step, title, why, preparing + loss)


def _communicating(steps: Steps, communication: Communication | None, nature: Nature) -> list[Advice]:
    if communication is None:
        return []
    count, share = communication.count / len(steps.names), _share(steps, communication.exposed_us)
    mean = time_text(communication.us / max(communication.count, 1))
    why = (
        f"for {step_time(steps, share)} of a step a collective runs and no operator does "
        f"({counted(count, 'collective', 'collectives')} per step, {mean} on average). Waiting for the slowest rank is "
        "part of it: compare the ranks, a trace of each in one folder. Then "
        f"{ways_to_communicate_less(communication, nature.training)}"
    )
    return [bounded(None, "overlap communication", why, share)]


def _python(trace: Trace, steps: Steps, phases: Phases, python: Cover) -> list[Advice]:
    """Python outside of operators, also in a closure that the optimizer runs; named, where the trace has stacks."""
    share = _within(steps, python)
    if share < MUCH_PYTHON:
        return []
    inside = "neither an operator runs nor the loop waits for a DataLoader"
    why = f"for {step_time(steps, share)} of a step {inside if len(phases.loading.start) else 'no operator runs'}"
    functions = innermost_functions(trace, python, stepping_thread(trace))[:TOP_FUNCTIONS]
    if functions:
        named = "; ".join(f"{name} {time_text(us / len(steps.names))}" for name, us in functions)
        why += f"; the innermost functions: {named}"
    else:
        paused = _within(steps, pauses(python))
        why += ": Python, most likely"
        if paused >= share / 2:
            why += ", mostly in long pauses, which may be your own loader or preprocessing"
        why += ". Record with stacks (walkthrough trace --stacks) to see its functions"
    return [bounded(None, "find the Python between operators", why, share)]
