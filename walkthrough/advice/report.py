"""ONE dictionary of a trace: what `explain` prints, `--json` selects and the pages of the Walkthrough tab show."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict

from walkthrough.advice import verdict
from walkthrough.advice.catalogue import Advice, Finding
from walkthrough.advice.gains import advise, longest_gap
from walkthrough.advice.wait_costs import REMEDIES, doing, ways_to_communicate_less
from walkthrough.terminal import micro_sign
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.communication import sequences
from walkthrough.trace.idle import Idle
from walkthrough.trace.kernel_names import short_name
from walkthrough.trace.kernels import unit_name
from walkthrough.trace.memory import CPU, Copies, Memory, thinned
from walkthrough.trace.operators import Operator
from walkthrough.trace.outliers import Outlier
from walkthrough.trace.steps import ROLES

NAME_WIDTH = 100  # letters of a kernel's short name; a page shows the whole one on demand
TOP_NAMES, ALL_NAMES = 8, 500  # rows of kernels and operators: of a report, of its tables
TOP_ALLOCATIONS = 12
MAX_POINTS = 2000  # of a memory curve: more than a screen has columns
FEW_STEPS = 3  # fewer are shown one by one, where nobody can tell which is the usual one
MAX_STEPS = 1000  # whose times are sent one by one
SENTENCES = ("why", "do", "recorded", "warnings", "verdict")  # keys of texts that name times
FOR_THE_TERMINAL = ("all_steps", "recording", "two_steps", "words")  # keys that no page needs


def report(analysis: Analysis, name_width: int = NAME_WIDTH) -> dict[str, Any]:
    """What is known of a trace, in plain types: times in µs, sizes in bytes, shares 0..1; None where it cannot tell.

    All but the GPUs' shares, the memory, "steps" and "all_steps" are of the typical steps. kernels, operators, copies,
    kinds, idle and communication are of one step ("per" says so in words), of both where "undecided": of two steps of
    very different length nobody can tell which is the usual one. operators: where no kernel ran; `tables` has all.
    "rank": what `comparison.ranks` compares. "words": texts for a terminal: "gaps" of each GPU in "idle". "all_steps":
    with the outliers, and of the whole trace; what `--json` shows. name_width: letters of the kernels' short names.
    """
    a, trace, steps, typical = analysis, analysis.trace, analysis.steps, analysis.typical
    advised, divisor, recording = advise(a), verdict.divisor(a), trace.recording
    return _finite(
        {
            "file": str(trace.file),
            "begin_ts": trace.origin + float(steps.cpu_start[0]),
            "warnings": list(trace.warnings),
            "partial": trace.partial,
            "sampled": typical.workload.recorded < 1,
            "recorded": verdict.recorded(a),
            "recording": None if recording is None else to_builtins(recording),
            "samples_per_step": recording.samples_per_step if recording else None,
            "rank": _rank(a),
            "steps": {
                "names": steps.names,
                "count": len(steps.names),
                "marked": steps.marked,
                "whole": steps.whole,
                "mean_us": steps.mean_us,
                "median_us": steps.median_us,
                "breakdown_us": steps.mean_breakdown_us,
                "outliers": [_outlier(outlier) for outlier in a.outliers],
            },
            "typical": {
                "count": len(typical.steps.names),
                "mean_us": typical.steps.mean_us,
                "median_us": typical.steps.median_us,
                "least_us": float(typical.steps.duration.min()),
                "most_us": float(typical.steps.duration.max()),
                "breakdown_us": typical.steps.mean_breakdown_us,
                "parts_us": typical.parts_us,
                "undecided": divisor < len(typical.steps.names),
            },
            "two_steps": _two_steps(typical) if divisor < len(typical.steps.names) else [],
            "per": verdict.per_step(a),
            "of_steps": verdict.of_steps(a),
            "of_which_steps": verdict.of_which_steps(a),
            "gpus": [asdict(gpu) | {"unsure": a.tensor_cores.unknown.get(gpu.id, 0.0)} for gpu in a.gpus],
            "has_gpu": bool(a.gpus or trace.properties or typical.workload.is_blind),
            "matrix_units": unit_name(trace),
            "eligible_share": a.tensor_cores.eligible_share,
            **_of_a_step(typical, divisor),
            **_names(typical, divisor, [] if len(trace.kernels) else typical.operators, TOP_NAMES, name_width),
            "memory": [_memory(memory) for memory in a.memory],
            "advice": [_advice(a, item) for item in advised.advice],
            "combined": [asdict(combination) for combination in advised.together],
            "findings": [_finding(finding) for finding in advised.findings],
            "predictions": {item.step: _gains(item) for item in advised.costs if item.step},
            "verdict": advised.verdict,
            "bound": advised.bound,
            "why_idle": advised.why_idle,
            "words": {
                "device": verdict.device(a),
                "roles": verdict.ROLES | ({} if a.gpus else verdict.ROLES_WITHOUT_GPU),
                "causes": verdict.CAUSES_OF_IDLE,
                "gaps": [verdict.gaps(a, idle) for idle in typical.idle],
                "gains": [verdict.gain_without(finding) for finding in advised.findings],
            },
            "all_steps": _all_steps(a),
        }
    )


def tables(analysis: Analysis) -> dict[str, Any]:
    """The report with the long lists that the pages show: steps, kernels, operators, memory curves, collectives.

    It names the file, not the folder that it lies in, and says µs. The times of gaps are those of `timeline.lanes`.
    """
    a, steps, result = analysis, analysis.steps, report(analysis)
    few = len(steps.names) < FEW_STEPS
    result["warnings"] = [line.replace(result["file"], a.trace.file.name) for line in result["warnings"]]
    result["steps"] |= {
        "names": steps.names[:MAX_STEPS],
        "us": steps.duration[:MAX_STEPS].tolist(),
        "roles_us": dict(zip(ROLES, steps.breakdown.tolist(), strict=True)) if few else {},
    }
    result |= _names(a.typical, verdict.divisor(a), a.typical.operators, ALL_NAMES, NAME_WIDTH) | {
        "file": a.trace.file.name.encode(errors="replace").decode(),  # it need not be UTF-8
        "rank": None if a.trace.rank is None else result["rank"],
        "collectives": {} if a.trace.rank is None else sequences(a.trace, steps),
        "memory": [_memory(memory) | _curve(memory) for memory in a.memory],
    }
    return {key: _with_micro_signs(value, key) for key, value in result.items() if key not in FOR_THE_TERMINAL}


def as_json(report: Mapping[str, Any]) -> dict[str, Any]:
    """The object that `explain --json` prints, of a report."""
    of_all = report["all_steps"]
    return {
        "file": report["file"],
        "steps": {key: report["steps"][key] for key in ("count", "names", "mean_us", "breakdown_us")},
        "gpus": [{key: value for key, value in gpu.items() if key != "unsure"} for gpu in report["gpus"]],
        "kernels": of_all["kernels"],
        "eligible_kernel_share": report["eligible_share"],
        "copies": of_all["copies"],
        "memory": of_all["memory"],
        "advice": [
            {key: item[key] for key in ("step", "title", "why", "share_of_step", "predicted_gain", "estimated_gain")}
            | {"why": f"{item['title']}: {item['why']}"}
            for item in report["advice"]
        ],
        "together": report["combined"],
        "verdict": report["verdict"],
        "warnings": report["warnings"],
        "idle": of_all["idle"],
        "findings": [{key: value for key, value in row.items() if key != "marked"} for row in report["findings"]],
        "kinds": of_all["kinds"],
        "outliers": [
            {key: value for key, value in row.items() if key not in ("doing", "remedy", "why")}
            for row in report["steps"]["outliers"]
        ],
        "recording": report["recording"],
    }


def _of_a_step(a: Analysis, divisor: int) -> dict[str, Any]:
    """What the steps of an analysis do, over `divisor` of them."""
    kernels, communication = a.tables.kernels, a.communication
    scale = len(a.steps.names) / divisor  # of what is per step already
    return {
        "kernel_count": sum(kernel.count for kernel in kernels) / divisor,
        "kernel_us": sum(kernel.us for kernel in kernels) / divisor,
        "kernel_names": len(kernels),
        "kinds": {kind: us * scale for kind, us in a.kinds_us.items()},
        "copies": {name: _copies(copies, divisor) for name, copies in a.tables.copies.items()},
        "step_bytes": a.step_bytes * scale,
        "idle": [_idle(idle, divisor) for idle in a.idle],
        "communication": communication
        and {
            "count": communication.count / divisor,
            "us": communication.us / divisor,
            "exposed_us": communication.exposed_us / divisor,
            "hidden_us": communication.hidden_us / divisor,
        },
    }


def _names(a: Analysis, divisor: int, operators: Sequence[Operator], most: int, width: int) -> dict[str, Any]:
    """The kernels and operators that take the longest, by name."""
    return {
        "kernels": [
            asdict(row) | {"count": row.count / divisor, "us": row.us / divisor, "short": short_name(row.name, width)}
            for row in a.tables.kernels[:most]
        ],
        "operators": [
            {key: value if key == "name" else value / divisor for key, value in asdict(row).items()}
            for row in operators[:most]
        ],
        "operator_us": sum((row.us / divisor for row in operators), 0.0),
        "operator_names": len(operators),
    }


def _all_steps(a: Analysis) -> dict[str, Any]:
    """With the outlying steps; kernels, copies and memory of the whole trace, outside of its steps too."""
    kernels, count = a.all_tables.kernels, len(a.steps.names)
    devices = [memory for memory in a.memory if (memory.device == CPU) == (a.memory[0].device == CPU)]
    idle = [
        {"gpu": gpu.device, "us": gpu.total_us / count, "causes_us": _divided(gpu.causes_us, count)} for gpu in a.idle
    ]
    return {
        "kernel_count": sum(kernel.count for kernel in a.tables.kernels) / count,
        "step_bytes": a.step_bytes,
        "kernels": {"count": sum(row.count for row in kernels), "total_us": sum(row.us for row in kernels)},
        "copies": {name: asdict(copies) for name, copies in a.all_tables.copies.items()},
        "memory": {
            "peak_allocated_bytes": _largest(memory.peak_allocated for memory in devices),
            "peak_reserved_bytes": _largest(memory.peak_reserved for memory in devices),
        },
        "idle": idle,
        "kinds": a.kinds_us,
    }


def _rank(a: Analysis) -> dict[str, Any]:
    """What ranks are compared by: µs per typical step. rank: None where the trace names none."""
    collectives, count = a.typical.communication, len(a.typical.steps.names)
    return {
        "rank": a.trace.rank,
        "step_us": a.typical.steps.mean_us,
        "parts": a.typical.steps.mean_breakdown_us,
        "has_gpu": bool(a.gpus),
        "communicates": collectives is not None,
        "collectives_us": collectives.us / count if collectives else 0.0,
        "exposed_us": collectives.exposed_us / count if collectives else 0.0,
        "hidden_us": collectives.hidden_us / count if collectives else 0.0,
        "ways": ways_to_communicate_less(collectives, a.typical.workload.training),
    }


def _outlier(outlier: Outlier) -> dict[str, Any]:
    words = {"doing": doing(outlier), "remedy": REMEDIES[outlier.workers], "why": verdict.why_outlier(outlier)}
    fields = asdict(outlier) | {"reasons": list(outlier.reasons)} | words
    del fields["workers"]
    return fields


def _two_steps(a: Analysis) -> list[dict[str, Any]]:
    rows = zip(a.steps.names, a.steps.duration.tolist(), a.steps.breakdown.T.tolist(), strict=True)
    return [
        {"name": name, "us": us, "breakdown_us": dict(zip(ROLES, by_role, strict=True))} for name, us, by_role in rows
    ]


def _copies(copies: Copies, divisor: int) -> dict[str, Any]:
    return _divided(asdict(copies), divisor) | {"gigabytes_per_second": copies.gigabytes_per_second}


def _idle(idle: Idle, divisor: int) -> dict[str, Any]:
    return {
        "device": idle.device,
        "us": idle.total_us / divisor,
        "causes_us": _divided(idle.causes_us, divisor),
        "gaps": len(idle.start),
        "longest_us": float((idle.end - idle.start).max(initial=0.0)),
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "device": memory.device,
        "peak_allocated": memory.peak_allocated,
        "peak_reserved": memory.peak_reserved,
        "growth": memory.growth,
        "at_peak": list(memory.at_peak.items())[:TOP_ALLOCATIONS],
    }


def _curve(memory: Memory) -> dict[str, Any]:
    points = thinned(memory.allocated, MAX_POINTS)
    begin = memory.time[0] if len(memory.time) else 0.0
    curves = {"allocated": memory.allocated[points], "reserved": memory.reserved[points]}
    return {"time_us": (memory.time[points] - begin).tolist()} | _finite(
        {k: curve.tolist() for k, curve in curves.items()}
    )


def _advice(a: Analysis, item: Advice) -> dict[str, Any]:
    """Advice with its gain in words, and the longest gap that it is about: µs from the begin of the first step."""
    gap, origin = longest_gap(a, item), float(a.steps.cpu_start[0])
    return {
        "id": item.id,
        "step": item.step,
        "title": item.title,
        "why": item.why,
        "do": item.do,
        "share_of_step": item.share_of_step,
        "us_per_step": item.share_of_step * a.typical.steps.mean_us,
        **_gains(item),
        "gap": gap and {"start": round(gap.start - origin, 3), "end": round(gap.end - origin, 3), "device": gap.device},
    }


def _gains(item: Advice) -> dict[str, Any]:
    return {
        "gain": verdict.gain_text(item),
        "predicted_gain": item.predicted_gain,
        "estimated_gain": item.estimated_gain,
        "low_gain": item.low_gain,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding. marked: whether the timeline marks the times that it is about."""
    keys = ("id", "cost", "what", "why", "us_per_step", "do", "estimated_gain")
    return {key: getattr(finding, key) for key in keys} | {"marked": len(finding.when.start) > 0}


def _divided(values: Mapping[str, float], divisor: int) -> dict[str, float]:
    return {name: value / divisor for name, value in values.items()}


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
