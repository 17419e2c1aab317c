"""Looks in a trace for each cost that a step of the walkthrough treats: see `advice`."""

import re
from collections.abc import Sequence

import numpy as np

from common.trace.advice import WORTHWHILE, Advice, bounded
from common.trace.columns import Spans, Trace
from common.trace.communication import Communication
from common.trace.copies import direction, step_bytes
from common.trace.gpus import Gpu, mean_of_known
from common.trace.idle import CAUSES, Idle
from common.trace.intervals import Cover
from common.trace.operators import launches
from common.trace.steps import Steps, is_loading
from common.trace.tensor_cores import TensorCores

SAVED_BY_UINT8 = 0.75  # of an image's bytes, copied as uint8 instead of float32
_LAYOUT_CONVERSION = re.compile("nchwToNhwc|nhwcToNchw", re.IGNORECASE)  # cuDNN's kernels that only change the layout


def bottlenecks(
    trace: Trace,
    steps: Steps,
    gpus: Sequence[Gpu],
    idle: Sequence[Idle],
    tensor_cores: TensorCores,
    communication: Communication | None,
) -> list[Advice]:
    """An `Advice` for every cost that this module looks for; its share is 0 where the trace does not show the cost.

    [] for a partial trace, which proves nothing.
    """
    if trace.partial:
        return []
    if len(trace.kernels):
        return [
            _loading(trace, steps, _waits(idle, "dataloader", steps)),
            _mixed_precision(trace, steps, tensor_cores),
            _launching(trace, steps, gpus, _waits(idle, "launch", steps)),
            *_copying(trace, steps, idle),
            _layout_conversions(trace, steps),
            _compiling(steps, _waits(idle, "launch", steps)),
            _data_on_device(trace, steps, idle),
            _synchronising(trace, steps, idle),
            _setting_up(steps, _waits(idle, "setup", steps)),
            _communicating(steps, communication),
            _idling(steps, _waits(idle, "other", steps)),
        ]
    waiting = steps.mean_breakdown_us["dataloader"] / steps.mean_us if steps.mean_us > 0 else 0.0
    outside = steps.mean_breakdown_us["other"] / steps.mean_us if steps.mean_us > 0 else 0.0
    no_copies = "no GPU in this trace: nothing is copied to a device"
    unsure = "whether bf16 is faster depends on this CPU's instructions, which no trace shows"
    return [
        _loading(trace, steps, waiting),
        Advice("01_amp", "mixed precision", unsure, 0.0, None),
        bounded(
            "02_bigger_batch",
            "do more work per step",
            f"{_time(outside * steps.mean_us)} of a step are spent outside of operators and loading, so in Python",
            outside,
        ),
        Advice("03_reduced_h2d_copy", "copy fewer bytes", no_copies, 0.0, 1.0),
        Advice("05_pinned_memory", "pinned memory", no_copies, 0.0, 1.0),
        Advice(
            "06_channels_last", "channels last", "which layout suits a CPU's convolutions, no trace shows", 0.0, None
        ),
        Advice("07_no_hidden_syncs", "do not synchronise", "no GPU in this trace: nothing to wait for", 0.0, 1.0),
        Advice("08_compile", "compile the model", "which operators can become one, no trace shows", 0.0, None),
        Advice("09_prefetch_stream", "copy the next batch early", no_copies, 0.0, 1.0),
        Advice("10_on_device_data", "prepare a batch at once", "no trace shows what other code would take", 0.0, None),
    ]


def _waits(idle: Sequence[Idle], cause: str, steps: Steps) -> float:
    """Share of the steps' time that the GPUs, on average, wait for this cause."""
    total = steps.duration.sum()
    return float(np.mean([gpu.causes_us[cause] for gpu in idle]) / total) if idle and total > 0 else 0.0


def _loading(trace: Trace, steps: Steps, share: float) -> Advice:
    workers = _has_workers(trace)
    wait = _time(share * steps.mean_us)
    if workers:
        why = f"although worker processes load, each step still waits {wait} for its batch: more workers, or less to do"
    else:
        why = f"each step waits {wait} for the DataLoader, which does its work in the training process"
    return bounded("04_multiprocess_loading", "load in more processes" if workers else "load in processes", why, share)


def _has_workers(trace: Trace) -> bool:
    """True if worker processes load the batches."""
    names = [trace.names[number] for number in np.unique(trace.operators.name).tolist()]
    return any("MultiProcessing" in name for name in names if is_loading(name))


def _mixed_precision(trace: Trace, steps: Steps, tensor_cores: TensorCores) -> Advice:
    """At best the matrix work without Tensor Cores is gone, and the other kernels move half as many bytes."""
    kernels, total = trace.kernels, max(float(steps.duration.sum()), 1e-9)
    devices = [trace.properties.get(number, {}) for number in np.unique(kernels.device).tolist()]
    majors = [device["computeMajor"] for device in devices if isinstance(device.get("computeMajor"), int)]
    if majors and max(majors) < 7:
        return Advice("01_amp", "mixed precision", "this GPU has no Tensor Cores", 0.0, 1.0)
    matrix = _cover(kernels, tensor_cores.fp32_matrix)
    either = matrix | _cover(kernels, tensor_cores.fp32_other)
    share = float(matrix.within(steps.start, steps.end).sum()) / total
    others = float(either.within(steps.start, steps.end).sum()) / total - share
    why = (
        f"{_time(share * steps.mean_us)} of a step are matrix products and convolutions in kernels without Tensor Cores"
    )
    if others >= WORTHWHILE:
        why += f", and other kernels in float32, {_time(others * steps.mean_us)}, may move half as many bytes"
    gain = bounded("01_amp", "", "", share + others / 2).predicted_gain
    return Advice("01_amp", "mixed precision, on Tensor Cores", why, min(share, 1.0), gain)


def _launching(trace: Trace, steps: Steps, gpus: Sequence[Gpu], share: float) -> Advice:
    """Waits for launches, and SMs that are idle because kernels have too few blocks: less with more work per launch."""
    kernels = trace.kernels
    inside = Cover(steps.start, steps.end).holds(kernels.start)
    mean_us = kernels.duration[inside].mean() if inside.any() else 0.0
    empty = mean_of_known(None if gpu.sm_efficiency is None else gpu.utilization - gpu.sm_efficiency for gpu in gpus)
    empty = max(0.0, empty or 0.0)
    why = (
        f"{inside.sum() / len(steps.names):.0f} kernels per step, {mean_us:.0f} us on average: for "
        f"{_time(share * steps.mean_us)} of it the GPU waits for the CPU to launch the next one"
    )
    if empty >= WORTHWHILE:
        why += f", and {_time(empty * steps.mean_us)} are lost on SMs for which kernels have no blocks"
    why += "; a bigger batch gives each launch more work, torch.compile needs fewer of them"
    return bounded("02_bigger_batch", "give each launch more work", why, share + empty)


def _copying(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> list[Advice]:
    """Advice for copies to the device and from it, by the time in which the GPU computes nothing because of them."""
    copies, size = trace.copies, np.nan_to_num(trace.copies.bytes)
    to_device, total = direction(trace, "h2d"), max(float(steps.duration.sum()), 1e-9)
    shares = {name: _blocked_by(trace, idle, direction(trace, name)) / total for name in ("h2d", "d2h")}
    inside = to_device & Cover(steps.start, steps.end).holds(copies.start)
    batch = step_bytes(trace, steps)
    weight = size if batch else np.ones(len(copies))  # where sizes are not recorded, every copy counts alike
    pageable = weight[inside & trace.named(copies, lambda name: "Pageable" in name)].sum()
    cost = _time(shares["h2d"] * steps.mean_us)
    size_text = f"{batch / 1e6:.1f} MB" if batch >= 1e5 else f"{batch / 1e3:.1f} kB"
    what = f"{size_text} per step" if batch else f"{inside.sum() / len(steps.names):.0f} copies per step"
    crossing = f"{what} cross to the GPU, which computes nothing for {cost} meanwhile"
    fewer = bounded(
        "03_reduced_h2d_copy",
        "copy images as uint8",
        f"{crossing}; images sent as uint8 instead of float32 are a quarter of that",
        shares["h2d"],
        remaining=1 - SAVED_BY_UINT8,
    )
    if pageable > weight[inside].sum() / 2:
        pinned = bounded("05_pinned_memory", "pinned memory", f"{crossing}, from pageable memory", shares["h2d"])
    else:
        pinned = bounded(
            "09_prefetch_stream",
            "copy the next batch early",
            f"{crossing}, though not from pageable memory",
            shares["h2d"],
        )
    back = bounded(
        None,
        "leave results on the GPU",
        f"copies back to the CPU (.item(), .cpu(), print) hold the GPU up for {_time(shares['d2h'] * steps.mean_us)}",
        shares["d2h"],
    )
    return [fewer, pinned, back]


def _blocked_by(trace: Trace, idle: Sequence[Idle], selected: np.ndarray) -> float:
    """µs that a GPU, on average, runs no kernel during its `selected` copies (a mask) or the calls that start them."""
    copies, runtime = trace.copies, trace.runtime
    call = launches(trace, copies)
    blocked_us = []
    for gpu in idle:
        mask = selected & (copies.device == gpu.device)
        copying = _cover(copies, mask) | _cover(runtime, call[mask & (call >= 0)])
        waiting = Cover(gpu.start, gpu.end)
        blocked_us.append(copying.total + waiting.total - (copying | waiting).total)  # what both cover
    return mean_of_known(blocked_us) or 0.0


def _layout_conversions(trace: Trace, steps: Steps) -> Advice:
    """Kernels that only convert an image's layout, because the kernels before and after need different ones."""
    converting = _cover(trace.kernels, trace.named(trace.kernels, _LAYOUT_CONVERSION.search))
    share = float(converting.within(steps.start, steps.end).sum()) / max(float(steps.duration.sum()), 1e-9)
    if not share:
        why = "no kernel changes a layout; whether others would be faster in NHWC, no trace shows"
        return Advice("06_channels_last", "channels last", why, 0.0, None)
    why = f"{_time(share * steps.mean_us)} of a step are kernels that turn images from NCHW into NHWC or back"
    return bounded("06_channels_last", "channels last", why, share)


def _compiling(steps: Steps, share: float) -> Advice:
    """Waits for launches: compiled code has fewer. What fusion saves inside the kernels, no trace shows."""
    why = (
        f"for {_time(share * steps.mean_us)} of a step the GPU waits for a launch; torch.compile launches fewer "
        "kernels, which also read and write less"
    )
    return bounded("08_compile", "compile the model", why, share)


def _data_on_device(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> Advice:
    """Waits for batches that worker processes load, and for their copies: none if the data is on the device."""
    if not _has_workers(trace):
        why = "the training process loads by itself: that is the first thing to change"
        return Advice("10_on_device_data", "keep the data on the GPU", why, 0.0, None)
    copying = _blocked_by(trace, idle, direction(trace, "h2d")) / max(float(steps.duration.sum()), 1e-9)
    waiting = _waits(idle, "dataloader", steps)
    why = (
        f"although worker processes load, a step waits {_time(waiting * steps.mean_us)} for its batch and "
        f"{_time(copying * steps.mean_us)} for the copy: a small data set fits on the GPU, which can prepare it too"
    )
    return bounded("10_on_device_data", "keep the data on the GPU", why, waiting + copying)


def _synchronising(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> Advice:
    """Waits inside calls that synchronise, and after them until the GPU has work again."""
    runtime = trace.runtime
    waiting = trace.named(runtime, lambda name: "ynchronize" in name)
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
        f"and then the GPU for the CPU: {_time(share * steps.mean_us)} without a kernel"
    )
    return bounded("07_no_hidden_syncs", "do not synchronise", why, share)


def _setting_up(steps: Steps, share: float) -> Advice:
    why = (
        f"{_time(share * steps.mean_us)} of a step go into allocating GPU memory, loading code or starting the GPU up: "
        "trace after a warm-up, and see that no step has larger tensors than those before"
    )
    return bounded(None, "warm up first", why, share)


def _communicating(steps: Steps, communication: Communication | None) -> Advice:
    share = communication.exposed_us / max(float(steps.duration.sum()), 1e-9) if communication else 0.0
    alone = f"collectives run {_time(share * steps.mean_us)} of a step with nothing beside them"
    why = f"{alone}: larger buckets, or fewer of them (accumulate gradients)"
    return bounded(None, "overlap communication", why, share)


def _idling(steps: Steps, share: float) -> Advice:
    why = f"for {_time(share * steps.mean_us)} of a step neither the GPU nor any operator works: Python, most likely"
    return bounded(
        None, "find the Python between operators", f"{why}; trace with stacks and look there in the Trace view", share
    )


def _cover(spans: Spans, mask: np.ndarray) -> Cover:
    return Cover(spans.start[mask], spans.end[mask])


def _time(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.0f} us"
