"""Looks in a trace for each cost that a step of the walkthrough treats: see `advice`."""

from collections.abc import Sequence

from common.trace.advice import Advice
from common.trace.columns import Trace
from common.trace.communication import Communication
from common.trace.gpus import Gpu
from common.trace.idle import Idle
from common.trace.nature import Nature
from common.trace.on_cpu import costs_on_cpu
from common.trace.on_gpu import costs_on_gpu
from common.trace.phases import Phases
from common.trace.steps import Steps
from common.trace.tensor_cores import TensorCores


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
        return costs_on_gpu(trace, steps, phases, gpus, idle, tensor_cores, communication, nature)
    return costs_on_cpu(trace, steps, phases, communication, nature)
