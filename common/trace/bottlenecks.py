"""The costs that the walkthrough's steps treat, each looked for in a trace: see `advice`."""

import re

import numpy as np

from common.trace.advice import WORTHWHILE, Advice, bounded
from common.trace.copies import direction, step_bytes
from common.trace.idle import CAUSES
from common.trace.intervals import Cover
from common.trace.operators import launches
from common.trace.steps import is_loading

FEWER_BYTES = 0.75  # of an image's bytes are saved where it crosses as uint8 and not as float32
_TURNS_OVER = re.compile("nchwToNhwc|nhwcToNchw", re.IGNORECASE)  # cuDNN's kernels that only change the layout


def levers(trace, steps, gpus, idle, tensor, talk):
    """An `Advice` for everything that this module knows to look for, found or not (then its share is 0).

    [] where a part of the trace is missing: nothing can be told from the rest.
    """
    if trace.partial:
        return []
    if len(trace.kernels):
        return [
            _loading(trace, steps, _waits(idle, "dataloader", steps)),
            _untapped(trace, steps, tensor),
            _launching(trace, steps, gpus, _waits(idle, "launch", steps)),
            *_copying(trace, steps, idle),
            _turning_over(trace, steps),
            _compiling(steps, _waits(idle, "launch", steps)),
            _keeping(trace, steps, idle),
            _synchronising(trace, steps, idle),
            _setting_up(trace, steps, _waits(idle, "setup", steps)),
            _communicating(steps, talk),
            _idling(steps, _waits(idle, "other", steps)),
        ]
    waiting = steps.mean_breakdown_us["dataloader"] / steps.mean_us if steps.mean_us > 0 else 0.0
    outside = steps.mean_breakdown_us["other"] / steps.mean_us if steps.mean_us > 0 else 0.0
    none = "no GPU in this trace: nothing is copied to a device"
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
        Advice("03_reduced_h2d_copy", "copy fewer bytes", none, 0.0, 1.0),
        Advice("05_pinned_memory", "pinned memory", none, 0.0, 1.0),
        Advice(
            "06_channels_last", "channels last", "which layout suits a CPU's convolutions, no trace shows", 0.0, None
        ),
        Advice("07_no_hidden_syncs", "do not synchronise", "no GPU in this trace: nothing to wait for", 0.0, 1.0),
        Advice("08_compile", "compile the model", "which operators can become one, no trace shows", 0.0, None),
        Advice("09_prefetch_stream", "copy the next batch early", none, 0.0, 1.0),
        Advice("10_on_device_data", "prepare a batch at once", "no trace shows what other code would take", 0.0, None),
    ]


def _waits(idle, cause, steps):
    """Share of the step's time that the GPUs, on average, wait for this cause."""
    total = steps.duration.sum()
    return float(np.mean([each.causes_us[cause] for each in idle]) / total) if idle and total > 0 else 0.0


def _loading(trace, steps, share):
    names = [trace.names[number] for number in np.unique(trace.operators.name).tolist()]
    workers = any("MultiProcessing" in name for name in names if is_loading(name))
    each = _time(share * steps.mean_us)
    if workers:
        why = f"although worker processes load, each step still waits {each} for its batch: more workers, or less to do"
    else:
        why = f"each step waits {each} for the DataLoader, which does its work in the training process"
    return bounded("04_multiprocess_loading", "load in more processes" if workers else "load in processes", why, share)


def _untapped(trace, steps, tensor):
    """Half precision: at best the matrix work on ordinary units is gone, and other kernels move half as many bytes."""
    kernels, total = trace.kernels, max(float(steps.duration.sum()), 1e-9)
    devices = [trace.properties.get(number, {}) for number in np.unique(kernels.device).tolist()]
    majors = [device["computeMajor"] for device in devices if isinstance(device.get("computeMajor"), int)]
    if majors and max(majors) < 7:
        return Advice("01_amp", "mixed precision", "this GPU has no Tensor Cores", 0.0, 1.0)
    matrix = Cover(kernels.start[tensor.untapped], kernels.end[tensor.untapped])
    both = matrix | Cover(kernels.start[tensor.single], kernels.end[tensor.single])
    share = float(matrix.within(steps.start, steps.end).sum()) / total
    others = float(both.within(steps.start, steps.end).sum()) / total - share
    why = (
        f"{_time(share * steps.mean_us)} of a step are matrix products and convolutions in kernels without Tensor Cores"
    )
    if others >= WORTHWHILE:
        why += f", and other kernels in float32, {_time(others * steps.mean_us)}, may move half as many bytes"
    gain = bounded("01_amp", "", "", share + others / 2).predicted_gain
    return Advice("01_amp", "mixed precision, on Tensor Cores", why, min(share, 1.0), gain)


def _launching(trace, steps, gpus, share):
    """Waits for launches, and SMs that are idle because a kernel has too few blocks: both shrink as launches grow."""
    kernels = trace.kernels
    inside = Cover(steps.start, steps.end).holds(kernels.start)
    each = kernels.duration[inside].mean() if inside.any() else 0.0
    empty = [gpu.utilization - gpu.sm_efficiency for gpu in gpus if gpu.sm_efficiency is not None]
    empty = max(0.0, sum(empty) / len(empty)) if empty else 0.0
    why = (
        f"{inside.sum() / len(steps.names):.0f} kernels a step, {each:.0f} us on average: for "
        f"{_time(share * steps.mean_us)} of it the GPU waits for the CPU to launch the next one"
    )
    if empty >= WORTHWHILE:
        why += f", and {_time(empty * steps.mean_us)} are lost on SMs for which kernels have no blocks"
    why += "; a bigger batch gives each launch more work, torch.compile needs fewer of them"
    return bounded("02_bigger_batch", "give each launch more work", why, share + empty)


def _copying(trace, steps, idle):
    """Advice for copies to the device and from it, by what each direction keeps its GPU from computing."""
    copies, size = trace.copies, np.nan_to_num(trace.copies.bytes)
    to_device, total = direction(trace, "h2d"), max(float(steps.duration.sum()), 1e-9)
    shares = {name: _held_up(trace, idle, direction(trace, name)) / total for name in ("h2d", "d2h")}
    inside = to_device & Cover(steps.start, steps.end).holds(copies.start)
    batch = step_bytes(trace, steps)
    weight = size if batch else np.ones(len(copies))  # where sizes are not recorded, every copy counts alike
    pageable = weight[inside & trace.named(copies, lambda name: "Pageable" in name)].sum()
    cost = _time(shares["h2d"] * steps.mean_us)
    size_text = f"{batch / 1e6:.1f} MB" if batch >= 1e5 else f"{batch / 1e3:.1f} kB"
    what = f"{size_text} a step" if batch else f"{inside.sum() / len(steps.names):.0f} copies a step"
    crossing = f"{what} cross to the GPU, which computes nothing for {cost} meanwhile"
    fewer = bounded(
        "03_reduced_h2d_copy",
        "copy images as uint8",
        f"{crossing}; images sent as uint8 instead of float32 are a quarter of that",
        shares["h2d"],
        kept=1 - FEWER_BYTES,
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


def _held_up(trace, idle, these):
    """µs that a GPU, on average, runs no kernel while these copies (a mask) are made for it, or called for."""
    copies, runtime, found = trace.copies, trace.runtime, []
    call = launches(trace, copies)
    for each in idle:
        mine = these & (copies.device == each.device)
        calls = call[mine & (call >= 0)]
        taken = Cover(copies.start[mine], copies.end[mine]) | Cover(runtime.start[calls], runtime.end[calls])
        waits = Cover(each.start, each.end)
        found.append(taken.total + waits.total - (taken | waits).total)  # what both cover
    return sum(found) / len(found) if found else 0.0


def _turning_over(trace, steps):
    """Kernels that do nothing but change an image's layout, since its neighbours want another."""
    kernels = trace.kernels
    these = trace.named(kernels, _TURNS_OVER.search)
    inside = Cover(kernels.start[these], kernels.end[these]).within(steps.start, steps.end).sum()
    share = float(inside) / max(float(steps.duration.sum()), 1e-9)
    if not share:
        why = "no kernel changes a layout; whether others would be faster in NHWC, no trace shows"
        return Advice("06_channels_last", "channels last", why, 0.0, None)
    why = f"{_time(share * steps.mean_us)} of a step are kernels that turn images from NCHW into NHWC or back"
    return bounded("06_channels_last", "channels last", why, share)


def _compiling(steps, share):
    """Waits for launches: of compiled kernels there are fewer. What fusing saves inside of kernels, no trace shows."""
    why = (
        f"for {_time(share * steps.mean_us)} of a step the GPU waits for a launch; torch.compile launches fewer "
        "kernels, which also read and write less"
    )
    return bounded("08_compile", "compile the model", why, share)


def _keeping(trace, steps, idle):
    """Waits for batches that worker processes load, and for their copies: gone where the data is on the device."""
    names = [trace.names[number] for number in np.unique(trace.operators.name).tolist()]
    if not any("MultiProcessing" in name for name in names if is_loading(name)):
        why = "the training process loads by itself: that is the first thing to change"
        return Advice("10_on_device_data", "keep the data on the GPU", why, 0.0, None)
    copying = _held_up(trace, idle, direction(trace, "h2d")) / max(float(steps.duration.sum()), 1e-9)
    waiting = _waits(idle, "dataloader", steps)
    why = (
        f"although worker processes load, a step waits {_time(waiting * steps.mean_us)} for its batch and "
        f"{_time(copying * steps.mean_us)} for the copy: a small data set fits on the GPU, which can prepare it too"
    )
    return bounded("10_on_device_data", "keep the data on the GPU", why, waiting + copying)


def _synchronising(trace, steps, idle):
    """Waits inside calls that synchronise, and those after them until the GPU has work again."""
    runtime = trace.runtime
    waiting = trace.named(runtime, lambda name: "ynchronize" in name)
    drained = Cover(runtime.start[waiting], runtime.end[waiting] + 1)  # the call returns as the last kernel ends
    found = []
    for each in idle:
        after = drained.holds(each.start)
        inside, launching, other = (
            each.by_gap[CAUSES.index(cause)] for cause in ("synchronisation", "launch", "other")
        )
        found.append(inside.sum() + launching[after].sum() + other[after].sum())
    share = sum(found) / len(found) / max(float(steps.duration.sum()), 1e-9) if found else 0.0
    count = (waiting & Cover(steps.start, steps.end).holds(runtime.start)).sum() / len(steps.names)
    why = (
        f"the CPU waits for the GPU, {count:.0f}x a step (.item(), .cpu(), synchronize), "
        f"and then the GPU for the CPU: {_time(share * steps.mean_us)} without a kernel"
    )
    return bounded("07_no_hidden_syncs", "do not synchronise", why, share)


def _setting_up(trace, steps, share):
    why = (
        f"{_time(share * steps.mean_us)} of a step go into allocating GPU memory, loading code or starting the GPU up: "
        "trace after a warm-up, and see that no step has larger tensors than those before"
    )
    return bounded(None, "warm up first", why, share)


def _communicating(steps, talk):
    share = talk.exposed_us / max(float(steps.duration.sum()), 1e-9) if talk else 0.0
    alone = f"collectives run {_time(share * steps.mean_us)} of a step with nothing beside them"
    why = f"{alone}: larger buckets, or fewer of them (accumulate gradients)"
    return bounded(None, "overlap communication", why, share)


def _idling(steps, share):
    why = f"for {_time(share * steps.mean_us)} of a step neither the GPU nor any operator works: Python, most likely"
    return bounded(
        None, "find the Python between operators", f"{why}; trace with stacks and look there in the Trace view", share
    )


def _time(us):
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.0f} us"
