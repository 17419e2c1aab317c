"""A finding, and what the rules for findings look at."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from walkthrough.advice.advice import WORTHWHILE
from walkthrough.advice.replay import Change
from walkthrough.trace.columns import Trace, launched_in, launching_operators
from walkthrough.trace.communication import Communication
from walkthrough.trace.idle import CAUSES, Idle
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import KINDS
from walkthrough.trace.kernels import kind_numbers
from walkthrough.trace.operators import Phases
from walkthrough.trace.outliers import Outlier
from walkthrough.trace.steps import Steps, of_steps
from walkthrough.trace.workload import Nature

T = TypeVar("T")


class Finding(Struct, frozen=True):
    """Something in a trace that an expert would point at.

    id: of its rule. what: what it is. why: the evidence. us_per_step: the time it is about. do: what to do about it.
    change: what doing so would change, for `replay`; None where no trace shows that. advice: the advice to do the same,
    by its step or its title (see `Changes`), whose gain is then the finding's too. estimated_gain: how many times
    faster the steps would be, by a replay with either; None where it cannot tell. when: the times it is about
    (µs since `Trace.origin`), which the board's timeline marks; none for the trace as a whole.
    """

    id: str
    what: str
    why: str
    us_per_step: float
    do: str
    change: Change | None = None
    advice: str | None = None
    estimated_gain: float | None = None
    when: Cover = Cover()

    def as_json(self) -> dict[str, Any]:
        """What `explain --json` and the page show: all but what the gain comes from, and the times."""
        return {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("change", "advice", "when")
        }


class Look:
    """What the rules look at: one trace with what is known of it. Masks and arrays are over `Trace.kernels`.

    steps, idle, communication: without the outlying steps, as for the advice. all_steps: with them.
    """

    def __init__(
        self,
        trace: Trace,
        steps: Steps,
        phases: Phases,
        idle: Sequence[Idle],
        communication: Communication | None,
        nature: Nature,
        outliers: Sequence[Outlier],
        all_steps: Steps,
    ) -> None:
        self.trace, self.steps, self.phases, self.all_steps = trace, steps, phases, all_steps
        self.idle, self.communication, self.nature, self.outliers = idle, communication, nature, outliers
        self.step_count = len(steps.names)
        self._found: dict[Callable[[Look], Any], Any] = {}

    def once(self, compute: "Callable[[Look], T]") -> T:
        """What `compute` finds in this trace; several rules and estimates ask for the same."""
        if compute not in self._found:
            self._found[compute] = compute(self)
        return self._found[compute]

    @cached_property
    def call(self) -> np.ndarray:
        """The index of the call that launched each kernel, -1 for none."""
        return self.trace.kernels.call

    @cached_property
    def operator(self) -> np.ndarray:
        """The index of the operator that launched each kernel, -1 for none."""
        return launching_operators(self.trace, self.call)

    @cached_property
    def kind(self) -> np.ndarray:
        """The kind of each kernel, an index into `KINDS`."""
        return kind_numbers(self.trace)

    @cached_property
    def in_stream(self) -> np.ndarray:
        """The kernels' indices, stream by stream, each in order."""
        return np.lexsort([self.trace.kernels.start, self.trace.kernels.thread])

    @cached_property
    def counted_us(self) -> np.ndarray:
        """µs of each kernel that lie inside the steps; what runs between two of them is in none."""
        kernels = self.trace.kernels
        return Cover(self.steps.start, self.steps.end).within(kernels.start, kernels.end)

    @cached_property
    def in_steps(self) -> np.ndarray:
        """A mask: kernels of the steps, as the tables count them."""
        return of_steps(self.trace, self.steps, self.trace.kernels)

    @property
    def total_us(self) -> float:
        """µs of all steps."""
        return max(float(self.steps.duration.sum()), 1e-9)

    def of_kind(self, *names: str) -> np.ndarray:
        """A mask: kernels of these kinds."""
        return np.isin(self.kind, [KINDS.index(name) for name in names])

    def named(self, pattern: str) -> np.ndarray:
        """A mask: kernels whose names, in lower case, match."""
        return self.trace.named(self.trace.kernels, lambda name: re.search(pattern, name.lower()))

    def of_names(self, test: Callable[[str], object]) -> np.ndarray:
        """A mask: kernels whose names pass a test."""
        return self.trace.named(self.trace.kernels, test)

    def launched_by(self, *names: str) -> np.ndarray:
        """A mask: kernels that an operator of one of these names launched."""
        operators = self.trace.operators
        if not len(operators):
            return np.zeros(len(self.trace.kernels), bool)
        return np.append(self.trace.named(operators, set(names).__contains__), False)[self.operator]

    def launched_in(self, code: Cover) -> np.ndarray:
        """A mask: kernels that `code` (a cover on the CPU) launched."""
        return launched_in(self.trace, self.trace.kernels, code)

    def us_per_step(self, kernels: np.ndarray) -> float:
        """µs per step of the kernels of a mask."""
        return float(self.counted_us[kernels].sum()) / self.step_count

    def per_step(self, kernels: np.ndarray) -> float:
        """How many kernels of a mask a step has."""
        return float((kernels & self.in_steps).sum()) / self.step_count

    def share_of_kernels(self, kernels: np.ndarray) -> float:
        """Of the kernels' time in the steps."""
        total = float(self.counted_us.sum())
        return float(self.counted_us[kernels].sum()) / total if total > 0 else 0.0

    def idle_us_per_step(self, cause: str) -> float:
        """µs per step that a GPU, on average, runs no kernel for this cause."""
        return float(np.mean([gpu.causes_us[cause] for gpu in self.idle])) / self.step_count if self.idle else 0.0

    def while_running(self, kernels: np.ndarray) -> Cover:
        """When the kernels of a mask run inside the steps."""
        return self.trace.kernels.cover(kernels & (self.counted_us > 0))

    def while_idle(self, cause: str, least_us: float = 0.0) -> Cover:
        """When a GPU runs no kernel, for so many µs at least: mostly for this cause, or where it is none's, partly."""
        when, number = Cover(), CAUSES.index(cause)
        for gpu in self.idle:
            partly = (gpu.by_gap[number] > 0) & (gpu.end - gpu.start >= least_us)
            mostly = partly & (gpu.by_gap.argmax(axis=0) == number)
            gaps = mostly if mostly.any() else partly
            when = when | Cover(gpu.start[gaps], gpu.end[gaps])
        return when

    def share_of_steps(self, us_per_step: float) -> float:
        """Of the steps' time, so many µs of each."""
        return us_per_step * self.step_count / self.total_us

    def worthwhile(self, us_per_step: float) -> bool:
        """Whether so many µs per step deserve a line."""
        return self.share_of_steps(us_per_step) >= WORTHWHILE

    def without(self, kernels: np.ndarray) -> Change:
        """The change that the kernels of a mask are gone."""
        return Change(kernels=np.where(kernels, 0.0, 1.0))
