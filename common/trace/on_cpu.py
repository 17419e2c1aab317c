"""The costs that a trace without a GPU shows, one for each step of the walkthrough: see `advice`.

Worker processes run on the cores that also train, and no trace of the training process shows how much they slow it
down. What takes work from them, or bytes from the memory that all share, may therefore gain more than the time that it
removes from the step: such a cost has no bound.
"""

from common.trace.advice import WORTHWHILE, Advice, bounded, step_time
from common.trace.intervals import Cover
from common.trace.nature import Nature
from common.trace.phases import Phases
from common.trace.steps import Steps

_NO_IMAGES = "no operator of this trace works on images"
_NOTHING_COPIED = "no GPU in this trace: nothing is copied to a device"


def costs_on_cpu(steps: Steps, phases: Phases, nature: Nature) -> list[Advice]:
    """An `Advice` for each step of the ladder; its share is 0 where the trace does not show the cost."""
    unsure = "whether bf16 is faster depends on this CPU's instructions, which no trace shows"
    return [
        Advice("01_amp", "mixed precision", unsure, 0.0, None),
        _per_step(steps, phases, nature),
        _converting(steps, phases, nature),
        _loading(steps, phases),
        _without_effect("05_pinned_memory", "pinned memory", _NOTHING_COPIED),
        _without_effect("06_prefetch_stream", "copy the next batch early", _NOTHING_COPIED),
        *_less_loading(steps, phases, nature),
        Advice(
            "09_channels_last", "channels last", "which layout suits a CPU's convolutions, no trace shows", 0.0, None
        ),
        _without_effect("10_no_hidden_syncs", "do not synchronise", "no GPU in this trace: nothing to wait for"),
        _optimizer(steps, phases),
        _without_effect("12_cudnn_benchmark", "choose algorithms by timing", "cuDNN's algorithms are for GPUs"),
        _compiling(steps, phases, nature),
        _compiling_the_rest(steps, phases, nature),
        _without_effect("15_cuda_graphs", "CUDA graphs", "no GPU in this trace: nothing is launched"),
        Advice("16_data_parallel", "train in several processes", "they share these cores: no trace shows", 0.0, None),
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


def _per_step(steps: Steps, phases: Phases, nature: Nature) -> Advice:
    if nature.training is False:
        why = "no backward pass and no optimizer ran: inference, in which each answer of a bigger batch takes longer"
        return Advice("02_bigger_batch", "do more work per step", why, 0.0, None)
    python = _share(steps, float(steps.breakdown[-1].sum()))
    optimizer = _within(steps, phases.per_step)
    why = (
        f"{step_time(steps, python)} of a step are spent outside of operators and loading, so in Python, and "
        f"{step_time(steps, optimizer)} in the optimizer: the same for a batch of any size. So is a part of every "
        "operator's time, which the trace of one batch size does not show"
    )
    return Advice("02_bigger_batch", "do more work per step", why, min(python + optimizer, 1.0), None)


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


def _loading(steps: Steps, phases: Phases) -> Advice:
    step, title = "04_multiprocess_loading", "load in processes"
    if not len(phases.loading.start):
        return _without_effect(step, title, "no DataLoader in this trace")
    if phases.workers:
        return _without_effect(
            step, title, "worker processes load already; more of them would take cores from the training"
        )
    waiting = _within(steps, phases.loading)
    why = (
        f"each step waits {step_time(steps, waiting)} for the DataLoader, which does its work in the training process. "
        "On few cores, workers take from the training much or all of what they save"
    )
    return bounded(step, title, why, waiting)


def _less_loading(steps: Steps, phases: Phases, nature: Nature) -> list[Advice]:
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
    busy = _share(steps, float(steps.breakdown[:-1].sum()))  # all but Python
    concerned = busy if waiting >= WORTHWHILE else waiting
    both = (
        f"although worker processes load, a step waits {step_time(steps, waiting)} for its batch, and they take cores "
        "from the training; how much that slows it down, its trace does not show"
    )
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


def _compiling(steps: Steps, phases: Phases, nature: Nature) -> Advice:
    """At best all of the model's time is gone but its convolutions, its matrix products and the loss."""
    step, title, model = "13_compile", "compile the model", phases.model & Cover(steps.start, steps.end)
    if nature.compiled:
        return _without_effect(step, title, "compiled code runs already")
    products = _share(steps, float(phases.products.within(model.start, model.end).sum()))
    remaining = phases.products | phases.loss | phases.per_step | phases.loading
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
