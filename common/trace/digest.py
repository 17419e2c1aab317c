"""A trace's numbers as JSON for a web page, or its events: `python -m common.trace.digest [--lanes …] PATH`.

Runs in a process of its own, so a server stays responsive and small while a large trace is read.
"""

import argparse
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import asdict

from common.errors import InputError, one_line_errors
from common.trace.advice import gain_text
from common.trace.kernel_name import short_name
from common.trace.memory import Memory, thinned
from common.trace.source import Chunks
from common.trace.summary import Summary, summarize
from common.trace.timeline.lanes import lanes

TOP_KERNELS, TOP_OPERATORS, TOP_ALLOCATIONS = 100, 50, 12  # rows of the page's tables
NAME_WIDTH = 100  # letters of a kernel's name; the page shows the whole one on demand
MAX_POINTS = 2000  # of a memory curve: more than a screen has columns


def digest(summary: Summary) -> dict[str, object]:
    """The numbers of a `Summary` that a page shows: plain types; times in µs, sizes in bytes, shares 0..1."""
    steps, communication = summary.steps, summary.communication
    return {
        "file": summary.trace.file.name,
        "warnings": summary.trace.warnings,
        "partial": summary.trace.partial,
        "steps": {
            "names": steps.names,
            "marked": steps.marked,
            "mean_us": steps.mean_us,
            "us": steps.duration.tolist(),
            "breakdown_us": steps.mean_breakdown_us,
            "median_us": steps.median_us,
            "outliers": [asdict(outlier) for outlier in summary.outliers],
        },
        "gpus": [asdict(gpu) | {"unsure": summary.tensor_cores.unknown.get(gpu.id, 0.0)} for gpu in summary.gpus],
        "has_gpu": bool(summary.gpus or summary.trace.properties or summary.nature.is_blind),
        "eligible_share": summary.tensor_cores.eligible_share,
        "kernel_count": sum(kernel.count for kernel in summary.in_steps.kernels),
        "kernel_us": sum(kernel.us for kernel in summary.in_steps.kernels),
        "kernels": [
            asdict(kernel) | {"short": short_name(kernel.name, NAME_WIDTH)}
            for kernel in summary.in_steps.kernels[:TOP_KERNELS]
        ],
        "kinds": summary.kinds,
        "matrix_units": summary.matrix_units,
        "operator_us": sum(operator.us for operator in summary.in_steps.operators),
        "operators": [asdict(operator) for operator in summary.in_steps.operators[:TOP_OPERATORS]],
        "copies": {
            name: asdict(copies) | {"gigabytes_per_second": copies.gigabytes_per_second}
            for name, copies in summary.in_steps.copies.items()
        },
        "step_bytes": summary.step_bytes,
        "memory": [_memory(device) for device in summary.memory],
        "idle": [
            {"device": idle.device, "total_us": idle.total_us, "causes_us": idle.causes_us, "gaps": len(idle.start)}
            for idle in summary.idle
        ],
        "communication": asdict(communication) if communication else None,
        "advice": [asdict(advice) | {"gain": gain_text(advice)} for advice in summary.advice],
        "combined": [asdict(combination) for combination in summary.combined],
        "findings": [finding.as_json() | {"marked": len(finding.when.start) > 0} for finding in summary.findings],
        "predictions": {
            advice.step: asdict(advice) | {"gain": gain_text(advice)} for advice in summary.bottlenecks if advice.step
        },
        "verdict": summary.verdict,
    }


def _memory(memory: Memory) -> dict[str, object]:
    points = thinned(memory.allocated, MAX_POINTS)
    begin = memory.time[0] if len(memory.time) else 0.0
    return {
        "device": memory.device,
        "peak_allocated": memory.peak_allocated,
        "peak_reserved": memory.peak_reserved,
        "growth": memory.growth,
        "at_peak": list(memory.at_peak.items())[:TOP_ALLOCATIONS],
        "time_us": (memory.time[points] - begin).tolist(),
        "allocated": _plain(memory.allocated[points]),
        "reserved": _plain(memory.reserved[points]),
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Print the JSON of one trace; exit code 2 and one line on stderr if it cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m common.trace.digest")
    parser.add_argument("--lanes", action="store_true", help="the events for the timeline")
    parser.add_argument("--first", type=int, metavar="I", help="with --lanes: the first step, counted from 0")
    parser.add_argument("--last", type=int, metavar="J", help="with --lanes: the last step")
    parser.add_argument("trace", metavar="PATH")
    options = parser.parse_args(words)
    if min(options.first or 0, options.last or 0) < 0 or (
        options.last is not None and options.last < (options.first or 0)
    ):
        raise InputError("the steps are counted from 0, and the last is not before the first")
    with Chunks(options.trace) as chunks:
        summary = summarize(chunks, details=options.lanes)
    result = lanes(summary, options.first, options.last) if options.lanes else digest(summary)
    sys.stdout.buffer.write(msgspec.json.encode(result, enc_hook=lambda value: value.item()))  # numpy's numbers


if __name__ == "__main__":
    main(sys.argv[1:])
