"""What a trace is of: training or inference, compiled code, CUDA graphs, a graph's capture, a start-up, images.

Advice and findings ask here, so that none is given for what the program does not do, or does already.
"""

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace, distinct, graph_launched
from walkthrough.trace.idle import Idle
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import COMPILED
from walkthrough.trace.outliers import is_undecided
from walkthrough.trace.steps import Steps, is_step
from walkthrough.trace.units import time_text

FEWEST = 10  # kernels, or operators: one training step of a single linear layer has more
WORKING = 0.05  # of the time: those that fill so much are evidence, however few they are
NEAR = 2  # to the next operator by its number: most are nearer in whole traces, few in a sample
ENOUGH = 100  # operators, to tell that
MOSTLY = 0.5  # of the steps' time: a trace with more capturing or setting up than that is of nothing else
_TRAINING = re.compile(r"autograd::engine|Backward\d*$|_backward(?![a-z])|^Optimizer\.step|## backward ##")
_COMPUTING = re.compile("aten::")
_TRAINING_KERNELS = re.compile(r"backward|wgrad|flash_bwd|adam", re.IGNORECASE)  # dgrad: transposed, too
_COMPILED_KERNELS = re.compile(r"^triton_[a-z]+_fused_|^triton__0d1d")  # Inductor's, by its names of today and of 2023
_LAUNCH = re.compile(r"^(cuda|cu|hip)(Module|Ext)*LaunchKernel")
# What only a program on a GPU does. record_stream keeps a block of GPU memory for another stream. Not the question
# whether cuDNN can be used, which LSTMs ask on a CPU, too.
_ON_GPU = re.compile(r"^nccl:|^aten::(cudnn|miopen)_(?!is_acceptable)|^aten::record_stream$")
_IMAGES = re.compile(r"aten::(conv2d|upsample_\w*2d|_upsample_\w*2d|\w*(max|avg)_pool2d)")
_LIKELY_IMAGES = re.compile(r"aten::(cudnn|miopen|mkldnn)_convolution")  # of one, two or three dimensions
_NO_IMAGES = re.compile(r"aten::conv[13]d")


class Workload(Struct, frozen=True):
    """What a trace is of.

    training: True where a backward pass or an optimizer ran, False where only other operators did, None where the trace
    cannot tell. compiled: whether code of torch.compile runs. fused: whether Inductor's Triton kernels run, which other
    backends of torch.compile do not have. graphed: the share of the kernels, by their count, that CUDA graphs launched.
    capturing, setting_up: shares of the steps' time in which CUDA graphs were captured (from the first capture to the
    last where none is launched), and in which a GPU waited for memory, code or its own start. images: whether operators
    work on images. stacks: whether Python's functions are recorded. is_blind: whether the program works on a GPU (it
    launches kernels, or runs operators that only a GPU has) and no kernel is recorded. accelerator: see `Trace`; ""
    where kernels of a GPU are recorded. work: "kernel", or "operator" where no kernel is recorded; count: how many of
    them. busy: the share of the steps' time that they fill. recorded: the share of the operators that the trace holds;
    1.0 unless it is a sample of them. unusable: one sentence on why no step of the trace stands for the program's, ""
    where they do.
    """

    training: bool | None
    compiled: bool
    fused: bool
    graphed: float
    capturing: float
    setting_up: float
    images: bool
    stacks: bool
    is_blind: bool
    accelerator: str
    work: str
    count: int
    busy: float
    recorded: float
    unusable: str = ""

    @property
    def is_capture(self) -> bool:
        """True where most of the time CUDA graphs are captured, or half of that and none is launched."""
        return self.capturing >= (MOSTLY if self.graphed else MOSTLY / 2)

    @property
    def is_startup(self) -> bool:
        """True where most of the time the GPU is being set up: allocating, loading code, starting."""
        return self.setting_up >= MOSTLY and not self.is_capture

    @property
    def is_fragment(self) -> bool:
        """True for so little work that nobody can tell what the rest of the time is."""
        return self.count < FEWEST and self.busy < WORKING

    @property
    def has_steps(self) -> bool:
        """False where the trace says nothing about the steps of a program that has warmed up."""
        return not self.why_no_steps

    @property
    def why_no_steps(self) -> str:
        """One sentence on why the trace allows no advice, "" where it does."""
        if self.is_capture:
            return (
                f"a CUDA graph is captured here, for {self.capturing:.0%} of the time: its kernels run when it is "
                "launched, so trace launches of it instead"
            )
        if self.accelerator:
            return (
                f"the work runs on an accelerator ({self.accelerator}) whose events are not read here: all times are "
                "those of the CPU beside it"
            )
        if self.is_blind:
            return (
                "the program works on a GPU, but no kernel is recorded, so the times are those of the CPU, of launches "
                "and of waits: record with ProfilerActivity.CUDA, and with no other profiler on that GPU"
            )
        if self.unusable:
            return self.unusable
        if self.is_startup:
            return (
                f"a start-up, not a step: {self.setting_up:.0%} of the time goes into allocating GPU memory, loading "
                "code and starting the GPU; trace after a warm-up"
            )
        if self.is_fragment:
            share = f"{self.busy:.1%}" if self.busy >= 0.001 else "less than 0.1%"
            work = f"{self.count} {self.work}s fill {share} of the time"
            if self.count < 2:
                work = f"one {self.work} fills {share} of the time" if self.count else f"no {self.work} is recorded"
            return f"{work}: too little to advise on; trace whole steps of a program"
        if self.recorded < 1:
            return (
                f"events are missing: by the numbers of its operators, about one of {1 / self.recorded:.0f} is in this "
                "trace. Kernels can be compared with one another; waits and gains cannot be told"
            )
        return ""


def workload(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> Workload:
    """The `Workload` of a trace. idle: the `Idle` of each of its GPUs."""
    operators, kernels = trace.operators, trace.kernels
    total = max(float(steps.duration.sum()), 1e-9)
    own = operators.where(~trace.named(operators, is_step))
    working = float(own.cover().within(steps.start, steps.end).sum()) / total
    if idle:
        working = 1 - float(np.mean([gpu.total_us for gpu in idle])) / total
    setting_up = np.mean([gpu.causes_us["setup"] for gpu in idle]) / total if idle else 0.0
    graphed = float(graph_launched(trace, kernels).mean()) if len(kernels) else 0.0
    captured = captures(trace)
    fused = trace.has_name(_COMPILED_KERNELS.search, kernels)
    if len(captured.start) and not graphed:  # what runs between captures prepares the next one
        captured = Cover(captured.start[:1], captured.end[-1:])
    return Workload(
        training=_training(trace),
        compiled=fused or trace.has_name(COMPILED.search, operators, trace.annotations),
        fused=fused,
        graphed=graphed,
        capturing=float(captured.within(steps.start, steps.end).sum()) / total,
        setting_up=float(setting_up),
        images=trace.has_name(_IMAGES.search, operators)
        or (trace.has_name(_LIKELY_IMAGES.search, operators) and not trace.has_name(_NO_IMAGES.search, operators)),
        stacks=len(trace.python) > 0,
        is_blind=not len(kernels)
        and (
            trace.has_name(_LAUNCH.search, trace.runtime)
            or trace.has_name(_ON_GPU.search, operators, trace.annotations)
        ),
        accelerator="" if len(kernels) else trace.accelerator,
        work="kernel" if len(kernels) else "operator",
        count=len(kernels) or len(own),
        busy=working,
        recorded=_recorded(operators.external),
        unusable=_unusable(steps),
    )


def _unusable(steps: Steps) -> str:
    """One sentence on steps that stand for no others; steps: the typical ones."""
    if not steps.whole:
        return (
            "the trace holds no whole step: what it marks was not over when the profiler stopped. Record again, and "
            "stop the profiler only after profiler.step() has ended each step of its schedule"
        )
    if is_undecided(steps):
        first, second = (time_text(us) for us in steps.duration.tolist())
        return (
            f"two steps of very different length, {first} and {second}, and nothing in the trace tells which is the "
            "usual one: trace more steps"
        )
    return ""


def _recorded(ids: np.ndarray) -> float:
    """The share of the operators that a trace holds, by their ids, which the profiler counts up by one.

    1.0 unless most operators are not followed by the next two: some are not in any trace, as other events have ids too.
    """
    apart = np.diff(distinct(ids[ids > 0]))
    if len(apart) < ENOUGH or (apart <= NEAR).mean() >= 0.5:
        return 1.0
    return float(1 / apart.mean())


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
    if trace.has_name(_TRAINING.search, trace.operators, trace.annotations) or trace.has_name(
        _TRAINING_KERNELS.search, trace.kernels
    ):
        return True
    return False if trace.has_name(_COMPUTING.search, trace.operators) else None
