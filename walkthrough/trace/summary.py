"""Everything that is computed from one trace, and the object that `explain --json` prints."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from walkthrough.trace import (
    advice,
    bottlenecks,
    copies,
    gpus,
    idle,
    kinds,
    memory,
    nature,
    reader,
    steps,
    tables,
    tensor_cores,
    typical,
)
from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import Communication, communication
from walkthrough.trace.estimates import Combination, Estimates
from walkthrough.trace.findings import findings
from walkthrough.trace.findings.finding import Finding, Look
from walkthrough.trace.phases import phases
from walkthrough.trace.source import Chunks
from walkthrough.trace.steps import Steps
from walkthrough.trace.typical import Outlier


class OfSteps(Struct, frozen=True):
    """The numbers of some of the steps; the fields are those of `Summary`."""

    idle: list[idle.Idle]
    communication: Communication | None
    kinds: dict[str, float]
    in_steps: tables.Tables
    step_bytes: float


class Summary(Struct, frozen=True):
    """The numbers of one trace; see the classes of the fields.

    kernels, operators, copies: see `Tables`, over the whole trace; in_steps: over its steps. kinds: {kind of kernel: µs
    per step}, see `kinds.kinds_us`. step_bytes: bytes that a mean step copies to the device. outliers: the steps that
    take far longer than the others; nature, bottlenecks, findings and verdict are computed from the steps without
    them, `typical`, and everything else from all, but for `usual`, which has what it is named after, of the typical
    ones. advice: the bottlenecks worth treating, the largest gain first.
    combined: pieces of advice followed together. findings: see `findings`; [] for a trace without a GPU.
    """

    trace: Trace
    steps: Steps
    typical: Steps
    outliers: list[Outlier]
    gpus: list[gpus.Gpu]
    tensor_cores: tensor_cores.TensorCores
    kernels: list[tables.Kernel]
    operators: list[tables.Operator]
    kinds: dict[str, float]
    copies: dict[str, copies.Copies]
    in_steps: tables.Tables
    step_bytes: float
    memory: list[memory.Memory]
    idle: list[idle.Idle]
    communication: Communication | None
    nature: nature.Nature
    bottlenecks: list[advice.Advice]
    advice: list[advice.Advice]
    combined: list[Combination]
    findings: list[Finding]
    verdict: str
    usual: OfSteps

    @property
    def matrix_units(self) -> str:
        """What the GPUs' matrix units are called: "Tensor Cores", or on AMD "Matrix cores"."""
        return tensor_cores.unit_name(self.trace)

    def as_json(self) -> dict[str, Any]:
        """The object of `explain --json`: plain types only, None where the trace cannot tell. idle: µs per step."""
        count = len(self.steps.names)
        on_cpu = bool(self.memory) and self.memory[0].device == memory.CPU
        devices = [device for device in self.memory if (device.device == memory.CPU) == on_cpu]
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
                "copies": {name: asdict(copies) for name, copies in self.copies.items()},
                "memory": {
                    "peak_allocated_bytes": _largest(device.peak_allocated for device in devices),
                    "peak_reserved_bytes": _largest(device.peak_reserved for device in devices),
                },
                "advice": [
                    {
                        "step": item.step,
                        "title": item.title,
                        "why": f"{item.title}: {item.why}",
                        "share_of_step": item.share_of_step,
                        "predicted_gain": item.predicted_gain,
                        "estimated_gain": item.estimated_gain,
                    }
                    for item in self.advice
                ],
                "together": [asdict(combination) for combination in self.combined],
                "verdict": self.verdict,
                "warnings": list(self.trace.warnings),
                "idle": [
                    {"gpu": gpu.device, "us": gpu.total_us / count, "causes_us": _divided(gpu.causes_us, count)}
                    for gpu in self.idle
                ],
                "findings": [finding.as_json() for finding in self.findings],
                "kinds": self.kinds,
                "outliers": [outlier.as_json() for outlier in self.outliers],
                "recording": None if self.trace.recording is None else msgspec.to_builtins(self.trace.recording),
            }
        )


def summarize(path: str | Path | Chunks, details: bool = False) -> Summary:
    """The `Summary` of a trace: its path, or its `source.Chunks`. Raises InputError; see `reader.read`."""
    trace = reader.read(path, details)
    traced_steps = steps.steps(trace)
    tensor = tensor_cores.tensor_cores(trace)
    begin, end = float(traced_steps.start[0]), float(traced_steps.end[-1])
    devices = []
    for number in gpus.gpu_ids(trace):
        kernels = trace.kernels.where(trace.kernels.device == number)
        devices.append(
            gpus.Gpu(
                id=number,
                name=gpus.gpu_name(trace, number),
                utilization=gpus.utilization(kernels, begin, end),
                sm_efficiency=gpus.sm_efficiency(kernels, begin, end),
                occupancy_percent=gpus.occupancy_percent(kernels, begin, end),
                tensor_core_share=tensor.share.get(number),
            )
        )
    waits = [idle.idle(trace, traced_steps, gpu.id) for gpu in devices]
    collectives = communication(trace, traced_steps)
    whole = tables.tables(trace)
    usual, usual_waits, usual_collectives = typical.typical(traced_steps), waits, collectives
    if usual is not traced_steps:
        usual_waits = [idle.idle(trace, usual, gpu.id) for gpu in devices]
        usual_collectives = communication(trace, usual)
    what = nature.nature(trace, usual, usual_waits)
    parts = phases(trace, traced_steps)
    costs = bottlenecks.bottlenecks(trace, usual, parts, devices, usual_waits, tensor, usual_collectives, what)
    odd = typical.outliers(trace, traced_steps, waits)
    of_all = _of_steps(trace, traced_steps, waits, collectives, whole)
    of_usual = of_all if usual is traced_steps else _of_steps(trace, usual, usual_waits, usual_collectives, whole)
    found, combined, worth = [], [], advice.ranked(costs)
    if len(trace.kernels) and not trace.partial and not what.unusable:
        look = Look(trace, usual, parts, usual_waits, usual_collectives, what, odd, traced_steps)
        estimates = Estimates(look, tensor, ~typical.is_outlier(traced_steps))
        costs = estimates.advice(costs)
        found = estimates.findings(findings(look), costs)
        worth, combined = estimates.worth_following(advice.ranked(costs))
    if advice.stalled(usual, usual_waits):
        worth = advice.despite_a_stall(worth)
    return Summary(
        trace=trace,
        steps=traced_steps,
        typical=usual,
        outliers=odd,
        gpus=devices,
        tensor_cores=tensor,
        kernels=whole.kernels,
        operators=whole.operators,
        kinds=of_all.kinds,
        copies=whole.copies,
        in_steps=of_all.in_steps,
        step_bytes=of_all.step_bytes,
        memory=memory.memory(trace),
        idle=waits,
        communication=collectives,
        nature=what,
        bottlenecks=costs,
        advice=worth,
        combined=combined,
        findings=found,
        verdict=advice.verdict(trace, usual, worth, tensor, usual_waits, what, "a typical step" if odd else "the step"),
        usual=of_usual,
    )


def _of_steps(
    trace: Trace,
    steps: Steps,
    waits: list[idle.Idle],
    collectives: Communication | None,
    whole: tables.Tables,
) -> OfSteps:
    return OfSteps(
        idle=waits,
        communication=collectives,
        kinds=kinds.kinds_us(trace, steps) if len(trace.kernels) else {},
        in_steps=tables.tables(trace, steps) if steps.marked else whole,
        step_bytes=copies.step_bytes(trace, steps),
    )


def _divided(times: dict[str, float], count: int) -> dict[str, float]:
    return {name: us / count for name, us in times.items()}


def _largest(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
