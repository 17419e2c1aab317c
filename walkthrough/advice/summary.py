"""An analysed trace with its advice, and the object that `explain --json` prints."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from walkthrough.advice.catalogue import Advice
from walkthrough.advice.evidence import Finding
from walkthrough.advice.gains import Combination, advise
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.kernels import unit_name
from walkthrough.trace.memory import CPU


class Summary(Struct, frozen=True):
    """An analysed trace with its advice.

    bottlenecks, advice, findings and verdict are of the typical steps. advice: the bottlenecks worth treating, the
    largest gain first. combined: pieces of advice followed together. findings: [] for a trace without a GPU.
    """

    analysis: Analysis
    bottlenecks: list[Advice]
    advice: list[Advice]
    combined: list[Combination]
    findings: list[Finding]
    verdict: str

    def __getattr__(self, name: str) -> Any:  # names of before, until every caller takes the analysis
        a = object.__getattribute__(self, "analysis")
        if name in (
            "trace",
            "steps",
            "outliers",
            "gpus",
            "tensor_cores",
            "memory",
            "idle",
            "communication",
            "step_bytes",
        ):
            return getattr(a, name)
        if name in ("kernels", "copies"):
            return getattr(a.all_tables, name)
        if name in ("typical", "nature", "kinds", "in_steps", "usual"):
            return {
                "typical": lambda: a.typical.steps,
                "nature": lambda: a.typical.workload,
                "kinds": lambda: a.kinds_us,
                "in_steps": lambda: a.tables,
                "usual": lambda: _Usual(a.typical),
            }[name]()
        raise AttributeError(name)

    @property
    def matrix_units(self) -> str:
        """What the GPUs' matrix units are called: "Tensor Cores", or on AMD "Matrix cores"."""
        return unit_name(self.analysis.trace)

    def as_json(self) -> dict[str, Any]:
        """The object of `explain --json`: plain types only, None where the trace cannot tell. idle: µs per step."""
        analysis = self.analysis
        trace, count = analysis.trace, len(analysis.steps.names)
        on_cpu = bool(analysis.memory) and analysis.memory[0].device == CPU
        devices = [device for device in analysis.memory if (device.device == CPU) == on_cpu]
        return _finite(
            {
                "file": str(trace.file),
                "steps": {
                    "count": len(analysis.steps.names),
                    "names": analysis.steps.names,
                    "mean_us": analysis.steps.mean_us,
                    "breakdown_us": analysis.steps.mean_breakdown_us,
                },
                "gpus": [asdict(gpu) for gpu in analysis.gpus],
                "kernels": {
                    "count": sum(kernel.count for kernel in analysis.all_tables.kernels),
                    "total_us": sum(kernel.us for kernel in analysis.all_tables.kernels),
                },
                "eligible_kernel_share": analysis.tensor_cores.eligible_share,
                "copies": {name: asdict(copies) for name, copies in analysis.all_tables.copies.items()},
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
                "warnings": list(trace.warnings),
                "idle": [
                    {"gpu": gpu.device, "us": gpu.total_us / count, "causes_us": _divided(gpu.causes_us, count)}
                    for gpu in analysis.idle
                ],
                "findings": [finding.as_json() for finding in self.findings],
                "kinds": analysis.kinds_us,
                "outliers": [outlier.as_json() for outlier in analysis.outliers],
                "recording": None if trace.recording is None else msgspec.to_builtins(trace.recording),
            }
        )


class _Usual:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    def __getattr__(self, name: str) -> Any:
        return getattr(self.analysis, {"kinds": "kinds_us", "in_steps": "tables"}.get(name, name))


def summarize(path: str | Path | Chunks, details: bool = False) -> Summary:
    """The `Summary` of a trace: its path, or its `Chunks`. Raises InputError; see `reader.read`."""
    return summary(analyze(path, details))


def summary(analysis: Analysis) -> Summary:
    """The `Summary` of an analysed trace."""
    advised = advise(analysis)
    return Summary(analysis, advised.costs, advised.advice, advised.together, advised.findings, advised.verdict)


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
