"""Looks in a trace for each cost that a step of the walkthrough treats: see `advice`."""

from collections.abc import Sequence

from walkthrough.advice.advice import Advice, bounded
from walkthrough.advice.on_cpu import costs_on_cpu
from walkthrough.advice.on_gpu import costs_on_gpu
from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import Communication
from walkthrough.trace.idle import Idle
from walkthrough.trace.kernels import Gpu, TensorCores
from walkthrough.trace.operators import Phases
from walkthrough.trace.steps import Steps
from walkthrough.trace.units import time_text
from walkthrough.trace.workload import Nature


def bottlenecks(
    trace: Trace,
    steps: Steps,
    phases: Phases,
    gpus: Sequence[Gpu],
    idle: Sequence[Idle],
    tensor_cores: TensorCores,
    communication: Communication | None,
    nature: Nature,
) -> list[Advice]:
    """An `Advice` for every cost that is looked for; its share is 0 where the trace does not show the cost.

    [] for a partial trace, which proves nothing, and for one of a start-up or of a graph's capture, in which no step of
    a running program is to be seen.
    """
    if trace.partial or not nature.has_steps:
        return []
    if len(trace.kernels):
        costs = costs_on_gpu(trace, steps, phases, gpus, idle, tensor_cores, communication, nature)
    else:
        costs = costs_on_cpu(trace, steps, phases, communication, nature)
    return costs + _starting_workers(trace)


def _starting_workers(trace: Trace) -> list[Advice]:
    """Worker processes that start anew in each epoch: its share is of an epoch's time, as the program itself saw it."""
    recording = trace.recording
    if recording is None or not recording.untraced_us or not recording.steps_per_epoch:
        return []
    if not any(loader.num_workers and not loader.persistent_workers for loader in recording.loaders):
        return []
    longer = recording.epoch_begin_us
    share = longer / (longer + recording.steps_per_epoch * recording.untraced_us)
    why = (
        f"an epoch has {recording.steps_per_epoch} steps, and its first takes {time_text(longer)} longer than another, "
        f"{share:.0%} of the epoch: the worker processes start anew. persistent_workers=True keeps them; where little "
        "is done for each batch, num_workers=0 needs none"
    )
    return [bounded(None, "keep the worker processes", why, share)]
