"""The costs that a trace of a GPU shows, one for each step of the walkthrough, and some others: see `advice`."""

import re
from collections.abc import Sequence

import numpy as np

from walkthrough.advice.advice import WORTHWHILE, Advice, bounded, step_time
from walkthrough.trace.columns import Trace, launched_in
from walkthrough.trace.communication import Communication, ways_to_communicate_less
from walkthrough.trace.idle import CAUSES, Idle
from walkthrough.trace.intervals import Cover, integral
from walkthrough.trace.kernel_names import LAYOUT, is_collective
from walkthrough.trace.kernels import Gpu, TensorCores, is_amd, mean_of_known, unit_name
from walkthrough.trace.memory import direction, step_bytes
from walkthrough.trace.operators import Phases
from walkthrough.trace.steps import Steps, of_steps
from walkthrough.trace.units import counted
from walkthrough.trace.workload import Nature

SAVED_BY_UINT8 = 0.75  # of an image's bytes, copied as uint8 instead of float32
SMALLEST_IMAGE = 10_000  # bytes per step: one image of 32 x 32 px is 12 kB in float32, and fewer bytes are no batch
_INFERENCE = "no backward pass and no optimizer ran: inference"
_NO_IMAGES = "no operator of this trace works on images"


def costs_on_gpu(
    trace: Trace,
    steps: Steps,
    phases: Phases,
    gpus: Sequence[Gpu],
    idle: Sequence[Idle],
    tensor_cores: TensorCores,
    communication: Communication | None,
    nature: Nature,
) -> list[Advice]:
    """An `Advice` for each step of the ladder and for some other costs; its share is 0 where the trace shows none."""
    waits_for_launches = _waits(idle, "launch", steps)
    another = "whether another of cuDNN's algorithms is faster, no trace shows"
    several = "what another GPU would add, no trace of one process shows"
    return [
        _mixed_precision(trace, steps, tensor_cores),
        _launching(trace, steps, gpus, waits_for_launches, nature),
        *_loading(trace, steps, phases, _waits(idle, "dataloader", steps)),
        *_copying(trace, steps, phases, idle, nature),
        *_less_loading(trace, steps, phases, idle, nature),
        _layout_conversions(trace, steps),
        _synchronising(trace, steps, idle),
        _optimizer(trace, steps, phases, idle),
        Advice("12_cudnn_benchmark", "choose algorithms by timing", another, 0.0, None),
        *_compiling(trace, steps, waits_for_launches, nature),
        _compiling_the_rest(trace, steps, phases, idle, nature),
        Advice("16_data_parallel", "train on several GPUs", several, 0.0, None),
        _setting_up(steps, _waits(idle, "setup", steps)),
        _communicating(steps, communication, nature),
        _idling(trace, steps, _waits(idle, "other", steps), nature),
    ]


def _waits(idle: Sequence[Idle], cause: str, steps: Steps) -> float:
    """Share of the steps' time that the GPUs, on average, wait for this cause."""
    total = steps.duration.sum()
    return float(np.mean([gpu.causes_us[cause] for gpu in idle]) / total) if idle and total > 0 else 0.0


def _loading(trace: Trace, steps: Steps, phases: Phases, share: float) -> list[Advice]:
    """Waits for the DataLoader: for processes, and where these load already, for more of them if cores are left."""
    step, wait = "04_multiprocess_loading", step_time(steps, share)
    if not phases.workers:
        why = f"each step waits {wait} for the DataLoader, which does its work in the main process"
        return [bounded(step, "load in processes", why, share)]
    why = f"although worker processes load, each step still waits {wait} for its batch: more workers, or less to do"
    more = bounded(None, "load in more processes", why, share)
    if trace.recording and not trace.recording.has_cores_left:
        workers, cores = trace.recording.workers, trace.recording.cores
        why = (
            f"each step waits {wait} for its batch, although {workers} worker processes load, and this process may use "
            f"{cores} cores: more of them would share those. Prepare the data once, before training, or on the GPU"
        )
        more = Advice(None, "do less for each batch", why, share, None)
    return [Advice(step, "load in processes", "worker processes load already", 0.0, 1.0), more]


def _mixed_precision(trace: Trace, steps: Steps, tensor_cores: TensorCores) -> Advice:
    """At best the matrix work in float32 is gone, and that in TF32 and the other kernels move half as many bytes."""
    kernels, total = trace.kernels, max(float(steps.duration.sum()), 1e-9)
    majors = [gpu["computeMajor"] for gpu in trace.gpu_properties if isinstance(gpu.get("computeMajor"), int)]
    if majors and max(majors) < 7:
        return Advice("01_amp", "mixed precision", f"this GPU has no {unit_name(trace)}", 0.0, 1.0)

    def share(mask: np.ndarray) -> float:
        return float(kernels.cover(mask).within(steps.start, steps.end).sum()) / total

    full = share(tensor_cores.fp32_matrix)
    matrix = share(tensor_cores.fp32_matrix | tensor_cores.tf32_matrix)
    others = share(tensor_cores.fp32_matrix | tensor_cores.tf32_matrix | tensor_cores.fp32_other) - matrix
    tf32 = matrix - full
    kernels_text = "in float32" if is_amd(trace) else "in kernels without Tensor Cores"
    why = f"{step_time(steps, full)} of a step are matrix products and convolutions {kernels_text}"
    if tf32 >= WORTHWHILE:
        why += f", another {step_time(steps, tf32)} such in TF32, which take half as long in 16 bits"
    if others >= WORTHWHILE:
        why += f", and other kernels in float32, {step_time(steps, others)}, may move half as many bytes"
    gain = bounded("01_amp", "", "", full + (tf32 + others) / 2).predicted_gain
    return Advice("01_amp", f"mixed precision, on {unit_name(trace)}", why, min(full + tf32 / 2, 1.0), gain)


def _launching(trace: Trace, steps: Steps, gpus: Sequence[Gpu], share: float, nature: Nature) -> Advice:
    """Waits for launches, and SMs that are idle because kernels have too few blocks: less with more work per launch."""
    step, title = "02_bigger_batch", "give each launch more work"
    if nature.training is False:
        why = f"{_INFERENCE}, in which each answer of a bigger batch takes longer"
        return Advice(step, title, why, 0.0, None)
    kernels = trace.kernels
    inside = Cover(steps.start, steps.end).holds(kernels.start)
    mean_us = kernels.duration[inside].mean() if inside.any() else 0.0
    empty = max(0.0, mean_of_known(_without_blocks(trace, steps, gpu.id) for gpu in gpus) or 0.0)
    why = (
        f"{counted(inside.sum() / len(steps.names), 'kernel', 'kernels')} per step, {mean_us:.0f} us on average: for "
        f"{step_time(steps, share)} of it the GPU waits for the CPU to launch the next one"
    )
    if empty >= WORTHWHILE:
        why += f", and {step_time(steps, empty)} are lost on SMs for which kernels have no blocks"
    why += "; a bigger batch gives each launch more work"
    if not nature.compiled and not nature.graphed:
        why += ", torch.compile needs fewer launches"
    return bounded(step, title, why, share + empty)


def _without_blocks(trace: Trace, steps: Steps, device: int) -> float | None:
    """The share of the steps' time lost on one GPU's SMs for which the running kernels have no blocks; None if unknown.

    Without collectives: they need few SMs on purpose, and wait for other GPUs.
    """
    kernels, total = trace.kernels, float(steps.duration.sum())
    computing = (kernels.device == device) & np.isfinite(kernels.blocks_per_sm)
    computing &= ~trace.named(kernels, is_collective)
    if not computing.any() or not total > 0:
        return None
    start, end, blocks = kernels.start[computing], kernels.end[computing], kernels.blocks_per_sm[computing]
    running = Cover(start, end).within(steps.start, steps.end)
    filled = integral(start, end, np.maximum(blocks, 0.0), steps.start, steps.end, 1.0)
    return float((running - filled).sum()) / total


def _copying(trace: Trace, steps: Steps, phases: Phases, idle: Sequence[Idle], nature: Nature) -> list[Advice]:
    """Advice for copies to the device and from it, by the time in which the GPU computes nothing because of them."""
    copies, size = trace.copies, np.nan_to_num(trace.copies.bytes)
    to_device, total = direction(trace, "h2d"), max(float(steps.duration.sum()), 1e-9)
    shares = {name: _blocked_by(trace, idle, direction(trace, name)) / total for name in ("h2d", "d2h")}
    inside = to_device & of_steps(trace, steps, copies)
    batch = step_bytes(trace, steps)
    weight = size if batch else np.ones(len(copies))  # where sizes are not recorded, every copy counts alike
    pageable = weight[inside & trace.named(copies, lambda name: "Pageable" in name)].sum() > weight[inside].sum() / 2
    cost = step_time(steps, shares["h2d"])
    size_text = f"{batch / 1e6:.1f} MB" if batch >= 1e5 else f"{batch / 1e3:.1f} kB"
    what = f"{size_text} per step cross"
    if not batch:
        what = counted(inside.sum() / len(steps.names), "copy per step crosses", "copies per step cross")
    crossing = f"{what} to the GPU, which computes nothing for {cost} meanwhile"
    fewer = f"{crossing}; images sent as uint8 instead of float32 are a quarter of that"
    uint8 = bounded("03_reduced_h2d_copy", "copy images as uint8", fewer, shares["h2d"], remaining=1 - SAVED_BY_UINT8)
    if phases.normalises:
        uint8 = Advice(uint8.step, uint8.title, "batches are normalised on the GPU, so they cross as uint8", 0.0, 1.0)
    elif not nature.images or 0 < batch < SMALLEST_IMAGE:
        uint8 = Advice(uint8.step, uint8.title, f"{what} to the GPU: no images", 0.0, 1.0)
    pinned, early = ("05_pinned_memory", "pinned memory"), ("06_prefetch_stream", "copy the next batch early")
    back = bounded(
        None,
        "leave results on the GPU",
        f"copies back to the CPU (.item(), .cpu(), print) hold the GPU up for {step_time(steps, shares['d2h'])}",
        shares["d2h"],
    )
    if pageable:
        memory = bounded(*pinned, f"{crossing}, from pageable memory", shares["h2d"])
        stream = Advice(
            *early, "copies from pageable memory cannot overlap: that is the first thing to change", 0.0, None
        )
    else:
        memory = Advice(*pinned, "no batch is copied from pageable memory", 0.0, 1.0)
        stream = bounded(*early, f"{crossing}, though not from pageable memory", shares["h2d"])
    return [uint8, memory, stream, back]


def _blocked_by(trace: Trace, idle: Sequence[Idle], selected: np.ndarray) -> float:
    """µs that a GPU, on average, runs no kernel during its `selected` copies (a mask) or the calls that start them.

    Not during such a call where work is queued: then the GPU does not wait for the call.
    """
    copies, runtime = trace.copies, trace.runtime
    call = copies.call
    blocked_us = []
    for gpu in idle:
        mask = selected & (copies.device == gpu.device)
        calling = call[mask & (call >= 0)]
        copying = copies.cover(mask) | gpu.pending.gaps(runtime.start[calling], runtime.end[calling])
        waiting = Cover(gpu.start, gpu.end)
        blocked_us.append(copying.total + waiting.total - (copying | waiting).total)  # what both cover
    return mean_of_known(blocked_us) or 0.0


def _caused_by(trace: Trace, steps: Steps, idle: Sequence[Idle], code: Cover) -> tuple[float, float]:
    """Of the steps' time, the shares in which a GPU runs kernels that `code` (a cover on the CPU) launches, and waits
    while it runs, for other than copies and setting up."""
    total, runtime, kernels = max(float(steps.duration.sum()), 1e-9), trace.runtime, trace.kernels
    launched = launched_in(trace, kernels, code)
    alone = runtime.cover(trace.calls.copies).gaps(code.start, code.end)
    working_us, waiting_us = [], []
    for gpu in idle:
        cover = kernels.cover(launched & (kernels.device == gpu.device))
        working_us.append(float(cover.within(steps.start, steps.end).sum()))
        avoidable = sum(gpu.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other"))
        waiting_us.append(float(np.minimum(alone.within(gpu.start, gpu.end), avoidable).sum()))
    return (mean_of_known(working_us) or 0.0) / total, (mean_of_known(waiting_us) or 0.0) / total


def _layout_conversions(trace: Trace, steps: Steps) -> Advice:
    """Kernels that only convert an image's layout, because the kernels before and after need different ones."""
    converting = trace.kernels.cover(trace.named(trace.kernels, lambda name: re.search(LAYOUT, name.lower())))
    share = float(converting.within(steps.start, steps.end).sum()) / max(float(steps.duration.sum()), 1e-9)
    if not share:
        why = "no kernel changes a layout; whether others would be faster in NHWC, no trace shows"
        return Advice("09_channels_last", "channels last", why, 0.0, None)
    why = f"{step_time(steps, share)} of a step are layout conversions between NCHW and NHWC"
    return bounded("09_channels_last", "channels last", why, share)


def _compiling(trace: Trace, steps: Steps, share: float, nature: Nature) -> list[Advice]:
    """Waits for launches: compiled code has fewer, a CUDA graph one. What fusion saves in kernels, no trace shows."""
    model, graphs = ("13_compile", "compile the model"), ("15_cuda_graphs", "CUDA graphs")
    wait = f"for {step_time(steps, share)} of a step the GPU waits for a launch"
    fewer = bounded(*model, f"{wait}; torch.compile launches fewer kernels, which also read and write less", share)
    if nature.compiled:
        fewer = Advice(*model, "compiled code runs already", 0.0, 1.0)
    elif nature.graphed > 0.5:
        fewer = Advice(*model, "CUDA graphs launch most kernels already", 0.0, 1.0)
    graph = 'a CUDA graph launches all kernels with one call (torch.compile with mode="reduce-overhead" records it)'
    once = bounded(*graphs, f"{wait}; {graph}", share)
    if nature.graphed:
        once = Advice(*graphs, "CUDA graphs are launched already", 0.0, 1.0)
    return [fewer, once]


def _compiling_the_rest(trace: Trace, steps: Steps, phases: Phases, idle: Sequence[Idle], nature: Nature) -> Advice:
    step, title = "14_compile_loss", "compile normalisation and loss"
    if nature.training is False and not phases.normalises:
        return Advice(step, title, f"{_INFERENCE}, without a loss", 0.0, 1.0)
    working, waiting = _caused_by(trace, steps, idle, phases.preparing | phases.loss)
    runs = f"runs their kernels for {step_time(steps, working)} of a step, and " if working > 0 else ""
    why = (
        "operators convert and normalise the batch before the model, or compute the loss: the GPU "
        f"{runs}waits for them for {step_time(steps, waiting)}; both can be compiled with the model"
    )
    return bounded(step, title, why, working + waiting)


def _optimizer(trace: Trace, steps: Steps, phases: Phases, idle: Sequence[Idle]) -> Advice:
    step, title = "11_fused_optimizer", "a fused optimizer"
    if phases.fused:
        return Advice(step, title, "the optimizer is fused already", 0.0, 1.0)
    working, waiting = _caused_by(trace, steps, idle, phases.optimizer)
    waits = f", and for {step_time(steps, waiting)} the GPU waits meanwhile" if waiting > 0 else ""
    why = f"Optimizer.step launches {step_time(steps, working)} of kernels per step{waits}; fused, it is a few kernels"
    return bounded(step, title, why, working + waiting)


def _less_loading(trace: Trace, steps: Steps, phases: Phases, idle: Sequence[Idle], nature: Nature) -> list[Advice]:
    """Waits for batches that worker processes load, and for their copies: less with small images, none without both."""
    small, on_device = ("07_small_images", "resize on the GPU"), ("08_on_device_data", "keep the data on the GPU")
    if not len(phases.loading.start):
        why = "no DataLoader in this trace"
        return [Advice(*small, why, 0.0, 1.0), Advice(*on_device, why, 0.0, 1.0)]
    if not phases.workers:
        why = "the main process loads by itself: that is the first thing to change"
        return [Advice(*small, why, 0.0, None), Advice(*on_device, why, 0.0, None)]
    copying = _blocked_by(trace, idle, direction(trace, "h2d")) / max(float(steps.duration.sum()), 1e-9)
    waiting = _waits(idle, "dataloader", steps)
    both = (
        f"although worker processes load, a step waits {step_time(steps, waiting)} for its batch and "
        f"{step_time(steps, copying)} for the copy"
    )
    fits = f"{both}: a small data set fits on the GPU, which can prepare it too"
    none = bounded(*on_device, fits, waiting + copying)
    if phases.resizes or not nature.images:
        why = "batches are resized on the GPU already" if phases.resizes else _NO_IMAGES
        return [Advice(*small, why, 0.0, 1.0), none]
    enlarged = f"{both}: images that are enlarged can cross as they are stored, so that only a part of both remains"
    return [bounded(*small, enlarged, waiting + copying), none]


def _synchronising(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> Advice:
    """Waits inside calls that synchronise, and after them until the GPU has work again."""
    runtime = trace.runtime
    waiting = trace.calls.waits
    drained = Cover(runtime.start[waiting], runtime.end[waiting] + 1)  # the call returns as the last kernel ends
    waits_us = []
    for gpu in idle:
        after = drained.holds(gpu.start)
        inside, launching, other = (gpu.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other"))
        waits_us.append(inside.sum() + launching[after].sum() + other[after].sum())
    share = (mean_of_known(waits_us) or 0.0) / max(float(steps.duration.sum()), 1e-9)
    count = (waiting & Cover(steps.start, steps.end).holds(runtime.start)).sum() / len(steps.names)
    why = (
        f"the CPU waits for the GPU, {count:.0f}x per step (.item(), .cpu(), synchronize), "
        f"and then the GPU for the CPU: {step_time(steps, share)} without a kernel"
    )
    return bounded("10_no_hidden_syncs", "do not synchronise", why, share)


def _setting_up(steps: Steps, share: float) -> Advice:
    why = (
        f"{step_time(steps, share)} of a step go into allocating GPU memory, loading code or starting the GPU up: "
        "trace after a warm-up, and see that no step has larger tensors than those before"
    )
    return bounded(None, "warm up first", why, share)


def _communicating(steps: Steps, communication: Communication | None, nature: Nature) -> Advice:
    share = communication.exposed_us / max(float(steps.duration.sum()), 1e-9) if communication else 0.0
    alone = f"collectives run {step_time(steps, share)} of a step with nothing beside them"
    how = ways_to_communicate_less(communication, nature.training)
    why = f"{alone}; compare the ranks first, since waiting for the slowest is part of it; then {how}"
    return bounded(None, "overlap communication", why, share)


def _idling(trace: Trace, steps: Steps, share: float, nature: Nature) -> Advice:
    why = f"for {step_time(steps, share)} of a step neither the GPU nor any operator works: Python, most likely"
    look = "what stands out names its functions" if nature.stacks else "trace with stacks to see its functions"
    if not len(trace.operators) and not nature.stacks:
        why = f"for {step_time(steps, share)} of a step no kernel runs, and no operator or function was recorded"
        look = "trace with stacks, and with ProfilerActivity.CPU"
    return bounded(None, "find the Python between operators", f"{why}; {look}", share)
