"""A trace's numbers, or its events, as plain JSON for a page: `python -m common.trace.digest [--lanes] PATH`.

A process of its own for each trace, so that a server stays quick and small while a large one is read.
"""

import sys

import msgspec
import numpy as np
from msgspec.structs import asdict

from common.errors import InputError, one_line_errors
from common.trace import lanes
from common.trace.reader import read
from common.trace.source import Chunks
from common.trace.summary import summarize

KERNELS, OPERATORS, HOLDERS = 100, 50, 12  # rows that a page shows
POINTS = 2000  # of a memory curve: more than a screen has columns


def digest(summary):
    """What a page shows of a `Summary`: a dict of plain types; times in µs, sizes in bytes, shares 0..1."""
    steps, talk = summary.steps, summary.communication
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
        },
        "gpus": [asdict(gpu) | {"unsure": summary.tensor_cores.unknown.get(gpu.id, 0.0)} for gpu in summary.gpus],
        "has_gpu": bool(summary.gpus or summary.trace.properties),
        "eligible_share": summary.tensor_cores.eligible_share,
        "kernel_count": sum(kernel.count for kernel in summary.kernels),
        "kernel_us": sum(kernel.us for kernel in summary.kernels),
        "kernels": [asdict(kernel) for kernel in summary.kernels[:KERNELS]],
        "operator_us": sum(operator.us for operator in summary.operators),
        "operators": [asdict(operator) for operator in summary.operators[:OPERATORS]],
        "copies": {
            name: asdict(each) | {"gigabytes_per_second": each.gigabytes_per_second}
            for name, each in summary.copies.items()
        },
        "step_bytes": summary.step_bytes,
        "memory": [_memory(each) for each in summary.memory],
        "idle": [
            {"device": each.device, "total_us": each.total_us, "causes_us": each.causes_us, "gaps": len(each.start)}
            for each in summary.idle
        ],
        "communication": talk and {"count": talk.count, "us": talk.us, "hidden_us": talk.hidden_us},
        "advice": [asdict(each) for each in summary.advice],
        "promises": {each.step: asdict(each) for each in summary.levers if each.step},
        "verdict": summary.verdict,
    }


def _memory(each):
    points = thinned(each.allocated, POINTS)
    begun = each.time[0] if len(each.time) else 0.0
    return {
        "device": each.device,
        "peak_allocated": each.peak_allocated,
        "peak_reserved": each.peak_reserved,
        "growth": each.growth,
        "at_peak": list(each.at_peak.items())[:HOLDERS],
        "time_us": (each.time[points] - begun).tolist(),
        "allocated": _plain(each.allocated[points]),
        "reserved": _plain(each.reserved[points]),
    }


def thinned(values, points):
    """Indices of at most `points` points of a curve, among them the lowest and the highest of each stretch of time."""
    if len(values) <= points:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), points // 2 - 1)
    known = np.nan_to_num(values)
    kept = {0, len(values) - 1}
    for part in parts:
        kept |= {int(part[np.argmin(known[part])]), int(part[np.argmax(known[part])])}
    return np.array(sorted(kept))


def _plain(values):
    return [value if np.isfinite(value) else None for value in values.tolist()]


@one_line_errors()
def main(words):
    """Print the JSON of one trace; exit code 2 and one line on stderr where it cannot be read."""
    wants_lanes = words[:1] == ["--lanes"]
    if len(words) != 1 + wants_lanes:
        raise InputError("name one trace")
    with Chunks(words[-1]) as pieces:
        found = lanes.lanes(read(pieces)) if wants_lanes else digest(summarize(pieces))
    sys.stdout.buffer.write(msgspec.json.encode(found, enc_hook=lambda value: value.item()))  # numpy's numbers


if __name__ == "__main__":
    main(sys.argv[1:])
