"""Everything that is computed from one trace, each part once and only when it is asked for; and what the trace is of.

Advice asks the `Workload`, so that none is given for what the program does not do, or does already.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from walkthrough.trace import communication, idle, kernels, memory, operators, outliers, reader, steps
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.columns import Trace, distinct, graph_launched, launched_in, launching_operators, places
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import KINDS, is_compiled
from walkthrough.trace.operators import pauses
from walkthrough.trace.outliers import is_undecided
from walkthrough.trace.steps import (
    COMPILED,
    Steps,
    is_backward,
    is_loading,
    is_mark,
    is_optimizer_step,
    is_step,
    passes,
)

FEWEST = 10  # kernels, or operators: one training step of a single linear layer has more
WORKING = 0.05  # of the time: those that fill so much are evidence, however few they are
NEAR = 2  # to the next operator by its number: most are nearer in whole traces, few in a sample
ENOUGH = 100  # operators, to tell that
MOSTLY = 0.5  # of the steps' time: a trace with more capturing or setting up than that is of nothing else
_COMPUTING = re.compile("aten::")
_TRAINING_KERNELS = re.compile(r"backward|wgrad|flash_bwd|adam", re.IGNORECASE)  # dgrad: transposed, too
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
    cannot tell. compiled: whether code of torch.compile runs, the optimizer's aside. fused: whether Inductor's Triton
    kernels run, which other backends of torch.compile do not have. graphed: the share of the kernels, by their count,
    that CUDA graphs launched.
    capturing, setting_up: shares of the steps' time in which CUDA graphs were captured (from the first capture to the
    last where none is launched), and in which a GPU waited for memory, code or its own start. images: whether operators
    work on images. stacks: whether Python's functions are recorded. is_blind: whether the program works on a GPU (it
    launches kernels, or runs operators that only a GPU has) and no work of a GPU is recorded. accelerator: see `Trace`;
    "" where work of a GPU is recorded. work: "kernel", without kernels "memory operation" (copies and sets), without
    either "operator"; count: how many of them. busy: the share of the steps' time that they fill; operating: that in
    which operators run for long without a call of the runtime. recorded: the share of the operators that the trace
    holds; 1.0 unless it is a sample of them. unusable: whether no step of the trace stands for the program's: none is
    whole, or two of very different length are all there are.
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
    operating: float
    unusable: bool = False

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
        return self.count < FEWEST and self.busy < WORKING and self.operating < MOSTLY

    @property
    def has_steps(self) -> bool:
        """False where the trace says nothing about the steps of a program that has warmed up."""
        no_step = self.is_capture or self.accelerator or self.is_blind or self.unusable or self.is_startup
        return not no_step and not self.is_fragment and self.recorded == 1


class of_trace(cached_property):  # used as a decorator
    """A part that no selection of steps changes: the analysis of all steps computes and keeps it for the others."""

    def __get__(self, analysis: "Analysis | None", owner: type | None = None) -> Any:
        return self if analysis is None else super().__get__(analysis.whole, owner)


class Analysis:
    """One trace, and what was computed over `steps` of it.

    `typical` is the same object over the steps without outliers, so `a.idle` and `a.typical.idle` are of all steps and
    of the typical ones. Times in µs; see the functions that compute the parts. Below those are questions that rules
    about costs ask: their masks and arrays are over `Trace.kernels`.
    """

    def __init__(self, trace: Trace, of_steps: Steps | None = None, whole: "Analysis | None" = None) -> None:
        self.trace, self.whole = trace, whole or self
        self.steps = outliers.with_reasons(trace, steps.steps(trace)) if of_steps is None else of_steps

    @cached_property
    def typical(self) -> "Analysis":
        """The analysis of the steps without outliers; this one where there is none."""
        usual = outliers.typical(self.steps)
        return self if usual is self.steps else Analysis(self.trace, usual, self.whole)

    # Of the trace, whatever the steps. Arrays are of its kernels: the index of the operator that launched each, -1 for
    # none; its kind, an index into `KINDS`; all of them stream by stream, each in order.
    outliers = of_trace(lambda a: outliers.outliers(a.trace, a.steps, a.idle))
    phases = of_trace(lambda a: operators.phases(a.trace, a.steps))
    memory = of_trace(lambda a: memory.memory(a.trace))
    tensor_cores = of_trace(lambda a: kernels.tensor_cores(a.trace))
    all_tables = of_trace(lambda a: kernels.tables(a.trace))
    launching_operator = of_trace(lambda a: launching_operators(a.trace, a.trace.kernels.call))
    kind_number = of_trace(lambda a: kernels.kind_numbers(a.trace))
    in_stream_order = of_trace(lambda a: np.lexsort([a.trace.kernels.start, a.trace.kernels.thread]))

    # Of the steps.
    idle = cached_property(lambda a: [idle.idle(a.trace, a.steps, gpu.id) for gpu in a.gpus])
    operators = cached_property(lambda a: operators.by_operator(a.trace, a.steps))
    communication = cached_property(lambda a: communication.communication(a.trace, a.steps))
    parts_us = cached_property(lambda a: communication.parts_us(a.trace, a.steps))
    kinds_us = cached_property(lambda a: kernels.kinds_us(a.trace, a.steps))
    step_bytes = cached_property(lambda a: memory.step_bytes(a.trace, a.steps))
    workload = cached_property(lambda a: _workload(a.trace, a.steps, a.idle))
    in_steps = cached_property(lambda a: steps.of_steps(a.trace, a.steps, a.trace.kernels))  # as the tables count

    @of_trace
    def gpus(self) -> list[kernels.Gpu]:
        """The GPUs, by number, over all steps."""
        begin, end = float(self.steps.start[0]), float(self.steps.end[-1])
        shares = self.tensor_cores.share
        return [kernels.gpu(self.trace, number, begin, end, shares) for number in kernels.gpu_ids(self.trace)]

    @cached_property
    def tables(self) -> kernels.Tables:
        """Kernels and copies of the steps; of the whole trace where it marks no steps."""
        return kernels.tables(self.trace, self.steps) if self.steps.marked else self.all_tables

    @cached_property
    def between_operators(self) -> Cover:
        """When, in the steps, neither a device works nor the CPU, but for Python; see `operators.between_operators`.

        As the role "other" of the breakdown.
        """
        busy = self.trace.device_work.cover() | passes(self.trace).per_step
        return operators.between_operators(self.trace, self.steps.start, self.steps.end, busy)

    @property
    def on_gpu(self) -> bool:
        """Whether work of a GPU is recorded: kernels, copies or sets."""
        return len(self.trace.device_work) > 0

    @property
    def step_count(self) -> int:
        """How many steps there are."""
        return len(self.steps.names)

    @property
    def total_us(self) -> float:
        """µs of all steps."""
        return max(float(self.steps.duration.sum()), 1e-9)

    @cached_property
    def us_in_steps(self) -> np.ndarray:
        """µs of each kernel that lie inside the steps; what runs between two of them is in none."""
        return Cover(self.steps.start, self.steps.end).within(self.trace.kernels.start, self.trace.kernels.end)

    def of_kind(self, *names: str) -> np.ndarray:
        """A mask: kernels of these kinds."""
        return np.isin(self.kind_number, [KINDS.index(name) for name in names])

    def named(self, test: str | Callable[[str], object]) -> np.ndarray:
        """A mask: kernels whose names pass a test, or match a pattern when in lower case."""
        if isinstance(test, str):
            search = re.compile(test).search
            return self.trace.named(self.trace.kernels, lambda name: search(name.lower()))
        return self.trace.named(self.trace.kernels, test)

    def launched_by(self, *names: str) -> np.ndarray:
        """A mask: kernels that an operator of one of these names launched."""
        by_name = self.trace.named(self.trace.operators, set(names).__contains__)
        return np.append(by_name, False)[self.launching_operator]

    def launched_in(self, code: Cover) -> np.ndarray:
        """A mask: kernels that `code` (a cover on the CPU) launched."""
        return launched_in(self.trace, self.trace.kernels, code)

    def us_per_step(self, kernels: np.ndarray) -> float:
        """µs per step of the kernels of a mask."""
        return float(self.us_in_steps[kernels].sum()) / self.step_count

    def count_per_step(self, kernels: np.ndarray) -> float:
        """How many kernels of a mask a step has."""
        return float((kernels & self.in_steps).sum()) / self.step_count

    def share_of_kernels(self, kernels: np.ndarray) -> float:
        """Of the kernels' time in the steps, that of a mask."""
        total = float(self.us_in_steps.sum())
        return float(self.us_in_steps[kernels].sum()) / total if total > 0 else 0.0

    def share_of_steps(self, us_per_step: float) -> float:
        """Of the steps' time, so many µs of each."""
        return us_per_step * self.step_count / self.total_us

    def share_within(self, cover: Cover) -> float:
        """The share of the steps' time that a cover fills."""
        return float(cover.within(self.steps.start, self.steps.end).sum()) / self.total_us

    def idle_share(self, cause: str) -> float:
        """The share of the steps' time in which a GPU, on average, runs no kernel for this cause."""
        return float(np.mean([gpu.causes_us[cause] for gpu in self.idle]) / self.total_us) if self.idle else 0.0

    def while_running(self, kernels: np.ndarray) -> Cover:
        """When the kernels of a mask run inside the steps."""
        return self.trace.kernels.cover(kernels & (self.us_in_steps > 0))

    def while_idle(self, cause: str, least_us: float = 0.0) -> Cover:
        """When a GPU runs no kernel, for so many µs at least: mostly for this cause, or where it is none's, partly."""
        when, number = Cover(), idle.CAUSES.index(cause)
        for gpu in self.idle:
            partly = (gpu.by_gap[number] > 0) & (gpu.end - gpu.start >= least_us)
            mostly = partly & (gpu.by_gap.argmax(axis=0) == number)
            gaps = mostly if mostly.any() else partly
            when = when | Cover(gpu.start[gaps], gpu.end[gaps])
        return when


def analyze(path: str | Path | Chunks) -> Analysis:
    """The `Analysis` of a trace: its path, or its `Chunks`; of one process. Raises InputError; see `reader.read`."""
    return Analysis(steps.one_process(reader.read(path)))


def _workload(trace: Trace, steps: Steps, idle: Sequence[idle.Idle]) -> Workload:
    """The `Workload` of a trace. idle: the `Idle` of each of its GPUs."""
    operators, kernels = trace.operators, trace.kernels
    total = max(float(steps.duration.sum()), 1e-9)
    work, name = operators.where(~trace.named(operators, is_step)), "operator"
    if len(trace.device_work):
        work, name = (kernels, "kernel") if len(kernels) else (trace.device_work, "memory operation")
    working = float(work.cover().within(steps.start, steps.end).sum()) / total
    if len(kernels) and idle:
        working = 1 - float(np.mean([gpu.total_us for gpu in idle])) / total
    setting_up = np.mean([gpu.causes_us["setup"] for gpu in idle]) / total if idle else 0.0
    graphed = float(graph_launched(trace, kernels).mean()) if len(kernels) else 0.0
    computing = operators.where(~trace.named(operators, lambda name: is_mark(name) or is_loading(name)))
    captured = _captures(trace)
    update = passes(trace).own
    fused = trace.has_name(is_compiled, kernels.where(~launched_in(trace, kernels, update)))
    running = [spans.where(~update.holds(spans.start)) for spans in (operators, trace.annotations)]
    if len(captured.start) and not graphed:  # what runs between captures prepares the next one
        captured = Cover(captured.start[:1], captured.end[-1:])
    return Workload(
        training=_trains(trace),
        compiled=fused or trace.has_name(COMPILED.search, *running),
        fused=fused,
        graphed=graphed,
        capturing=float(captured.within(steps.start, steps.end).sum()) / total,
        setting_up=float(setting_up),
        images=trace.has_name(_IMAGES.search, operators)
        or (trace.has_name(_LIKELY_IMAGES.search, operators) and not trace.has_name(_NO_IMAGES.search, operators)),
        stacks=len(trace.python) > 0,
        is_blind=not len(trace.device_work)
        and (
            trace.has_name(_LAUNCH.search, trace.runtime)
            or trace.has_name(_ON_GPU.search, operators, trace.annotations)
        ),
        accelerator="" if len(trace.device_work) else trace.accelerator,
        work=name,
        count=len(work),
        busy=working,
        recorded=_recorded(operators.external),
        operating=(pauses(trace.runtime.cover().gaps(steps.start, steps.end)) & computing.cover()).total / total,
        unusable=not steps.whole or is_undecided(steps),
    )


def _recorded(ids: np.ndarray) -> float:
    """The share of the operators that a trace holds, by their ids, which the profiler counts up by one.

    1.0 unless most operators are not followed by the next two: some are not in any trace, as other events have ids too.
    """
    apart = np.diff(distinct(ids[ids > 0]))
    if len(apart) < ENOUGH or (apart <= NEAR).mean() >= 0.5:
        return 1.0
    return float(1 / apart.mean())


def _captures(trace: Trace) -> Cover:
    """When CUDA graphs were captured: from each call that begins a capture to the next one on its thread that ends."""
    begins, ends = (
        trace.spans(lambda name, edge=edge: f"{edge}Capture" in name, trace.runtime) for edge in ("Begin", "End")
    )
    start, end, ending = [], [], places(ends.thread)
    for thread, here in places(begins.thread).items():
        opened, closed = begins.start[here], ends.end[ending.get(thread, [])]
        following = np.searchsorted(closed, opened)
        start.append(opened[following < len(closed)])
        end.append(closed[following[following < len(closed)]])
    return Cover(np.concatenate(start), np.concatenate(end)) if start else Cover()


def _trains(trace: Trace) -> bool | None:
    marks = (trace.operators, trace.annotations)
    if trace.has_name(lambda name: is_backward(name) or is_optimizer_step(name), *marks):
        return True
    if trace.has_name(_TRAINING_KERNELS.search, trace.kernels):
        return True
    return False if trace.has_name(_COMPUTING.search, trace.operators) else None
