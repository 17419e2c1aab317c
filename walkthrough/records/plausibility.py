"""Whether a trace can be of the runs whose figures are next to it: GPU, shapes, copies, memory and, roughly, time."""

import re
from collections.abc import Iterator
from typing import Any

from walkthrough.results.result import Result
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.memory import CPU
from walkthrough.trace.steps import PROFILER

SMALL_COPIES = 4096  # bytes per step, besides the batch
CONVOLUTIONS = re.compile(r"aten::(conv2d|_?convolution|cudnn_convolution|mkldnn_convolution)")


def contradictions(trace: dict[str, Any], analysis: Analysis, result: Result) -> Iterator[str]:
    """Where a trace and a step's figures cannot be of the same runs, a text each.

    trace: its JSON. analysis: what was computed from it.
    """
    batch = [result.batch_size, 3, result.image_size, result.image_size]
    if analysis.trace.partial or not isinstance(trace.get("traceEvents"), list):
        yield "it is damaged"
        return
    if analysis.steps.marked_by != PROFILER:
        yield "it marks no steps"
        return
    if result.device_type == "cuda":
        names = {gpu.name for gpu in analysis.gpus if len(analysis.trace.kernels)}
        if names != {result.device}:
            yield f"it is from {' and '.join(sorted(map(str, names))) or 'no GPU'}, not from {result.device}"
        elif abs(analysis.step_bytes - result.batch_bytes) > 0.02 * result.batch_bytes + SMALL_COPIES:
            yield f"a step copies {analysis.step_bytes:.0f} bytes to the GPU, a batch has {result.batch_bytes}"
    elif analysis.on_gpu:
        yield "it shows work on a GPU, the figures are a CPU's"
    replayed = analysis.trace.named(analysis.trace.runtime, lambda name: "GraphLaunch" in name).any()
    if not replayed and not any(_input_shape(event) == batch for event in trace["traceEvents"]):  # a graph has none
        yield f"no convolution in it has an input of shape {batch}"
    # Wide: tracing slows, little where kernels are long, much where a step is all launches; and where the loader is too
    # slow, three traced steps may find batches waiting, which were loaded while the profiler started.
    traced_ms, timed = analysis.steps.mean_us / 1e3, result.step_ms
    if not timed.median / 10 <= traced_ms <= 20 * timed.p90:
        yield f"its steps take {traced_ms:.6g} ms, the timed ones {timed.median:.6g} ms"
    if result.device_type == "cpu" and len(analysis.steps.names) == 3:  # one that was shortened may lack its peak
        peak = next((memory.peak_allocated for memory in analysis.memory if memory.device == CPU), None) or 0
        if not 1 / 1.5 <= result.peak_memory_bytes.allocated / max(peak, 1) <= 1.5:
            yield f"its peak memory is {peak} bytes, the runs' {result.peak_memory_bytes.allocated}"


def _input_shape(event: Any) -> list[Any] | None:
    """The shape of a convolution's first input; None for another event."""
    if not isinstance(event, dict) or not isinstance(name := event.get("name"), str):
        return None
    args = event.get("args")
    shapes = args.get("Input Dims") if isinstance(args, dict) and CONVOLUTIONS.fullmatch(name) else None
    return shapes[0] if isinstance(shapes, list) and shapes else None
