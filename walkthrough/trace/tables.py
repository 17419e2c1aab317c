"""What kernels, operators and copies took, by name: over the whole trace, and over its steps."""

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.copies import Copies, copies
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import Nesting
from walkthrough.trace.optimizer import optimizer_calls
from walkthrough.trace.steps import Steps, is_loading, is_step, of_steps
from walkthrough.trace.tensor_cores import uses_tensor_cores


class Kernel(Struct, frozen=True):
    """Kernels of one name: how many, their summed µs, and whether they use Tensor Cores (None: unknown)."""

    name: str
    count: int
    us: float
    tensor_cores: bool | None


class Operator(Struct, frozen=True):
    """Operators of one name: how many, and their summed µs on the CPU without the operators inside them."""

    name: str
    count: int
    us: float


class Tables(Struct, frozen=True):
    """kernels, operators: by name, the longest first; operators only for traces without kernels.

    copies: by direction.
    """

    kernels: list[Kernel]
    operators: list[Operator]
    copies: dict[str, Copies]


def tables(trace: Trace, steps: Steps | None = None) -> Tables:
    """The `Tables` of a whole trace, or of its steps.

    To a step belongs the device work that it called, and the operators that begin while the CPU runs it. A trace that
    marks no steps is one step as a whole.
    """
    if steps is None or not steps.marked:
        in_steps = {"kernels": np.ones(len(trace.kernels), bool), "copies": np.ones(len(trace.copies), bool)}
    else:
        in_steps = {name: of_steps(trace, steps, getattr(trace, name)) for name in ("kernels", "copies")}
    return Tables(
        _kernels(trace, in_steps["kernels"]),
        [] if len(trace.kernels) else _operators(trace, steps),
        copies(trace, in_steps["copies"]),
    )


def _kernels(trace: Trace, mask: np.ndarray) -> list[Kernel]:
    rows = _by_name(trace, trace.kernels.name[mask], trace.kernels.duration[mask])
    return [Kernel(name, count, us, uses_tensor_cores(name)) for name, count, us in rows]


def own_times(trace: Trace, steps: Steps | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The names (int64) of all operators, or of those of the steps, and the µs of each without those inside it.

    Without marks of steps, of waits for a DataLoader, and of an optimizer's calls that wrap a closure.
    """
    kept = ~trace.named(trace.operators, lambda name: is_step(name) or is_loading(name))
    kept &= ~optimizer_calls(trace).wrapping  # their time is the model's, and Python's
    operators = trace.operators.where(kept)
    own_us = Nesting(operators).own_time()
    if steps is None or not steps.marked:
        return operators.name, own_us
    running = Cover(steps.cpu_start, steps.cpu_end).holds(operators.start)
    return operators.name[running], own_us[running]


def _operators(trace: Trace, steps: Steps | None) -> list[Operator]:
    return [Operator(*row) for row in _by_name(trace, *own_times(trace, steps))]


def _by_name(trace: Trace, name: np.ndarray, us: np.ndarray) -> list[tuple[str, int, float]]:
    """(name, count, summed µs), the longest first."""
    times, counts = np.bincount(name, weights=us), np.bincount(name)
    rows = [
        (trace.names[number], int(counts[number]), float(times[number])) for number in np.flatnonzero(counts).tolist()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0]))
