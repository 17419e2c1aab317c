"""The traced window of a training: a torch.profiler trace of a few steps."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from common.device import keep_freed_memory
from common.device import page_faults as faults_so_far
from common.loaders import Batch, queued, steps_past_epoch
from walkthrough.results.errors import InputError
from walkthrough.results.result import NO_KERNELS

TRACED_STEPS = 3
# A loader that prepares p batches in the time of a step (p < 1) leaves its queue 1 - p shorter each step: 4 lengths of
# the queue empty it where p is at most 3/4. Where a loader is nearly fast enough, its wait is short anyway.
QUEUE_LENGTHS = 4
# Enough for three traced steps of 128 images of 96 px of the course's model (256 MiB are) and of some that keep more.
SPARE_BYTES = 512 * 2**20
NEW_PAGES = 1000  # per traced step beyond those of a timed one, 4 MB: from here on a run says so


def trace_steps(
    train_one_step: Callable[[], object], device: torch.device, path: Path, warmup: int = 1, **more: Any
) -> None:
    """Train 1 + warmup + 3 steps under torch.profiler, and write a trace of the last three to `path`.

    The profiler is off in the first step; in the warm-up it records and throws away, since its start takes time.
    more: further arguments of `torch.profiler.profile`, such as with_stack=True.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=1, warmup=warmup, active=TRACED_STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
        **more,
    ) as profiler:
        for _ in range(1 + warmup + TRACED_STEPS):
            train_one_step()
            profiler.step()  # the end of a step: the trace marks it, and the schedule counts it


def traced_window(
    batches: Iterator[Batch],
    train_step: Callable[..., object],
    device: torch.device,
    path: Path,
    stacks: bool = False,
    page_faults: list[int] | None = None,
    spare_bytes: int = SPARE_BYTES,
) -> list[dict[str, Any]]:
    """Record three steps as they usually are into `path`, by `trace_steps`; with `stacks` also Python's call stacks.

    While the profiler starts, the loader's workers fill their queue, and a trace would show no wait for it: the warm-up
    takes `QUEUE_LENGTHS` times as many batches as it holds. No epoch begins or ends in the warm-up and in
    the traced steps, or at least in the traced ones, unless it is too short for that: in an epoch's last step a
    `Prefetcher` has no next batch to copy. page_faults: gets the `device.page_faults` of each traced step.
    spare_bytes: see `leave_spare_memory`. Returns the trace's events; raises InputError where the trace could not be
    written whole.
    """
    warmup = max(1, QUEUE_LENGTHS * queued(batches))
    for _ in range(steps_past_epoch(batches, 1 + warmup + TRACED_STEPS + 1, last=TRACED_STEPS + 1)):
        train_step(*next(batches))
    if device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
        leave_spare_memory(spare_bytes)
    faults = []

    def train_one_step() -> None:
        before = faults_so_far()
        train_step(*next(batches))
        faults.append(faults_so_far() - before)

    # Stacks of Python, the modules they belong to, and (verbose) the stacks of operators.
    with_stacks = {"with_stack": True, "experimental_config": _ExperimentalConfig(verbose=True)} if stacks else {}
    trace_steps(train_one_step, device, path, warmup, **with_stacks)
    if page_faults is not None:
        page_faults += faults[-TRACED_STEPS:]
    return read_trace(path)


def leave_spare_memory(size: int = SPARE_BYTES) -> None:
    """On a CPU, before tracing: touch and free so many bytes of memory, which the profiler then keeps its events in.

    Else it keeps them in the blocks that the steps before have freed, and each traced step takes new pages for its
    tensors, which a timed step does not (13,824 per step of 128 images of 96 px): operators that allocate look several
    times as slow as they are. Of no use where memory that is freed is not kept.
    """
    if keep_freed_memory():
        torch.ones(size, dtype=torch.uint8)


def new_pages(traced: Sequence[int], timed: float) -> list[str]:
    """The note that traced steps wait for new memory, as timed steps do not; [] otherwise.

    traced, timed: page faults of each traced step, and per timed step.
    """
    extra = sum(traced) / len(traced) - timed
    if extra < NEW_PAGES:
        return []
    return [
        f"the traced steps touch {extra:,.0f} new pages of memory each that timed steps do not, so the operators that "
        "allocate large tensors look slower in the trace than they are"
    ]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace that was just written. Raises InputError where it is not whole.

    On a full disk the profiler truncates a trace without an error.
    """
    try:
        return json.loads(path.read_bytes())["traceEvents"]
    except (OSError, ValueError) as error:
        raise InputError(f"the trace could not be written whole to {path.parent.parent}: is the disk full?") from error


def kernel_count(events: Sequence[Mapping[str, Any]]) -> int:
    """How many kernels the events of a trace hold."""
    return sum(event.get("cat") == "kernel" for event in events)


def without_kernels(events: Sequence[Mapping[str, Any]], device: torch.device) -> list[str]:
    """The note that a trace of a training on a GPU shows nothing of it; [] otherwise.

    So it is where CUPTI is in use by another program, such as a debugger, or not allowed to record.
    """
    if device.type != "cuda" or kernel_count(events):
        return []
    return [NO_KERNELS]


def cpu_peak_bytes(events: list[dict[str, Any]]) -> int:
    """The profiler's peak on a CPU: the most bytes that torch's CPU allocator had allocated since tracing began.

    events: those of a trace. What was allocated before (weights, momentum) is not in it, nor is what loader workers
    hold. Read from the `[memory]` events, as the profiler plugin's Memory view does, less what an earlier trace of this
    process has counted and has not seen freed: torch goes on from there.
    """
    memory = [event for event in events if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0]
    if not memory:
        return 0
    first = min(memory, key=itemgetter("ts"))["args"]
    before = first["Total Allocated"] - first["Bytes"]
    return max(event["args"]["Total Allocated"] for event in memory) - before
