"""ONE dictionary of a trace: what `explain`, `trace`, `--json`, `--html`, notebooks and the tab show."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict

from walkthrough.advice import verdict
from walkthrough.advice.catalogue import Advice, Finding
from walkthrough.advice.gains import advise, longest_gap
from walkthrough.advice.wait_costs import REMEDIES, doing, long_steps, ways_to_communicate_less
from walkthrough.terminal import micro_sign
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.communication import sequences
from walkthrough.trace.idle import Idle
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import KINDS, short_name
from walkthrough.trace.kernels import unit_name
from walkthrough.trace.memory import CPU, Copies, Memory, direction, thinned
from walkthrough.trace.operators import Operator, stepping_thread
from walkthrough.trace.outliers import Outlier
from walkthrough.trace.steps import is_mark

REPORT_WIDTH, PAGE_WIDTH = 56, 100  # letters of a kernel's short name: in a report, in its tables
TOP_NAMES, ALL_NAMES = 8, 500  # rows of kernels and operators: of a report, of its tables
TOP_ALLOCATIONS = 12
MAX_POINTS = 2000  # of a memory curve: more than a screen has columns
MAX_STEPS = 1000  # whose times are sent one by one
BINS = 400  # stretches that a step is divided into: about two pixels each
LONG_WAIT = 100.0  # µs: a call that takes longer waits for the GPU
# Keys of texts with times.
SENTENCES = ("why", "do", "recorded", "text", "warnings", "verdict", "bound", "why_idle", "notes")


def report(analysis: Analysis) -> dict[str, Any]:
    """What is known of a trace, in plain types: times in µs, sizes in bytes, shares 0..1; None where it cannot tell.

    Of all steps: "steps" (but for "typical_us"), "gpus", "kernels", "copies", "memory", "kinds", as TensorBoard's
    profiler plugin defines them; kernels, copies and memory outside of the steps too. Of one typical step: "typical",
    "idle", "advice", "findings"; "per" says so in words; but gains are of the program, by the weight that "long_steps"
    leave to typical ones. `tables` has more rows.
    """
    a, trace, steps, recording = analysis, analysis.trace, analysis.steps, analysis.trace.recording
    advised, long = advise(a), long_steps(a)
    kernels = a.all_tables.kernels
    return _finite(
        {
            "file": str(trace.file),
            "begin_ts": trace.origin + float(steps.cpu_start[0]),
            "warnings": list(filter(None, [*trace.warnings, verdict.busy_machine(a)])),
            "partial": trace.partial,
            "sampled": a.typical.workload.recorded < 1,
            "recorded": verdict.recorded(a),
            "recording": None if recording is None else to_builtins(recording),
            "recording_summary": verdict.traced(a),
            "long_steps": asdict(long) | {"reasons": list(long.reasons), "weight": long.weight},
            "samples_per_step": recording.samples_per_step if recording else None,
            "rank": trace.rank,
            "device": verdict.device(a),
            "has_gpu": bool(a.gpus or trace.properties or a.typical.workload.is_blind),
            "per": f"per {'typical ' * bool(a.outliers)}step" if steps.marked else "in this trace",
            "of_steps": verdict.of_steps(a),
            "of_which_steps": verdict.of_which_steps(a),
            "steps": {
                "names": steps.names,
                "count": len(steps.names),
                "marked": steps.marked,
                "marked_by": steps.marked_by,
                "stacks": a.typical.workload.stacks,
                "whole": steps.whole,
                "mean_us": steps.mean_us,
                "typical_us": a.typical.steps.mean_us,
                "median_us": steps.median_us,
                "breakdown_us": steps.mean_breakdown_us,
                "outliers": [_outlier(outlier) for outlier in a.outliers],
            },
            "gpus": [asdict(gpu) | {"unsure": a.tensor_cores.unknown.get(gpu.id, 0.0)} for gpu in a.gpus],
            "matrix_units": unit_name(trace),
            "eligible_kernel_share": a.tensor_cores.eligible_share,
            "kernels": {"count": sum(row.count for row in kernels), "total_us": sum(row.us for row in kernels)},
            "kinds": a.kinds_us,
            "copies": {name: asdict(copies) for name, copies in a.all_tables.copies.items()},
            "memory": _memory(a.memory),
            "typical": _typical(a.typical),
            "idle": [_idle(a, idle) for idle in a.typical.idle],
            "bound": advised.bound,
            "why_idle": advised.why_idle,
            "verdict": advised.verdict,
            "advice": [_advice(a, item) for item in advised.advice],
            "combined": [
                asdict(both) | {"gain": verdict.range_text(both.estimated_gain, both.low_gain, both.error)}
                for both in advised.together
            ],
            "findings": [_finding(finding, advised.costs) for finding in advised.findings],
            "predictions": {item.step: _gains(item) for item in advised.costs if item.step},
            "meanings": {
                "roles": verdict.ROLES | ({} if a.gpus else verdict.ROLES_WITHOUT_GPU),
                "causes": verdict.CAUSES_OF_IDLE,
            },
        }
    )


def tables(analysis: Analysis) -> dict[str, Any]:
    """The report with the long lists that pages show: steps, kernels, operators, memory curves, collectives.

    It names the file, not the folder that it lies in, and says µs. The times of gaps are those of `timeline.lanes`.
    """
    a, steps, result = analysis, analysis.steps, report(analysis)
    name = a.trace.file.name.encode(errors="replace").decode()  # it need not be UTF-8
    result["warnings"] = [line.replace(result["file"], a.trace.file.name) for line in result["warnings"]]
    result["steps"] |= {"names": steps.names[:MAX_STEPS], "us": steps.duration[:MAX_STEPS].tolist()}
    result["typical"] |= _names(a.typical, a.typical.operators, ALL_NAMES, PAGE_WIDTH)
    result["memory"]["devices"] = [_device_memory(memory) | _curve(memory) for memory in a.memory]
    result |= {"file": name, "collectives": {} if a.trace.rank is None else sequences(a.trace, steps)}
    return {key: _with_micro_signs(value, key) for key, value in result.items()}


def page(analysis: Analysis) -> dict[str, Any]:
    """What a page about a trace shows: `tables`, and a typical step as a "strip"."""
    return tables(analysis) | {"strip": strip(analysis.typical)}


def strip(a: Analysis) -> dict[str, Any]:
    """The step most like the mean: {"step": its name, "us": its length, "lanes": {lane: {group: share of each bin}}}.

    Lanes are "CPU", then "GPU n" by kind of kernel and "copies n" by direction. A moment of a lane counts for the first
    group that covers it.
    """
    steps, kernels, copies = a.steps, a.trace.kernels, a.trace.copies
    at = int(np.abs(steps.breakdown - steps.breakdown.mean(axis=1)[:, None]).sum(axis=0).argmin())
    edges = np.linspace(float(steps.start[at]), float(steps.end[at]), BINS + 1)
    lanes = {"CPU": _cpu(a)}
    for gpu in a.gpus:
        own, copied = kernels.device == gpu.id, copies.device == gpu.id
        lanes[f"GPU {gpu.id}"] = {kind: kernels.cover(own & a.of_kind(kind)) for kind in KINDS}
        to_gpu = copied & direction(a.trace, "h2d")
        lanes[f"copies {gpu.id}"] = {"to the GPU": copies.cover(to_gpu), "other copies": copies.cover(copied & ~to_gpu)}
    binned = {lane: _binned(groups, edges) for lane, groups in lanes.items()}
    return {
        "step": steps.names[at],
        "us": float(steps.duration[at]),
        "lanes": {lane: groups for lane, groups in binned.items() if groups},
    }


def _cpu(a: Analysis) -> dict[str, Cover]:
    trace, operators, runtime = a.trace, a.trace.operators, a.trace.runtime
    own, marks = operators.thread == stepping_thread(trace), trace.named(operators, is_mark)
    waits = (trace.calls.waits | trace.calls.copies) & (runtime.duration > LONG_WAIT)
    return {
        "waits for the GPU": runtime.cover(waits),
        "DataLoader": a.phases.loading,
        "optimizer": a.phases.per_step,
        "operators": operators.cover(own & ~marks),
        "operators, other threads": operators.cover(~own & ~marks),
    }


def _binned(groups: dict[str, Cover], edges: np.ndarray) -> dict[str, list[float]]:
    """The share of each bin by group, without groups that are in none."""
    parts = shares(groups.values(), edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1e-9)
    return {name: np.round(row, 3).tolist() for name, row in zip(groups, parts, strict=True) if row.any()}


def _typical(a: Analysis) -> dict[str, Any]:
    """What one of the steps of an analysis does, on average."""
    steps, communication, count = a.steps, a.communication, len(a.steps.names)
    kernels, parts = a.tables.kernels, a.steps.mean_breakdown_us
    return {
        "count": count,
        "mean_us": steps.mean_us,
        "median_us": steps.median_us,
        "least_us": float(steps.duration.min()),
        "most_us": float(steps.duration.max()),
        "breakdown_us": parts,
        "breakdown_shares": _shares(parts, steps.mean_us),
        "parts_us": a.parts_us,
        "kernel_count": sum(kernel.count for kernel in kernels) / count,
        "kernel_us": sum(kernel.us for kernel in kernels) / count,
        "kernel_names": len(kernels),
        "kinds": a.kinds_us,
        "kind_shares": _shares(a.kinds_us, sum(a.kinds_us.values())),
        "copies": {name: _copies(copies, count) for name, copies in a.tables.copies.items()},
        "step_bytes": a.step_bytes,
        "communication": communication
        and {
            "count": communication.count / count,
            "us": communication.us / count,
            "exposed_us": communication.exposed_us / count,
            "hidden_us": communication.hidden_us / count,
            "do": ways_to_communicate_less(communication, a.workload.training),
        },
        **_names(a, [] if len(a.trace.kernels) else a.operators, TOP_NAMES, REPORT_WIDTH),
    }


def _names(a: Analysis, operators: Sequence[Operator], most: int, width: int) -> dict[str, Any]:
    """The kernels and operators of a mean step that take the longest, by name."""
    count, kernels = len(a.steps.names), a.tables.kernels
    kernel_us, operator_us = sum(row.us for row in kernels), sum(row.us for row in operators)
    return {
        "kernels": [
            _row(row.name, row.count, row.us, kernel_us, count)
            | {"short": short_name(row.name, width), "tensor_cores": row.tensor_cores}
            for row in kernels[:most]
        ],
        "operators": [
            _row(row.name, row.count, row.us, operator_us, count) | {"device_us": row.device_us / count}
            for row in operators[:most]
        ],
        "operator_us": operator_us / count,
        "operator_names": len(operators),
    }


def _row(name: str, number: float, us: float, total_us: float, steps: int) -> dict[str, Any]:
    """A name with its count and time per step, the share of the time of all names, and the mean time."""
    share = us / max(total_us, 1e-9)
    return {"name": name, "count": number / steps, "us": us / steps, "share": share, "mean_us": us / max(number, 1)}


def _outlier(outlier: Outlier) -> dict[str, Any]:
    words = {"doing": doing(outlier), "remedy": REMEDIES[outlier.workers], "why": verdict.why_outlier(outlier)}
    fields = asdict(outlier) | {"reasons": list(outlier.reasons)} | words
    del fields["workers"]
    return fields


def _copies(copies: Copies, count: int) -> dict[str, Any]:
    shares = {
        f"{kind}_share": getattr(copies, f"{kind}_bytes") / copies.bytes if copies.bytes else None
        for kind in ("pinned", "pageable")
    }
    return _divided(asdict(copies), count) | {"gigabytes_per_second": copies.gigabytes_per_second} | shares


def _idle(a: Analysis, idle: Idle) -> dict[str, Any]:
    """Why a GPU runs no kernel in a typical step. gaps: how many in all of them."""
    count = len(a.typical.steps.names)
    return {
        "gpu": idle.device,
        "us": idle.total_us / count,
        "causes_us": _divided(idle.causes_us, count),
        "cause_shares": _shares(idle.causes_us, idle.total_us),
        "gaps": len(idle.start),
        "longest_us": float((idle.end - idle.start).max(initial=0.0)),
        "notes": verdict.gaps(a, idle),
    }


def _memory(memories: Sequence[Memory]) -> dict[str, Any]:
    """The largest peaks: those of the GPUs, or of the CPU without one; then each device's."""
    shown = [memory for memory in memories if (memory.device == CPU) == (memories[0].device == CPU)]
    return {
        "peak_allocated_bytes": _largest(memory.peak_allocated for memory in shown),
        "peak_reserved_bytes": _largest(memory.peak_reserved for memory in shown),
        "devices": [_device_memory(memory) for memory in memories],
    }


def _device_memory(memory: Memory) -> dict[str, Any]:
    return {
        "device": memory.device,
        "peak_allocated": memory.peak_allocated,
        "peak_reserved": memory.peak_reserved,
        "growth": memory.growth,
        "at_peak": list(memory.at_peak.items())[:TOP_ALLOCATIONS],
    }


def _curve(memory: Memory) -> dict[str, Any]:
    points = thinned(memory.allocated, MAX_POINTS)
    curves = {"allocated": memory.allocated[points].tolist(), "reserved": memory.reserved[points].tolist()}
    return {"time_us": (memory.time[points] - memory.time[0]).tolist()} | _finite(curves)


def _advice(a: Analysis, item: Advice) -> dict[str, Any]:
    """Advice with its gain in words, and the longest gap that it is about: µs from the begin of the first step."""
    gap, origin = longest_gap(a, item), float(a.steps.cpu_start[0])
    keys = ("id", "step", "title", "why", "do", "share_of_step")
    where = gap and {"start": round(gap[0] - origin, 3), "end": round(gap[1] - origin, 3), "device": gap[2]}
    us_per_step = item.share_of_step * a.typical.steps.mean_us
    return {key: getattr(item, key) for key in keys} | {"us_per_step": us_per_step} | _gains(item) | {"gap": where}


def _gains(item: Advice) -> dict[str, Any]:
    keys = ("predicted_gain", "estimated_gain", "low_gain")
    return {"gain": verdict.gain_text(item)} | {key: getattr(item, key) for key in keys}


def _finding(finding: Finding, costs: Sequence[Advice]) -> dict[str, Any]:
    """A finding. gain: of the cost, in words. marked: whether the timeline marks the times that it is about."""
    keys = ("id", "cost", "what", "why", "us_per_step", "do", "estimated_gain")
    gain = next((verdict.gain_text(item) for item in costs if item.id == finding.cost), "")
    return {key: getattr(finding, key) for key in keys} | {"gain": gain, "marked": len(finding.when.start) > 0}


def _divided(values: Mapping[str, float], divisor: float) -> dict[str, float]:
    return {name: value / divisor for name, value in values.items()}


def _shares(values: Mapping[str, float], total: float) -> dict[str, float]:
    return _divided(values, max(total, 1e-9))


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _with_micro_signs(value: Any, key: str) -> Any:
    """The value, in its `SENTENCES` "µs" for the "us" that terminals are given."""
    if isinstance(value, dict):
        return {name: _with_micro_signs(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_micro_signs(item, key) for item in value]
    return micro_sign(value) if isinstance(value, str) and key in SENTENCES else value
