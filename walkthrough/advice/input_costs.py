"""What the input costs: batches that are waited for, and their copies between the CPU and the GPU.

Worker processes run on the cores that also train, and no trace of the training process shows how much they slow it
down. So without a GPU, what takes work from them, or bytes from the memory that all share, may gain more than the time
that it removes from the step: such a cost has no bound.
"""

import numpy as np
from msgspec import Struct

from walkthrough.advice.evidence import WORTHWHILE, Evidence, bounded, of_step, per_step, step_time
from walkthrough.advice.replay import Change
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import once
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.memory import direction, from_pageable
from walkthrough.trace.operators import innermost_functions, stepping_thread
from walkthrough.trace.reader import Recording
from walkthrough.trace.steps import of_steps

SAVED_BY_UINT8 = 0.75  # of an image's bytes, copied as uint8 instead of float32
SMALLEST_IMAGE = 10_000  # bytes per step: one image of 32 x 32 px is 12 kB in float32, and fewer bytes are no batch
_NO_IMAGES = "no operator of this trace works on images"
# Of its time: a worker that computes for less waits, for a disk or the network, and needs no core of its own; unless it
# waits for one, as the training thread then does, too.
WAITS, CONTENDED = 0.5, 0.1
ASLEEP = 0.5  # of the time that the loop waits for a batch: else the training thread is at work then, and takes it over
STARVED = 0.4  # of the steps' time: the training thread has no core for so long; see the catalogue


def loaded_by_workers(a: Analysis) -> str:
    """That worker processes load already, in words; else ""."""
    return "worker processes load already" if a.phases.workers else ""


def no_work_for_workers(a: Analysis) -> str:
    """The same on a CPU, where a trace without a DataLoader shows nothing to load."""
    more = "" if _workers_wait(a) else "; more of them would take cores from the training"
    return no_loader(a) or (loaded_by_workers(a) + more if a.phases.workers else "")


def dataloader_workers(a: Analysis) -> Evidence:
    """Batches are loaded in the main process."""
    share = a.idle_share("dataloader")
    return _loading(a, f"{_each(a)} waits {step_time(a, share)} for the main process to load its batch", share)


def _each(a: Analysis) -> str:
    return "each step" if a.steps.marked else "the program"


def _loading(a: Analysis, why: str, share: float) -> Evidence:
    """Evidence of waits for a batch; with stacks, the innermost Python functions meanwhile stand out."""
    loading = a.phases.loading
    functions = innermost_functions(a.trace, loading, stepping_thread(a.trace))[:3] if share >= WORTHWHILE else []
    named = "; ".join(f"{name} {us / loading.total:.0%}" for name, us in functions)
    return bounded(
        why,
        share,
        do="more worker processes, or less work for each batch"
        if a.phases.workers
        else "DataLoader(num_workers=4, persistent_workers=True): worker processes prepare batches meanwhile",
        what="Python while the GPU is idle" if named else "",
        detail=f"{why}; of that the innermost functions: {named}",
        when=loading,
    )


def dataloader_workers_on_cpu(a: Analysis) -> Evidence:
    """The same without a GPU: workers would take cores from the training."""
    waiting = a.share_within(a.phases.loading)
    return Evidence(
        f"{_each(a)} waits {step_time(a, waiting)} for the training process to load its batch",
        waiting,
        do=f"{_needs_cores(a)}: measure with `walkthrough time` this command versus the same with num_workers=2, or "
        "do less for each batch",
    )


def more_workers(a: Analysis) -> Evidence | None:
    """Worker processes load, too slowly."""
    if not a.phases.workers or _lacks_cores(a):
        return None
    share = a.idle_share("dataloader")
    if _workers_wait(a):
        return _more_than_cores(a, share)
    return _loading(a, f"{_each(a)} waits {step_time(a, share)} for its batch, although worker processes load", share)


def _workers_wait(a: Analysis) -> bool:
    """Whether worker processes are known to wait most of their time, for other than a core."""
    recording = a.trace.recording
    if recording is None or recording.workers_cpu is None:
        return False
    return recording.workers_cpu < WAITS and (recording.cpu_waiting or 0.0) < CONTENDED


def _more_than_cores(a: Analysis, share: float) -> Evidence | None:
    """Evidence for more workers than cores, where those that there are wait, and the training for them."""
    recording = a.trace.recording or Recording()
    waiting = a.share_within(a.phases.loading)
    if recording.asleep is not None and recording.asleep < ASLEEP * waiting:
        return None
    load = counted(recording.workers, "worker process loads, and computes", "worker processes load, and compute")
    return bounded(
        f"{_each(a)} waits {step_time(a, share)} for its batch, although {load} for {recording.workers_cpu or 0.0:.0%} "
        "of the time",
        share,
        do="they wait for a disk, the network or another process, not for a core: use more of them than there are "
        "cores, twice as many first",
    )


def more_workers_on_cpu(a: Analysis) -> Evidence | None:
    """The same without a GPU, where cores are left."""
    recording = a.trace.recording
    if not len(a.phases.loading.start) or not a.phases.workers or not recording:
        return None
    waiting = a.share_within(a.phases.loading)
    if recording.workers and _workers_wait(a):
        return _more_than_cores(a, waiting)
    if not recording.workers or not recording.cores or not recording.has_cores_left:
        return None
    load = counted(recording.workers, "worker process loads", "worker processes load")
    return Evidence(
        f"{_each(a)} waits {step_time(a, waiting)} for its batch, although {load}",
        waiting,
        do=f"{_needs_cores(a)} with more: measure with `walkthrough time` this command versus the same with more of "
        "them",
    )


def less_per_batch(a: Analysis) -> Evidence | None:
    """Worker processes load, too slowly, and no core is left for more of them."""
    recording = a.trace.recording
    if not a.phases.workers or not recording or not _lacks_cores(a):
        return None
    share = a.idle_share("dataloader")
    return Evidence(
        f"{_each(a)} waits {step_time(a, share)} for its batch; {recording.workers} worker processes load on "
        f"{recording.cores} cores",
        share,
        do="more workers would share those cores: prepare the data once, before training, or on the GPU",
    )


def less_per_batch_on_cpu(a: Analysis) -> Evidence | None:
    """Worker processes of any program; what they do is not known."""
    if not a.phases.workers or not a.trace.recording or _workers_wait(a):
        return None
    why, _ = _slowed_by_workers(a)
    do = "do what you can once, before training, or for a whole batch, after loading"
    return Evidence(why, a.share_within(a.phases.loading), do=do)


def spinning_threads(a: Analysis) -> Evidence | None:
    """Threads of OpenMP that wait at full speed for the next operator, on cores that worker processes need."""
    recording = a.trace.recording
    if recording is None or not recording.workers or not recording.cores or (recording.threads or 1) < 2:
        return None
    threads, waiting = (recording.threads or 1) * recording.processes, recording.cpu_waiting or 0.0
    sleeps = recording.openmp.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
    if sleeps or recording.openmp.keys() & {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"} or not STARVED <= waiting <= 1:
        return None
    if threads + recording.workers * recording.processes <= recording.cores:
        return None
    processes = counted(recording.workers, "worker process", "worker processes")
    return Evidence(
        f"for {waiting:.0%} of the steps' time before tracing, the training thread could run and had no core: torch's "
        f"{recording.threads} threads and {processes} share {recording.cores}",
        waiting,
        do="threads of OpenMP wait for one another at full speed, for milliseconds: measure with `walkthrough time` "
        "this command versus the same with torch.set_num_threads(1), and after `env OMP_WAIT_POLICY=PASSIVE`",
    )


def persistent_workers(a: Analysis) -> Evidence | None:
    """Worker processes that start anew in each epoch: its share is of an epoch's time, as the program itself saw it."""
    recording = a.trace.recording
    if recording is None or not recording.untraced_us or not recording.steps_per_epoch:
        return None
    if not any(loader.num_workers and not loader.persistent_workers for loader in recording.loaders):
        return None
    return bounded(
        f"the first of an epoch's {recording.epoch_steps:.0f} steps takes {rounded_time(recording.epoch_begin_us)} "
        f"longer, {recording.epoch_share:.0%} of the time: workers start anew",
        recording.epoch_share,
        do="persistent_workers=True keeps them; where little is done for each batch, num_workers=0 needs none",
    )


def without_loading(a: Analysis) -> Change:
    """No step waits for its batch."""
    return Change(cpu=[(a.phases.loading, 0.0)])


def _lacks_cores(a: Analysis) -> bool:
    return a.trace.recording is not None and not a.trace.recording.has_cores_left and not _workers_wait(a)


def _needs_cores(a: Analysis) -> str:
    cores = a.trace.recording.cores if a.trace.recording else None
    known = f" (this process may use {counted(cores, 'core', 'cores')})" if cores else ""
    return f"Workers need cores, which the training uses too{known}, so a step may even take longer"


def nothing_to_enlarge(a: Analysis) -> str:
    """Why batches of small images would change nothing, in words; "" where they might."""
    if not len(a.phases.loading.start) or not a.phases.workers:  # workers are the first thing to change
        return no_loader(a)
    if a.phases.resizes:
        return "batches are resized after loading already"
    return "" if a.workload.images else _NO_IMAGES


def no_loader(a: Analysis) -> str:
    """That the trace has no DataLoader, in words; else ""."""
    return "" if len(a.phases.loading.start) else "no DataLoader in this trace"


def small_images(a: Analysis) -> Evidence:
    """Images that worker processes may enlarge: a bound, but no advice, since no trace shows what they do."""
    found = data_on_device(a)
    return found if found is _LOADS_ITSELF else Evidence(found.why, gain=found.gain)


def data_on_device(a: Analysis) -> Evidence:
    """Batches that are loaded and copied although the data may fit on the GPU."""
    if not a.phases.workers:
        return _LOADS_ITSELF
    waiting, copying = a.idle_share("dataloader"), _copied_batches(a).share
    return bounded(
        f"a step waits {step_time(a, waiting)} for its batch, although worker processes load, and "
        f"{step_time(a, copying)} for its copy",
        waiting + copying,
        do="a small data set fits on the GPU, which can prepare it too",
    )


def small_images_on_cpu(a: Analysis) -> Evidence:
    """Images that worker processes may enlarge one by one: no trace shows what they do."""
    if not a.phases.workers:
        return _LOADS_ITSELF
    return Evidence("whether worker processes enlarge images, a trace of the training process does not show")


def data_in_memory(a: Analysis) -> Evidence | None:
    """Without a GPU: samples that worker processes load one by one although the data may fit in memory."""
    if not a.phases.workers:
        return _LOADS_ITSELF
    if a.trace.recording:
        return None
    why, concerned = _slowed_by_workers(a)
    return Evidence(why, concerned, do="small data fits in memory, from where a batch is picked at once")


_LOADS_ITSELF = Evidence("the main process loads by itself: that is the first thing to change")


def _slowed_by_workers(a: Analysis) -> tuple[str, float]:
    """Without a GPU: how long a step waits, and the share of it that workers make longer or hold up."""
    waiting = a.share_within(a.phases.loading)
    busy = 1 - a.share_within(a.between_operators)
    why = f"a step waits {step_time(a, waiting)} for its batch, and the workers take cores from the training"
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
    what = f"{batch / 1e6:.1f} MB" if batch >= 1e5 else f"{batch / 1e3:.1f} kB"
    if not batch:
        what = counted(inside.sum() / a.step_count, "copy", "copies")
    share = blocked_share(a, "h2d")
    crossing = f"{what} {per_step(a)} to the GPU, which computes nothing for {step_time(a, share)} meanwhile"
    pageable = weight[inside & from_pageable(a.trace)].sum() > weight[inside].sum() / 2
    return _Batches(what, crossing, share, batch, bool(pageable))


def blocked_share(a: Analysis, name: str) -> float:
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


def pageable_to_gpu(a: Analysis) -> np.ndarray:
    """A mask over the copies: those from pageable memory to the GPU."""
    return direction(a.trace, "h2d") & from_pageable(a.trace)


def copied_as_uint8(a: Analysis) -> str:
    """Why images cross as bytes already, or none do, in words; else ""."""
    batches = _copied_batches(a)
    if a.phases.normalises:
        return "batches are normalised on the GPU, so they cross as uint8"
    if not a.workload.images or 0 < batches.bytes < SMALLEST_IMAGE:
        return f"{batches.what} {per_step(a)} to the GPU: no images"
    return ""


def uint8_images(a: Analysis) -> Evidence:
    """Images that are copied as float32."""
    batches = _copied_batches(a)
    do = "send images as uint8, a quarter of the bytes, and normalise them on the GPU"
    return bounded(batches.crossing, batches.share, stays=1 - SAVED_BY_UINT8, do=do)


def converted_in_batches(a: Analysis) -> str:
    """On a CPU: why no image is converted by itself, in words; else ""."""
    if not a.workload.images:
        return _NO_IMAGES
    if a.phases.normalises or not len(a.phases.loading.start):
        return "batches are converted after loading, not image by image"
    if not a.phases.workers and not a.phases.converts:
        return "the DataLoader scales no images, so that nothing is left to convert later"
    return ""


def uint8_images_on_cpu(a: Analysis) -> Evidence:
    """Images that the DataLoader converts to float32 one by one."""
    if a.phases.workers:
        return Evidence("whether worker processes convert images, a trace of the training process does not show")
    converting = a.share_within(a.phases.converting)
    return Evidence(
        f"{step_time(a, converting)} {of_step(a)} convert, normalise and stack images one by one, in float32",
        converting,
        do="load a batch as uint8, a quarter of the bytes, and convert it at once",
    )


def pinned_already(a: Analysis) -> str:
    """That no kernel waits for a batch from pageable memory, in words; else ""."""
    return no_kernels(a) or "no batch is copied from pageable memory" * (not _copied_batches(a).pageable)


def pinned_memory(a: Analysis) -> Evidence:
    """Batches that are copied from pageable memory: the CPU waits for each copy."""
    batches, mask = _copied_batches(a), pageable_to_gpu(a)
    return bounded(
        f"{batches.crossing}, from pageable memory",
        batches.share,
        do="pin_memory=True and .to(device, non_blocking=True); create small tensors on the device",
        what="copies that the CPU waits for" if batches.share >= WORTHWHILE else "",
        detail=f"{copies_text(a, mask)} from pageable memory, while no kernel runs",
        when=a.trace.copies.cover(mask) | a.trace.runtime.cover(calls_of_copies(a, mask)),
    )


def copies_text(a: Analysis, copies: np.ndarray) -> str:
    """How many copies of a mask there are, and their bytes: "2 copies per step, 1.00 MB"."""
    copies = copies & of_steps(a.trace, a.steps, a.trace.copies)
    size = np.nan_to_num(a.trace.copies.bytes)[copies].sum() / a.step_count
    return f"{counted(copies.sum() / a.step_count, 'copy', 'copies')} {per_step(a)}, {size / 1e6:.2f} MB"


def no_kernels(a: Analysis) -> str:
    """That no kernel runs which could wait for a copy, in words; else ""."""
    return "" if len(a.trace.kernels) else "no kernel runs that could wait for a copy"


def prefetch_stream(a: Analysis) -> Evidence:
    """Batches that are copied while the GPU waits for them."""
    batches = _copied_batches(a)
    if batches.pageable:
        return Evidence("copies from pageable memory cannot overlap: that is the first thing to change")
    do = "copy the next batch on a stream of its own, while the GPU computes"
    return bounded(f"{batches.crossing}, though not from pageable memory", batches.share, do=do)


def calls_of_copies(a: Analysis, copies: np.ndarray) -> np.ndarray:
    """A mask over the runtime's calls: those that start the `copies` of a mask."""
    calls = np.zeros(len(a.trace.runtime), bool)
    call = a.trace.copies.call[copies]
    calls[call[call >= 0]] = True
    return calls


def without_copies(a: Analysis, name: str) -> Change:
    """Nothing is copied in that direction."""
    mask = direction(a.trace, name)
    return Change(copies=np.where(mask, 0.0, 1.0), returns=calls_of_copies(a, mask))


def copied_early(a: Analysis) -> Change:
    """Batches are copied during the step before: no kernel waits, but no step is faster than its copies."""
    steps, copies = a.whole.steps, a.trace.copies.cover(direction(a.trace, "h2d"))
    return without_copies(a, "h2d") | Change(at_least=copies.within(steps.start, steps.end))
