"""A compiled program, timed on one batch: `python -m studies.limit.compiled JSON`.

In a process of its own, since compiling can take minutes, can be stopped only from outside, and can bring a process
down.
"""

import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from common.device import disable_tf32
from common.model import classifier
from common.timing import Timing, Window
from studies import one_batch
from studies.limit.record import CHANNELS_LAST, Program
from walkthrough.compare import isolated
from walkthrough.compare.isolated import Isolated
from walkthrough.compare.reader import end_with_reader
from walkthrough.results.errors import is_out_of_memory

COMPILED = "compiled"  # the line that a process prints once the model is


@dataclass(frozen=True)
class CompiledTiming(Timing):
    """kernel_bytes: that the kernels of a step move at least, by Inductor's own count; None where it gave none.

    Without the optimizer and the resizing, which are not compiled.
    """

    kernel_bytes: int | None = None


def time_compiled(
    settings: Mapping[str, Any],
    limit_seconds: float,
    command: Sequence[str] = isolated.module("studies.limit.compiled"),
) -> tuple[CompiledTiming, None] | tuple[None, str]:
    """Time a compiled program in a process of its own: (its timing, None), or (None, why not, in a line).

    settings: what `compile_and_time` takes. limit_seconds: how long starting and compiling together may take; after
    that the process and all that it started are ended.
    """
    answer = isolated.answer(command, settings, limit_seconds, end_limit_once_compiled)
    if isinstance(answer, str):
        hint = " (--compile-limit sets how long to wait)" if answer.startswith("not done") else ""
        return None, f"torch.compile failed: {answer}{hint}"
    if "error" in answer:
        return None, answer["error"]
    timing = answer["timing"]
    windows = [Window(**window) for window in timing["windows"]]
    return CompiledTiming(timing["first_step_seconds"], windows, kernel_bytes=answer.get("kernel_bytes")), None


def end_limit_once_compiled(line: str, child: Isolated) -> None:
    """Cancel a process's timer where it has printed that the model is compiled."""
    if line == COMPILED:
        child.timer.cancel()


def compile_and_time(
    device: str, model: str, image_size: int, precision: str, seed: int, quick: bool, program: Mapping[str, Any]
) -> None:
    """Compile and time here. Prints `COMPILED` once the model is, and answers {"timing": …, "kernel_bytes": …} or
    {"error": why not}.

    precision: name of a dtype, such as "float32". program: the fields of a `Program`.
    """
    chosen = Program(**program)
    on = torch.device(device)
    if on.index is not None:
        torch.cuda.set_device(on)
    disable_tf32()
    torch.backends.cudnn.benchmark = bool(chosen.cudnn_benchmark)
    torch.manual_seed(seed)
    plan = one_batch.QUICK if quick else one_batch.FULL
    try:
        batch = one_batch.batch_on(on, chosen.batch_size)
        network, dtype = classifier(model, image_size), getattr(torch, precision)
        channels_last, graphs = chosen.layout == CHANNELS_LAST, bool(chosen.cuda_graphs)
        train_step = one_batch.TrainStep(
            network, on, dtype, image_size, channels_last, compiled=True, cuda_graphs=graphs
        )
        train_step(*batch).item()
        print(COMPILED, flush=True)
        moved = kernel_bytes()
        timing = one_batch.time_one_batch(train_step, batch, on, plan)
    except Exception as error:  # a compiler fails in any way
        isolated.print_answer({"error": not_compiled(error)})
        return
    isolated.print_answer({"timing": asdict(timing), "kernel_bytes": moved})


def count_kernel_bytes() -> None:
    """Let Inductor count the bytes that its kernels move: since 2.11 or earlier it does so only for a log.

    Nothing is logged. A program from torch's caches would count as the process did that put it there, so these are not
    used; those of kernels are.
    """
    try:
        from torch._functorch import config as functorch
        from torch._inductor import compile_fx, config, graph
    except ImportError:  # a build without Inductor
        return
    config.fx_graph_cache = functorch.enable_autograd_cache = False
    # torch's own also estimates times, which may fail
    graph.GraphLowering.count_bytes = _moved  # pyright: ignore[reportAttributeAccessIssue]
    log = getattr(compile_fx, "inductor_metrics_log", None)
    if log is not None:
        log.setLevel(logging.INFO)
        log.addFilter(lambda _: False)


def _moved(graph: Any) -> tuple[float, list, list]:
    """(bytes that the kernels of a graph move, and two lists for the log); not a number where that cannot be told."""
    try:
        return sum(node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes), [], []
    except Exception:  # no reason for a compilation to fail
        return math.nan, [], []


def kernel_bytes() -> int | None:
    """What Inductor counted of all that it compiled so far: of each kernel, every buffer read and written once.

    None where this torch does not count.
    """
    try:
        from torch._inductor import metrics
    except ImportError:
        return None
    counted = getattr(metrics, "num_bytes_accessed", 0)
    return int(counted) if counted > 0 else None  # NaN is not


def not_compiled(error: BaseException) -> str:
    """Why the compiled model could not be measured, in a line."""
    if is_out_of_memory(error):
        return "the compiled model runs out of memory at this batch size"
    return isolated.not_compiled(error)


if __name__ == "__main__":
    end_with_reader()
    count_kernel_bytes()
    compile_and_time(**json.loads(sys.argv[1]))
