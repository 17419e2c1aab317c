"""Where in a trace the time is that a piece of advice is about, for the board's timeline."""

import numpy as np
from msgspec import Struct

from walkthrough.advice.advice import Advice
from walkthrough.advice.summary import Summary
from walkthrough.trace.communication import exposed_on_cpu
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import is_collective
from walkthrough.trace.steps import is_loading

# Why the GPU waits, by the advice that treats it: by its step, or by its title where no step does.
CAUSES_TREATED: dict[str, tuple[str, ...]] = {
    "02_bigger_batch": ("launch",),
    "03_reduced_h2d_copy": ("copy",),
    "04_multiprocess_loading": ("dataloader",),
    "05_pinned_memory": ("copy",),
    "06_prefetch_stream": ("copy",),
    "07_small_images": ("dataloader", "copy"),
    "08_on_device_data": ("dataloader", "copy"),
    "10_no_hidden_syncs": ("synchronisation",),
    "11_fused_optimizer": ("launch",),
    "13_compile": ("launch",),
    "14_compile_loss": ("launch",),
    "15_cuda_graphs": ("launch",),
    "do less for each batch": ("dataloader",),
    "find the Python between operators": ("other",),
    "keep the worker processes": ("dataloader",),
    "leave results on the GPU": ("copy",),
    "load in more processes": ("dataloader",),
    "warm up first": ("setup",),
}
OVERLAP = "overlap communication"


class Place(Struct, frozen=True):
    """A stretch of time. start, end: µs since `Trace.origin`. device: the GPU that waits there, or None."""

    start: float
    end: float
    device: int | None = None


def longest_gap(summary: Summary, advice: Advice) -> Place | None:
    """The longest single stretch that the advice is about, in the typical steps; None where it is about none.

    A GPU's gap, by how much of it has the cause that the advice treats; a wait for the DataLoader in a trace without
    kernels; a stretch in which only collectives run, for advice to overlap them.
    """
    name = advice.step or advice.title
    causes = CAUSES_TREATED.get(name, ())
    if name == OVERLAP:
        return _longest(_exposed(summary))
    if not len(summary.analysis.trace.kernels):
        return _longest(_loading(summary)) if "dataloader" in causes else None
    best, longest = None, 0.0
    for gpu in summary.analysis.typical.idle:
        if not len(gpu.start) or not causes:
            continue
        treated = gpu.by_gap[[CAUSES.index(cause) for cause in causes]].sum(axis=0)
        gap = int(treated.argmax())
        if treated[gap] > longest:
            longest = float(treated[gap])
            best = Place(float(gpu.start[gap]), float(gpu.end[gap]), gpu.device)
    return best


def _exposed(summary: Summary) -> Cover:
    trace, steps = (
        summary.analysis.trace,
        Cover(summary.analysis.typical.steps.start, summary.analysis.typical.steps.end),
    )
    if not len(trace.kernels):
        return exposed_on_cpu(trace) & steps
    collective = trace.named(trace.kernels, is_collective)
    alone = trace.kernels.cover(collective)
    return trace.kernels.cover(~collective).gaps(alone.start, alone.end) & steps


def _loading(summary: Summary) -> Cover:
    operators = summary.analysis.trace.operators
    steps = Cover(summary.analysis.typical.steps.cpu_start, summary.analysis.typical.steps.cpu_end)
    return operators.cover(summary.analysis.trace.named(operators, is_loading)) & steps


def _longest(cover: Cover) -> Place | None:
    if not len(cover.start):
        return None
    at = int(np.argmax(cover.end - cover.start))
    return Place(float(cover.start[at]), float(cover.end[at]))
