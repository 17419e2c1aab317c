"""Everything that is computed from one trace, each part once and only when it is asked for."""

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from walkthrough.trace import communication, idle, kernels, memory, operators, outliers, reader, steps, workload
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.columns import Trace, launched_in, launching_operators
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import KINDS
from walkthrough.trace.steps import Steps


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

    @of_trace
    def outliers(self) -> list[outliers.Outlier]:
        """The steps that take far longer than the others."""
        return outliers.outliers(self.trace, self.steps, self.idle)

    @of_trace
    def phases(self) -> operators.Phases:
        """What the training loop does when; see `operators.phases`."""
        return operators.phases(self.trace, self.steps)

    @of_trace
    def memory(self) -> list[memory.Memory]:
        """The memory of each device."""
        return memory.memory(self.trace)

    @of_trace
    def tensor_cores(self) -> kernels.TensorCores:
        """How much of the kernels' time uses Tensor Cores."""
        return kernels.tensor_cores(self.trace)

    @of_trace
    def gpus(self) -> list[kernels.Gpu]:
        """The GPUs, by number, over all steps."""
        begin, end = float(self.steps.start[0]), float(self.steps.end[-1])
        shares = self.tensor_cores.share
        return [kernels.gpu(self.trace, number, begin, end, shares) for number in kernels.gpu_ids(self.trace)]

    @of_trace
    def all_tables(self) -> kernels.Tables:
        """Kernels and copies of the whole trace, outside of its steps too."""
        return kernels.tables(self.trace)

    @cached_property
    def tables(self) -> kernels.Tables:
        """Kernels and copies of the steps; of the whole trace where it marks no steps."""
        return kernels.tables(self.trace, self.steps) if self.steps.marked else self.all_tables

    @cached_property
    def operators(self) -> list[operators.Operator]:
        """The operators of the steps with the device work that they launched."""
        return operators.by_operator(self.trace, self.steps)

    @cached_property
    def between_operators(self) -> Cover:
        """When the CPU runs neither an operator nor a call: Python; see `operators.between_operators`."""
        return operators.between_operators(self.trace, self.steps)

    @cached_property
    def idle(self) -> list[idle.Idle]:
        """Why each GPU runs no kernel."""
        return [idle.idle(self.trace, self.steps, gpu.id) for gpu in self.gpus]

    @cached_property
    def communication(self) -> communication.Communication | None:
        """The collectives; None without any."""
        return communication.communication(self.trace, self.steps)

    @cached_property
    def parts_us(self) -> dict[str, float]:
        """The mean step by role, communication apart."""
        return communication.parts_us(self.trace, self.steps)

    @cached_property
    def kinds_us(self) -> dict[str, float]:
        """{kind of kernel: µs per step}."""
        return kernels.kinds_us(self.trace, self.steps) if len(self.trace.kernels) else {}

    @cached_property
    def step_bytes(self) -> float:
        """Bytes that a mean step copies to the device."""
        return memory.step_bytes(self.trace, self.steps)

    @cached_property
    def workload(self) -> workload.Workload:
        """What the trace is of: training, compiled code, a start-up, …"""
        return workload.workload(self.trace, self.steps, self.idle)

    @property
    def step_count(self) -> int:
        """How many steps there are."""
        return len(self.steps.names)

    @property
    def total_us(self) -> float:
        """µs of all steps."""
        return max(float(self.steps.duration.sum()), 1e-9)

    @of_trace
    def launching_operator(self) -> np.ndarray:
        """The index of the operator that launched each kernel, -1 for none."""
        return launching_operators(self.trace, self.trace.kernels.call)

    @of_trace
    def kind_number(self) -> np.ndarray:
        """The kind of each kernel, an index into `KINDS`."""
        return kernels.kind_numbers(self.trace)

    @of_trace
    def in_stream_order(self) -> np.ndarray:
        """The kernels' indices, stream by stream, each in order."""
        return np.lexsort([self.trace.kernels.start, self.trace.kernels.thread])

    @cached_property
    def us_in_steps(self) -> np.ndarray:
        """µs of each kernel that lie inside the steps; what runs between two of them is in none."""
        return Cover(self.steps.start, self.steps.end).within(self.trace.kernels.start, self.trace.kernels.end)

    @cached_property
    def in_steps(self) -> np.ndarray:
        """A mask: kernels of the steps, as the tables count them."""
        return steps.of_steps(self.trace, self.steps, self.trace.kernels)

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

    def idle_us_per_step(self, cause: str) -> float:
        """µs per step that a GPU, on average, runs no kernel for this cause."""
        return float(np.mean([gpu.causes_us[cause] for gpu in self.idle])) / self.step_count if self.idle else 0.0

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
    """The `Analysis` of a trace: its path, or its `Chunks`. Raises InputError; see `reader.read`."""
    return Analysis(reader.read(path))
