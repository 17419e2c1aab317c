"""Everything that is computed from one trace, each part once and only when it is asked for."""

from functools import cached_property
from pathlib import Path
from typing import Any

from walkthrough.trace import communication, idle, kernels, memory, operators, outliers, reader, steps, workload
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.columns import Trace
from walkthrough.trace.steps import Steps


class of_trace(cached_property):  # used as a decorator
    """A part that no selection of steps changes: the analysis of all steps computes and keeps it for the others."""

    def __get__(self, analysis: "Analysis | None", owner: type | None = None) -> Any:
        return self if analysis is None else super().__get__(analysis.whole, owner)


class Analysis:
    """One trace, and what was computed over `steps` of it.

    `typical` is the same object over the steps without outliers, so `a.idle` and `a.typical.idle` are of all steps and
    of the typical ones. Times in µs; see the functions that compute the parts.
    """

    def __init__(self, trace: Trace, of_steps: Steps | None = None, whole: "Analysis | None" = None) -> None:
        self.trace, self.whole = trace, whole or self
        self.steps = steps.steps(trace) if of_steps is None else of_steps

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
        """Kernels, operators and copies of the whole trace, outside of its steps too."""
        return kernels.tables(self.trace)

    @cached_property
    def tables(self) -> kernels.Tables:
        """Kernels, operators and copies of the steps; of the whole trace where it marks no steps."""
        return kernels.tables(self.trace, self.steps) if self.steps.marked else self.all_tables

    @cached_property
    def operators(self) -> list[operators.Operator]:
        """The operators of the steps with the device work that they launched."""
        return operators.by_operator(self.trace, self.steps)

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
    def workload(self) -> workload.Nature:
        """What the trace is of: training, compiled code, a start-up, …"""
        return workload.nature(self.trace, self.steps, self.idle)


def analyze(path: str | Path | Chunks, details: bool = False) -> Analysis:
    """The `Analysis` of a trace: its path, or its `Chunks`. Raises InputError; see `reader.read`."""
    return Analysis(reader.read(path, details))
