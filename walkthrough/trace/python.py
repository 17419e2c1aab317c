"""The Python that runs between operators: when, and which functions, where the trace has stacks."""

import re

import numpy as np

from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import marked_collectives
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import Nesting
from walkthrough.trace.optimizer import optimizer_calls
from walkthrough.trace.steps import Steps, is_mark, is_step

PAUSE = 200.0  # µs: to call an operator takes far less, also while stacks are recorded
_MODULE = re.compile(r"\(\d+\): <module>$")  # its line is that at which recording began
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


def between_operators(trace: Trace, steps: Steps) -> Cover:
    """When, in the steps, no operator, call or collective runs and the loop does not wait for its DataLoader.

    As the role "other" of the breakdown on a CPU, and also what closures do inside `Optimizer.step` between operators.
    """
    operators = trace.operators
    working = operators.cover(~trace.named(operators, is_mark)) | trace.runtime.cover() | marked_collectives(trace)
    for spans in (trace.kernels, trace.copies, trace.sets):
        working = working | spans.cover()
    return (working | optimizer_calls(trace).per_step).gaps(steps.start, steps.end)


def pauses(between: Cover) -> Cover:
    """Those times between operators that are longer than calling the next operator explains."""
    long = between.end - between.start >= PAUSE
    return Cover(between.start[long], between.end[long])


def stepping_thread(trace: Trace) -> int:
    """The thread that marks the steps, else the one with the most operators; an index into `Trace.threads`."""
    for spans in (trace.annotations, trace.operators):
        marks = spans.thread[trace.named(spans, is_step)]
        if len(marks):
            return int(np.bincount(marks).argmax())
    return int(np.bincount(trace.operators.thread).argmax()) if len(trace.operators) else 0


def plain_name(name: str) -> str:
    """A function's name without addresses and without the line at which recording began."""
    return _MODULE.sub(": <module>", _ADDRESS.sub("", name))


def innermost_functions(trace: Trace, free: Cover, thread: int) -> list[tuple[str, float]]:
    """(name, µs) of the innermost Python functions during `free`, the longest first; [] without stacks.

    thread: whose functions; where it has none then, those of another.
    """
    python = trace.python
    near = np.flatnonzero(free.within(python.start, python.end) > 0)
    if not len(near):
        return []
    functions = python.where(near)
    thread = thread if (functions.thread == thread).any() else int(functions.thread[0])
    innermost, start, end = Nesting(functions).innermost_during(thread, free)
    times = np.bincount(functions.name[innermost], weights=end - start, minlength=1)
    order = np.argsort(-times, kind="stable").tolist()
    return [(plain_name(trace.names[number]), float(times[number])) for number in order if times[number] > 0]
