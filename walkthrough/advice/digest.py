"""A trace's numbers as JSON for a web page, or its events: `python -m walkthrough.advice.digest [--lanes …] PATH`.

Runs in a process of its own, so a server stays responsive and small while a large trace is read.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from walkthrough.advice import ranks, wording
from walkthrough.advice.catalogue import Advice
from walkthrough.advice.gains import longest_gap
from walkthrough.advice.summary import Summary, summarize
from walkthrough.advice.verdict import gain_text
from walkthrough.results.errors import InputError, one_line_errors, printable
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.communication import parts_us
from walkthrough.trace.kernel_names import short_name
from walkthrough.trace.kernels import Kernel
from walkthrough.trace.memory import Copies, Memory, thinned
from walkthrough.trace.steps import ROLES
from walkthrough.trace.timeline.lanes import lanes
from walkthrough.trace.units import micro_sign

TOP_KERNELS, TOP_OPERATORS, TOP_ALLOCATIONS = 500, 500, 12  # rows of the page's tables
NAME_WIDTH = 100  # letters of a kernel's name; the page shows the whole one on demand
MAX_POINTS = 2000  # of a memory curve: more than a screen has columns
MUCH_MEMORY = 2**30  # bytes
FEW_STEPS = 3  # fewer are shown one by one, where nobody can tell which is the usual one
MAX_STEPS = 1000  # whose times are sent one by one


def digest(summary: Summary) -> dict[str, object]:
    """The numbers of a `Summary` that a page shows: plain types; times in µs, sizes in bytes, shares 0..1.

    All but the GPUs' shares, the memory and "steps" are of the typical steps, as in `explain`; kernels, operators,
    copies, kinds, idle, communication and parts per step ("per" says in words of which: `wording.per_step`).
    """
    steps, typical, usual = summary.analysis.steps, summary.analysis.typical.steps, summary.usual
    count, operators = wording.count(summary), summary.analysis.typical.operators
    scale = len(typical.names) / count  # of what is per step already: see `wording.per_step`
    kernels, recording = usual.in_steps.kernels, summary.analysis.trace.recording
    rank = summary.analysis.trace.rank
    return {
        "file": _encodable(summary.analysis.trace.file.name),
        "begin_ts": summary.analysis.trace.origin + float(summary.analysis.steps.cpu_start[0]),
        "warnings": [_warning(summary, line) for line in summary.analysis.trace.warnings],
        "partial": summary.analysis.trace.partial,
        "sampled": summary.analysis.typical.workload.recorded < 1,
        "recorded": [micro_sign(line) for line in wording.recorded(summary)],
        "samples_per_step": recording.samples_per_step if recording else None,
        "rank": None if rank is None else asdict(ranks.of(summary, rank)),
        "collectives": {} if rank is None else ranks.sequences(summary.analysis.trace, steps),
        "steps": {
            "names": steps.names[:MAX_STEPS],
            "count": len(steps.names),
            "marked": steps.marked,
            "whole": steps.whole,
            "mean_us": steps.mean_us,
            "us": steps.duration[:MAX_STEPS].tolist(),
            "breakdown_us": steps.mean_breakdown_us,
            "roles_us": dict(zip(ROLES, steps.breakdown.tolist(), strict=True)) if len(steps.names) < FEW_STEPS else {},
            "median_us": steps.median_us,
            "outliers": [
                outlier.as_json()
                | {"doing": outlier.doing, "remedy": outlier.remedy, "why": micro_sign(wording.why_outlier(outlier))}
                for outlier in summary.analysis.outliers
            ],
        },
        "typical": {
            "count": len(typical.names),
            "mean_us": typical.mean_us,
            "median_us": typical.median_us,
            "least_us": float(typical.duration.min()),
            "most_us": float(typical.duration.max()),
            "breakdown_us": typical.mean_breakdown_us,
            "parts_us": parts_us(summary.analysis.trace, typical),
            "undecided": count < len(typical.names),
        },
        "per": wording.per_step(summary).strip(),
        "of_steps": wording.steps(summary),
        "of_which_steps": wording.of_which_steps(summary),
        "gpus": [
            asdict(gpu) | {"unsure": summary.analysis.tensor_cores.unknown.get(gpu.id, 0.0)}
            for gpu in summary.analysis.gpus
        ],
        "has_gpu": bool(
            summary.analysis.gpus or summary.analysis.trace.properties or summary.analysis.typical.workload.is_blind
        ),
        "eligible_share": summary.analysis.tensor_cores.eligible_share,
        "kernel_count": sum(kernel.count for kernel in kernels) / count,
        "kernel_us": sum(kernel.us for kernel in kernels) / count,
        "kernel_names": len(kernels),
        "kernels": [_kernel(kernel, count) for kernel in kernels[:TOP_KERNELS]],
        "kinds": {kind: us * scale for kind, us in usual.kinds.items()},
        "matrix_units": summary.matrix_units,
        "operator_us": sum(operator.us / count for operator in operators),
        "operator_names": len(operators),
        "operators": [
            {"name": row.name, "count": row.count / count, "us": row.us / count, "device_us": row.device_us / count}
            for row in operators[:TOP_OPERATORS]
        ],
        "copies": {name: _copies(copies, count) for name, copies in usual.in_steps.copies.items()},
        "step_bytes": usual.step_bytes * scale,
        "memory": [_memory(device) for device in summary.analysis.memory],
        "idle": [
            {
                "device": idle.device,
                "us": idle.total_us / count,
                "causes_us": {cause: us / count for cause, us in idle.causes_us.items()},
                "gaps": len(idle.start),
                "longest_us": float((idle.end - idle.start).max(initial=0.0)),
            }
            for idle in usual.idle
        ],
        "communication": _communication(summary, count),
        "advice": [_advice(summary, advice) for advice in summary.advice],
        "combined": [asdict(combination) for combination in summary.combined],
        "findings": [
            finding.as_json()
            | {"why": micro_sign(finding.why), "do": micro_sign(finding.do), "marked": len(finding.when.start) > 0}
            for finding in summary.findings
        ],
        "predictions": {
            advice.step: {
                "gain": gain_text(advice),
                "predicted_gain": advice.predicted_gain,
                "estimated_gain": advice.estimated_gain,
            }
            for advice in summary.bottlenecks
            if advice.step
        },
        "verdict": micro_sign(summary.verdict),
    }


def _warning(summary: Summary, line: str) -> str:
    """A warning that names the file, not the folder that it lies in."""
    return micro_sign(line.replace(str(summary.analysis.trace.file), summary.analysis.trace.file.name))


def _encodable(text: str) -> str:
    """The text with "?" for what cannot be encoded: a file's name need not be UTF-8."""
    return text.encode(errors="replace").decode()


def _kernel(kernel: Kernel, count: int) -> dict[str, Any]:
    row = asdict(kernel) | {"short": short_name(kernel.name, NAME_WIDTH)}
    return row | {"count": kernel.count / count, "us": kernel.us / count}


def _copies(copies: Copies, count: int) -> dict[str, Any]:
    sums = {name: value / count for name, value in asdict(copies).items()}
    return sums | {"gigabytes_per_second": copies.gigabytes_per_second}


def _communication(summary: Summary, count: int) -> dict[str, object] | None:
    communication = summary.analysis.typical.communication
    if communication is None:
        return None
    return {
        "count": communication.count / count,
        "us": communication.us / count,
        "exposed_us": communication.exposed_us / count,
        "hidden_us": communication.hidden_us / count,
    }


def _advice(summary: Summary, advice: Advice) -> dict[str, Any]:
    """An `Advice` with its gain in words and its gap, in the times of `lanes`."""
    place, origin = longest_gap(summary.analysis, advice), float(summary.analysis.steps.cpu_start[0])
    gap = place and {
        "start": round(place.start - origin, 3),
        "end": round(place.end - origin, 3),
        "device": place.device,
    }
    names = ("step", "title", "share_of_step", "predicted_gain", "estimated_gain")
    row = {name: getattr(advice, name) for name in names}
    return row | {"why": micro_sign(advice.why), "gain": gain_text(advice), "gap": gap}


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


def answer(words: Sequence[str]) -> bytes:
    """The JSON of one trace, asked for as on the command line. Raises InputError where the trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m walkthrough.advice.digest")
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
    result: dict[str, Any] = lanes(summary, options.first, options.last) if options.lanes else digest(summary)
    result["warnings"] = [_encodable(line) for line in result["warnings"]]
    return msgspec.json.encode(result, enc_hook=lambda value: value.item())  # numpy's numbers


class Answer(Struct, frozen=True):
    """A line of `serve`. content: the JSON; null where there is none, for `reason`. lasting: it will fail again.

    last: the process ends, since it keeps the memory that it has taken.
    """

    content: msgspec.Raw = msgspec.Raw(b"null")
    reason: str = ""
    lasting: bool = False
    last: bool = False


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer each line of `questions`, the words of a command line as JSON, with an `Answer`, a line of JSON."""
    for line in questions:
        try:
            reply = Answer(msgspec.Raw(answer(json.loads(line))))  # msgspec refuses names that are not UTF-8
        except InputError as error:
            reply = Answer(reason=printable(error), lasting=True)
        except SystemExit:  # argparse's
            reply = Answer(reason="no question about a trace", lasting=True)
        except MemoryError:
            reply = Answer(reason="out of memory: this machine has too little for it")
        except Exception:
            logging.getLogger("walkthrough").exception("%s", printable(line.decode(errors="replace"), 300))
            reply = Answer(reason="a defect: see TensorBoard's log")
        reply = replace(reply, last=has_taken_much_memory())
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()
        if reply.last:
            return


def has_taken_much_memory() -> bool:
    """Whether this process has ever had more than `MUCH_MEMORY` bytes; False where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > MUCH_MEMORY


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Print the JSON of one trace; exit code 2 and one line on stderr if it cannot be read. `--serve`: see `serve`."""
    if list(words) == ["--serve"]:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    else:
        sys.stdout.buffer.write(answer(words))


if __name__ == "__main__":
    main(sys.argv[1:])
