"""What the input costs: batches that are waited for, and their copies between the CPU and the GPU.

Worker processes run on the cores that also train, and no trace of the training process shows how much they slow it
down. So without a GPU, what takes work from them, or bytes from the memory that all share, may gain more than the time
that it removes from the step: such a cost has no bound.
"""

import numpy as np
from msgspec import Struct

from walkthrough.advice.evidence import WORTHWHILE, Evidence, Finding, bounded, no_effect, once, step_time, worthwhile
from walkthrough.advice.replay import Change
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import distinct
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import innermost_functions, stepping_thread
from walkthrough.trace.steps import of_steps

SAVED_BY_UINT8 = 0.75  # of an image's bytes, copied as uint8 instead of float32
SMALLEST_IMAGE = 10_000  # bytes per step: one image of 32 x 32 px is 12 kB in float32, and fewer bytes are no batch
_NO_IMAGES = "no operator of this trace works on images"
_NO_LOADER = "no DataLoader in this trace"
_CORES = "Workers need cores, which the training uses too"
_FIRST = "loads by itself: that is the first thing to change"


def dataloader_workers(a: Analysis) -> Evidence:
    """Batches are loaded in the main process."""
    if a.phases.workers:
        return no_effect("worker processes load already")
    share = a.idle_share("dataloader")
    wait = f"each step waits {step_time(a, share)} for the DataLoader"
    return bounded(f"{wait}, which does its work in the main process", share)


def dataloader_workers_on_cpu(a: Analysis) -> Evidence:
    """The same without a GPU: workers would take cores from the training."""
    if not len(a.phases.loading.start):
        return no_effect(_NO_LOADER)
    if a.phases.workers:
        return no_effect("worker processes load already; more of them would take cores from the training")
    waiting = a.share_within(a.phases.loading)
    functions = innermost_functions(a.trace, a.phases.loading, stepping_thread(a.trace))[:3]
    total = max(a.phases.loading.total, 1e-9)
    named = f": {'; '.join(f'{name} {us / total:.0%} of that' for name, us in functions)}" if functions else ""
    why = (
        f"each step waits {step_time(a, waiting)} for the DataLoader, which does its work in the training "
        f"process. {_CORES}{_of_cores(a)}, so a step may even take longer. Measure it with walkthrough time: "
        f"this command versus the same with num_workers=2. Or do less for each batch{named}"
    )
    return Evidence(why, waiting)


def more_workers(a: Analysis) -> Evidence | None:
    """Worker processes load, too slowly."""
    if not a.phases.workers or _lacks_cores(a):
        return None
    share = a.idle_share("dataloader")
    wait = f"each step still waits {step_time(a, share)} for its batch"
    return bounded(f"although worker processes load, {wait}: more workers, or less to do", share)


def more_workers_on_cpu(a: Analysis) -> Evidence | None:
    """The same without a GPU, where cores are left."""
    recording = a.trace.recording
    if not len(a.phases.loading.start) or not a.phases.workers or not recording:
        return None
    if not recording.workers or not recording.cores or not recording.has_cores_left:
        return None
    waiting = a.share_within(a.phases.loading)
    why = (
        f"although {recording.workers} worker process{'es load' if recording.workers > 1 else ' loads'}, each step "
        f"waits {step_time(a, waiting)} for its batch. {_CORES}{_of_cores(a)}, so a step may even take longer with "
        "more. Measure it with walkthrough time: this command versus the same with more of them"
    )
    return Evidence(why, waiting)


def less_per_batch(a: Analysis) -> Evidence | None:
    """Worker processes load, too slowly, and no core is left for more of them."""
    recording = a.trace.recording
    if not a.phases.workers or not recording or not _lacks_cores(a):
        return None
    share = a.idle_share("dataloader")
    why = (
        f"each step waits {step_time(a, share)} for its batch, although {recording.workers} worker processes load, and "
        f"this process may use {recording.cores} cores: more of them would share those. Prepare the data once, before "
        "training, or on the GPU"
    )
    return Evidence(why, share)


def less_per_batch_on_cpu(a: Analysis) -> Evidence | None:
    """Worker processes of any program; what they do is not known."""
    if not a.phases.workers or not a.trace.recording:
        return None
    less = "Do what can be done once before training, and what can be done for a batch at once after loading"
    return Evidence(f"{_slowed_by_workers(a)[0]}. {less}", a.share_within(a.phases.loading))


def persistent_workers(a: Analysis) -> Evidence | None:
    """Worker processes that start anew in each epoch: its share is of an epoch's time, as the program itself saw it."""
    recording = a.trace.recording
    if recording is None or not recording.untraced_us or not recording.steps_per_epoch:
        return None
    if not any(loader.num_workers and not loader.persistent_workers for loader in recording.loaders):
        return None
    longer = recording.epoch_begin_us
    share = longer / (longer + recording.steps_per_epoch * recording.untraced_us)
    why = (
        f"an epoch has {recording.steps_per_epoch} steps, and its first takes {rounded_time(longer)} longer than "
        f"another, {share:.0%} of the epoch: the worker processes start anew. persistent_workers=True keeps them; "
        "where little is done for each batch, num_workers=0 needs none"
    )
    return bounded(why, share)


def without_loading(a: Analysis) -> Change:
    """No step waits for its batch."""
    return Change(cpu=[(a.phases.loading, 0.0)])


def _lacks_cores(a: Analysis) -> bool:
    return a.trace.recording is not None and not a.trace.recording.has_cores_left


def _of_cores(a: Analysis) -> str:
    cores = a.trace.recording.cores if a.trace.recording else None
    return f" (this process may use {cores} core{'s' * (cores > 1)})" if cores else ""


def small_images(a: Analysis) -> Evidence:
    """Images that are enlarged on the CPU."""
    if too_early := _loads_otherwise(a, "main"):
        return too_early
    if a.phases.resizes or not a.workload.images:
        return no_effect("batches are resized on the GPU already" if a.phases.resizes else _NO_IMAGES)
    why, share = _loaded_and_copied(a)
    return bounded(
        f"{why}: images that are enlarged can cross as they are stored, so that only a part of both remains", share
    )


def data_on_device(a: Analysis) -> Evidence:
    """Batches that are loaded and copied although the data may fit on the GPU."""
    if too_early := _loads_otherwise(a, "main"):
        return too_early
    why, share = _loaded_and_copied(a)
    return bounded(f"{why}: a small data set fits on the GPU, which can prepare it too", share)


def small_images_on_cpu(a: Analysis) -> Evidence:
    """Images that worker processes enlarge one by one."""
    if too_early := _loads_otherwise(a, "training"):
        return too_early
    if a.trace.recording:
        return no_effect("what the workers do is not known")
    if a.phases.resizes or not a.workload.images:
        return no_effect("batches are resized after loading already" if a.phases.resizes else _NO_IMAGES)
    why, concerned = _slowed_by_workers(a)
    return Evidence(
        f"{why}. Images that are enlarged could be loaded as they are stored, and enlarged a batch at a time", concerned
    )


def data_in_memory(a: Analysis) -> Evidence | None:
    """Without a GPU: samples that worker processes load one by one although the data may fit in memory."""
    if too_early := _loads_otherwise(a, "training"):
        return too_early
    if a.trace.recording:
        return None
    why, concerned = _slowed_by_workers(a)
    return Evidence(f"{why}. Small data fits in memory, from where a batch is picked at once", concerned)


def _loads_otherwise(a: Analysis, process: str) -> Evidence | None:
    """Why it is not worker processes that load."""
    if not len(a.phases.loading.start):
        return no_effect(_NO_LOADER)
    return None if a.phases.workers else Evidence(f"the {process} process {_FIRST}")


def _loaded_and_copied(a: Analysis) -> tuple[str, float]:
    waiting, copying = a.idle_share("dataloader"), _copied_batches(a).share
    why = f"although worker processes load, a step waits {step_time(a, waiting)} for its batch and "
    return f"{why}{step_time(a, copying)} for the copy", waiting + copying


def _slowed_by_workers(a: Analysis) -> tuple[str, float]:
    """Without a GPU: how long a step waits, and the share of it that workers make longer or hold up."""
    waiting = a.share_within(a.phases.loading)
    busy = 1 - a.share_within(a.between_operators)
    why = (
        f"although worker processes load, a step waits {step_time(a, waiting)} for its batch, and they take cores "
        "from the training; how much that slows it down, its trace does not show"
    )
    return why, busy if waiting >= WORTHWHILE else waiting


class _Batches(Struct, frozen=True):
    """What a mean step copies to the GPU. what: in words. crossing: the same, with the time in which the GPU computes
    nothing meanwhile, `share` of the steps'. bytes: 0.0 where not recorded. pageable: whether most of it is."""

    what: str
    crossing: str
    share: float
    bytes: float
    pageable: bool


@once
def _copied_batches(a: Analysis) -> _Batches:
    trace, copies, batch = a.trace, a.trace.copies, a.step_bytes
    inside = direction(trace, "h2d") & of_steps(trace, a.steps, copies)
    weight = np.nan_to_num(copies.bytes) if batch else np.ones(len(copies))  # of unknown sizes, every copy counts alike
    what = f"{batch / 1e6:.1f} MB per step cross" if batch >= 1e5 else f"{batch / 1e3:.1f} kB per step cross"
    if not batch:
        what = counted(inside.sum() / a.step_count, "copy per step crosses", "copies per step cross")
    share = _blocked_share(a, "h2d")
    crossing = f"{what} to the GPU, which computes nothing for {step_time(a, share)} meanwhile"
    pageable = weight[inside & _from_pageable(a)].sum() > weight[inside].sum() / 2
    return _Batches(what, crossing, share, batch, bool(pageable))


def _blocked_share(a: Analysis, name: str) -> float:
    """Of the steps' time, in which a GPU, on average, runs no kernel during copies of that direction or their calls.

    Not during such a call where work is queued: then the GPU does not wait for the call.
    """
    copies, runtime, selected = a.trace.copies, a.trace.runtime, direction(a.trace, name)
    blocked_us = []
    for gpu in a.idle:
        mask = selected & (copies.device == gpu.device)
        calling = copies.call[mask & (copies.call >= 0)]
        copying = copies.cover(mask) | gpu.pending.gaps(runtime.start[calling], runtime.end[calling])
        waiting = Cover(gpu.start, gpu.end)
        blocked_us.append(copying.total + waiting.total - (copying | waiting).total)  # what both cover
    return (mean_of_known(blocked_us) or 0.0) / a.total_us


def _from_pageable(a: Analysis) -> np.ndarray:
    """A mask over the copies: from pageable memory, or to it."""
    return a.trace.named(a.trace.copies, lambda name: "Pageable" in name)


def uint8_images(a: Analysis) -> Evidence:
    """Images that are copied as float32."""
    batches = _copied_batches(a)
    if a.phases.normalises:
        return no_effect("batches are normalised on the GPU, so they cross as uint8")
    if not a.workload.images or 0 < batches.bytes < SMALLEST_IMAGE:
        return no_effect(f"{batches.what} to the GPU: no images")
    why = f"{batches.crossing}; images sent as uint8 instead of float32 are a quarter of that"
    return bounded(why, batches.share, stays=1 - SAVED_BY_UINT8)


def uint8_images_on_cpu(a: Analysis) -> Evidence:
    """Images that the DataLoader converts to float32 one by one."""
    phases = a.phases
    if not a.workload.images:
        return no_effect(_NO_IMAGES)
    if phases.normalises or not len(phases.loading.start):
        return no_effect("batches are converted after loading, not image by image")
    if phases.workers:
        return Evidence("whether worker processes convert images, a trace of the training process does not show")
    if not phases.converts:
        return no_effect("the DataLoader scales no images, so that nothing is left to convert later")
    converting = a.share_within(phases.converting)
    why = (
        f"a step waits {step_time(a, a.share_within(phases.loading))} for the DataLoader; {step_time(a, converting)} "
        "of it convert, normalise and stack images one by one, in float32. A batch of uint8 is a quarter of the bytes, "
        "and converted at once; what fewer bytes save in other operators, no trace shows"
    )
    return Evidence(why, converting)


def pinned_memory(a: Analysis) -> Evidence:
    """Batches that are copied from pageable memory."""
    batches = _copied_batches(a)
    if not batches.pageable:
        return no_effect("no batch is copied from pageable memory")
    return bounded(f"{batches.crossing}, from pageable memory", batches.share)


def prefetch_stream(a: Analysis) -> Evidence:
    """Batches that are copied while the GPU waits for them."""
    batches = _copied_batches(a)
    if batches.pageable:
        return Evidence("copies from pageable memory cannot overlap: that is the first thing to change")
    return bounded(f"{batches.crossing}, though not from pageable memory", batches.share)


def results_on_device(a: Analysis) -> Evidence:
    """Results that are copied back while the GPU waits."""
    share = _blocked_share(a, "d2h")
    why = f"copies back to the CPU (.item(), .cpu(), print) hold the GPU up for {step_time(a, share)}"
    return bounded(why, share)


def blocking_copies(a: Analysis) -> Finding | None:
    """Copies that hold the CPU up, and for which no kernel runs meanwhile."""
    trace = a.trace
    copies, runtime = trace.copies, trace.runtime
    if not len(copies) or not a.idle:
        return None
    pageable = _from_pageable(a)
    synchronous = trace.named(runtime, lambda name: name in ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream"))
    blocking = (pageable | np.append(synchronous, False)[copies.call]) & (copies.call >= 0)
    calls = distinct(copies.call[blocking])
    holding = Cover(runtime.start[calls], runtime.end[calls]) | copies.cover(blocking)
    held = [gpu.pending.gaps(holding.start, holding.end).within(gpu.start, gpu.end).sum() for gpu in a.idle]
    us = float(np.mean(held)) / a.step_count  # where work is pending, no call holds the GPU up
    if not worthwhile(a, us):
        return None
    blocking &= of_steps(trace, a.steps, copies)
    count = len(distinct(copies.call[blocking])) / a.step_count
    size = np.nan_to_num(copies.bytes)[blocking].sum() / a.step_count
    return Finding(
        "blocking_copies",
        "copies that the CPU waits for",
        f"{count:.0f} per step, {size / 1e6:.2f} MB, from or to pageable memory or by a synchronous call, while no "
        "kernel runs",
        us,
        "pin_memory=True and .to(device, non_blocking=True); create small tensors on the device",
        advice="pinned_memory" if (pageable & direction(trace, "h2d")).any() else None,
        when=holding,
    )


def calls_of_copies(a: Analysis, copies: np.ndarray) -> np.ndarray:
    """A mask over the runtime's calls: those that start the `copies` of a mask."""
    calls = np.zeros(len(a.trace.runtime), bool)
    call = a.trace.copies.call[copies]
    calls[call[call >= 0]] = True
    return calls


def quarter_of_the_bytes(a: Analysis) -> Change:
    """Batches cross as uint8."""
    return Change(copies=np.where(direction(a.trace, "h2d"), 0.25, 1.0))


def pinned(a: Analysis) -> Change:
    """The copy takes as long, but nobody waits for it but the kernels."""
    return Change(returns=calls_of_copies(a, direction(a.trace, "h2d") & _from_pageable(a)))


def without_copies(a: Analysis, name: str) -> Change:
    """Nothing is copied in that direction."""
    mask = direction(a.trace, name)
    return Change(copies=np.where(mask, 0.0, 1.0), returns=calls_of_copies(a, mask))


def copied_early(a: Analysis) -> Change:
    """Batches are copied beside the step before: no kernel waits, but no step is faster than its copies."""
    steps, copies = a.whole.steps, a.trace.copies.cover(direction(a.trace, "h2d"))
    return without_copies(a, "h2d") | Change(at_least=copies.within(steps.start, steps.end))
