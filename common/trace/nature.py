"""What a trace is of: training or inference, compiled code, CUDA graphs, a graph's capture, a start-up, images.

Advice and findings ask here, so that none is given for what the program does not do, or does already.
"""

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from common.trace.columns import Spans, Trace
from common.trace.idle import Idle
from common.trace.intervals import Cover
from common.trace.operators import graph_launched, launches
from common.trace.ordered import distinct
from common.trace.steps import Steps

MOSTLY = 0.5  # of the steps' time: a trace with more capturing or setting up than that is of nothing else
_TRAINING = re.compile(r"autograd::engine|Backward\d*$|_backward(?![a-z])|^Optimizer\.step|## backward ##")
_COMPUTING = re.compile("aten::")
_TRAINING_KERNELS = re.compile(r"backward|wgrad|flash_bwd|adam", re.IGNORECASE)  # dgrad: transposed, too
_COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo")
_COMPILED_KERNELS = re.compile(r"^triton_[a-z]+_fused_|^triton__0d1d")  # Inductor's, by its names of today and of 2023
_LAUNCH = re.compile(r"(cuda|cu|hip)(Module|Ext)*LaunchKernel")
_IMAGES = re.compile(r"aten::(conv2d|upsample_\w*2d|_upsample_\w*2d|\w*(max|avg)_pool2d)")
_LIKELY_IMAGES = re.compile(r"aten::(cudnn|miopen|mkldnn)_convolution")  # of one, two or three dimensions
_NO_IMAGES = re.compile(r"aten::conv[13]d")


class Nature(Struct, frozen=True):
    """What a trace is of.

    training: True where a backward pass or an optimizer ran, False where only other operators did, None where the trace
    cannot tell. compiled: whether code of torch.compile runs. graphed: the share of the kernels, by their count, that
    CUDA graphs launched. capturing, setting_up: shares of the steps' time in which CUDA graphs were captured (from the
    first capture to the last where none is launched), and in which a GPU waited for memory, code or its own start.
    images: whether operators work on images. stacks: whether Python's functions are recorded. is_blind: whether kernels
    were launched and none is recorded.
    """

    training: bool | None
    compiled: bool
    graphed: float
    capturing: float
    setting_up: float
    images: bool
    stacks: bool
    is_blind: bool

    @property
    def is_capture(self) -> bool:
        """True where most of the time CUDA graphs are captured, or half of that and none is launched."""
        return self.capturing >= (MOSTLY if self.graphed else MOSTLY / 2)

    @property
    def is_startup(self) -> bool:
        """True where most of the time the GPU is being set up: allocating, loading code, starting."""
        return self.setting_up >= MOSTLY and not self.is_capture

    @property
    def has_steps(self) -> bool:
        """False where the trace says nothing about the steps of a program that has warmed up."""
        return not self.is_capture and not self.is_startup and not self.is_blind


def nature(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> Nature:
    """The `Nature` of a trace. idle: the `Idle` of each of its GPUs."""
    operators, kernels = trace.operators, trace.kernels
    total = max(float(steps.duration.sum()), 1e-9)
    setting_up = np.mean([gpu.causes_us["setup"] for gpu in idle]) / total if idle else 0.0
    graphed = float(graph_launched(trace, launches(trace, kernels)).mean()) if len(kernels) else 0.0
    captured = captures(trace)
    if len(captured.start) and not graphed:  # what runs between captures prepares the next one
        captured = Cover(captured.start[:1], captured.end[-1:])
    return Nature(
        training=_training(trace),
        compiled=_any(trace, [operators, trace.annotations], _COMPILED) or _any(trace, [kernels], _COMPILED_KERNELS),
        graphed=graphed,
        capturing=float(captured.within(steps.start, steps.end).sum()) / total,
        setting_up=float(setting_up),
        images=_any(trace, [operators], _IMAGES)
        or (_any(trace, [operators], _LIKELY_IMAGES) and not _any(trace, [operators], _NO_IMAGES)),
        stacks=len(trace.python) > 0,
        is_blind=not len(kernels) and bool(trace.named(trace.runtime, _LAUNCH.match).any()),
    )


def captures(trace: Trace) -> Cover:
    """When CUDA graphs were captured: from each call that begins a capture to the next one on its thread that ends."""
    runtime = trace.runtime
    begins = runtime.where(trace.named(runtime, lambda name: "BeginCapture" in name))
    ends = runtime.where(trace.named(runtime, lambda name: "EndCapture" in name))
    start, end = [], []
    for thread in distinct(begins.thread).tolist():
        opened, closed = begins.start[begins.thread == thread], ends.end[ends.thread == thread]
        following = np.searchsorted(closed, opened)
        start.append(opened[following < len(closed)])
        end.append(closed[following[following < len(closed)]])
    return Cover(np.concatenate(start), np.concatenate(end)) if start else Cover()


def _training(trace: Trace) -> bool | None:
    if _any(trace, [trace.operators, trace.annotations], _TRAINING) or _any(trace, [trace.kernels], _TRAINING_KERNELS):
        return True
    return False if _any(trace, [trace.operators], _COMPUTING) else None


def _any(trace: Trace, tables: Sequence[Spans], pattern: re.Pattern[str]) -> bool:
    """Whether a name in the tables matches."""
    return any(
        pattern.search(trace.names[number])
        for spans in tables
        for number in np.flatnonzero(np.bincount(spans.name)).tolist()
    )
