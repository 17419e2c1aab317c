"""Everything that is computed from one trace, and the object that `explain --json` prints."""

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from common.trace import advice, bottlenecks, copies, gpus, idle, memory, reader, steps, tensor_cores
from common.trace.columns import Trace
from common.trace.communication import Communication, communication
from common.trace.operators import Nesting


class Kernel(Struct, frozen=True):
    """All kernels of one name: how many, their summed µs, and whether they use Tensor Cores (None: cannot tell)."""

    name: str
    count: int
    us: float
    tensor_cores: bool | None


class Operator(Struct, frozen=True):
    """All operators of one name: how many, and their summed µs on the CPU without those inside them."""

    name: str
    count: int
    us: float


class Summary(Struct, frozen=True):
    """What a trace says; see the classes of the fields.

    kernels, operators: by name, the longest first, over the whole trace; operators are there for traces without a GPU.
    """

    trace: Trace
    steps: steps.Steps
    gpus: list[gpus.Gpu]
    tensor_cores: tensor_cores.TensorCores
    kernels: list[Kernel]
    operators: list[Operator]
    copies: dict[str, copies.Copies]
    step_bytes: float
    memory: list[memory.Memory]
    idle: list[idle.Idle]
    communication: Communication | None
    levers: list[advice.Advice]
    verdict: str

    @property
    def advice(self):
        return advice.ranked(self.levers)

    def as_json(self):
        """The object of `explain --json`: plain types only, None where the trace cannot tell."""
        first = self.memory[0] if self.memory else None
        same = [each for each in self.memory if first and (each.device == memory.CPU) == (first.device == memory.CPU)]
        return _finite(
            {
                "file": str(self.trace.file),
                "steps": {
                    "count": len(self.steps.names),
                    "names": self.steps.names,
                    "mean_us": self.steps.mean_us,
                    "breakdown_us": self.steps.mean_breakdown_us,
                },
                "gpus": [asdict(gpu) for gpu in self.gpus],
                "kernels": {
                    "count": sum(kernel.count for kernel in self.kernels),
                    "total_us": sum(kernel.us for kernel in self.kernels),
                },
                "eligible_kernel_share": self.tensor_cores.eligible_share,
                "copies": {name: asdict(each) for name, each in self.copies.items()},
                "memory": {
                    "peak_allocated_bytes": _largest(each.peak_allocated for each in same),
                    "peak_reserved_bytes": _largest(each.peak_reserved for each in same),
                },
                "advice": [
                    {
                        "step": each.step,
                        "why": f"{each.title}: {each.why}",
                        "share_of_step": each.share_of_step,
                        "predicted_gain": each.predicted_gain,
                    }
                    for each in self.advice
                ],
            }
        )


def summarize(trace):
    """The `Summary` of a trace: its path, or `source.Chunks`. Raises InputError; see `reader.read`."""
    trace = reader.read(trace)
    cut = steps.steps(trace)
    tensor = tensor_cores.tensor_cores(trace)
    begin, end = float(cut.start[0]), float(cut.end[-1])
    found = []
    for number in gpus.gpu_ids(trace):
        kernels = trace.kernels.where(trace.kernels.device == number)
        found.append(
            gpus.Gpu(
                id=number,
                name=gpus.gpu_name(trace, number),
                utilization=gpus.utilization(kernels, begin, end),
                sm_efficiency=gpus.sm_efficiency(kernels, begin, end),
                occupancy_percent=gpus.occupancy_percent(kernels, begin, end),
                tensor_core_share=tensor.share.get(number),
            )
        )
    waits = [idle.idle(trace, cut, gpu.id) for gpu in found]
    talk = communication(trace, cut)
    costs = bottlenecks.levers(trace, cut, found, waits, tensor, talk)
    return Summary(
        trace=trace,
        steps=cut,
        gpus=found,
        tensor_cores=tensor,
        kernels=_kernels(trace),
        operators=[] if len(trace.kernels) else _operators(trace),
        copies=copies.copies(trace),
        step_bytes=copies.step_bytes(trace, cut),
        memory=memory.memory(trace),
        idle=waits,
        communication=talk,
        levers=costs,
        verdict=advice.verdict(trace, cut, costs, tensor),
    )


def _kernels(trace):
    found = _by_name(trace, trace.kernels.name, trace.kernels.duration)
    return [Kernel(name, count, us, tensor_cores.uses_tensor_cores(name)) for name, count, us in found]


def _operators(trace):
    found = trace.operators.where(
        ~trace.named(trace.operators, lambda name: steps.is_step(name) or steps.is_loading(name))
    )
    return [Operator(*each) for each in _by_name(trace, found.name, Nesting(found).own_time())]


def _by_name(trace, name, us):
    """(name, how many, summed µs), the longest first."""
    times, counts = np.bincount(name, weights=us), np.bincount(name)
    found = [
        (trace.names[number], int(counts[number]), float(times[number])) for number in np.flatnonzero(counts).tolist()
    ]
    return sorted(found, key=lambda each: (-each[2], each[0]))


def _largest(values):
    known = [value for value in values if value is not None]
    return max(known, default=None)


def _finite(value):
    """The same with None for numbers that JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
