"""Operators by name, the phases of a step on the CPU, Optimizer.step, and the Python that runs between operators."""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Nesting, Trace, distinct, launching_operators
from walkthrough.trace.communication import gloo_marks
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import is_compiled, is_matrix_work
from walkthrough.trace.steps import (
    COMPILED,
    Passes,
    Steps,
    is_loading,
    is_mark,
    is_optimizer_step,
    is_step,
    of_steps,
    passes,
)

_CONVERTING = re.compile(r"aten::(to|_to_copy|copy|div|true_divide|sub|rsub|mul|add)_?")  # and normalising
_SCALING, _SHIFTING = re.compile("aten::(div|true_divide|mul)_?"), re.compile("aten::(sub|rsub)_?")
_RESIZING = re.compile("aten::_?upsample")
_LOSS = re.compile("(nll|mse)_?loss|cross_entropy|log_?softmax", re.IGNORECASE)
_FUSED = re.compile("aten::_fused_(sgd|adam|adamw|adagrad)_?")


class Phases(Struct, frozen=True):
    """What runs when on the CPU; found by the operators' names and times, whatever their thread.

    loading: the waits for the DataLoader. workers: whether worker processes load. converts: whether tensors are scaled
    and shifted inside `loading`, as for normalised images in float32. converting: operators there, and Python between
    them, but not the pauses longer than twice the mean, in which images are decoded and resized.

    preparing: the operators that convert and normalise a batch before the model begins. normalises, resizes: whether
    that is done there. model: from the first operator with a gradient, convolution, matrix product or compiled code of
    a step to the end of the step. products: convolutions, where it `convolves`, and matrix products. loss: the loss and
    its derivative. optimizer, per_step: see `Passes`. fused: whether the optimizer is.
    """

    loading: Cover
    workers: bool
    converts: bool
    converting: Cover
    preparing: Cover
    normalises: bool
    resizes: bool
    model: Cover
    products: Cover
    convolves: bool
    loss: Cover
    optimizer: Cover
    per_step: Cover
    fused: bool


def phases(trace: Trace, steps: Steps) -> Phases:
    """The `Phases` of a trace."""
    operators = trace.operators
    waits = trace.named(operators, is_loading)
    loading = operators.cover(waits)
    inside = loading.holds(operators.start) & ~waits
    outside = ~inside & ~waits

    products = trace.named(operators, is_matrix_work) & outside
    compiled = trace.named(operators, COMPILED.search) & outside
    training = passes(trace)
    computing = np.flatnonzero((products | compiled) & ~training.own.holds(operators.start))
    begins = np.sort(np.concatenate([operators.start[computing], training.training.start]))
    starts = distinct(trace.spans(is_step, operators, trace.annotations).start)
    starts = starts if len(starts) else steps.cpu_start  # `Steps.start` may be later, where the GPU is behind
    begin = np.append(begins, np.inf)[np.searchsorted(begins, starts)]
    end = np.append(starts[1:], max(float(steps.end[-1]), float(starts[-1])))
    has_model = begin < np.append(starts[1:], np.inf)
    before = outside & _until_the_model(training, loading, starts, begins).holds(operators.start)

    scaling, shifting = (trace.named(operators, pattern.fullmatch) for pattern in (_SCALING, _SHIFTING))
    preparing = before & trace.named(operators, _CONVERTING.fullmatch)
    if len(training.training.start):  # what is changed in place where no gradient may be made are weights or buffers
        in_place = trace.named(operators, lambda name: name.endswith("_"))
        preparing &= ~in_place | operators.cover(operators.sequence >= 0).holds(operators.start)
    # Compiled code, whose kernels name the operators in them, is the model's.
    loss = trace.named(operators, lambda name: _LOSS.search(name) and not is_compiled(name))
    gaps = operators.cover(inside).gaps(loading.start, loading.end)
    length = gaps.end - gaps.start
    long = length > 2 * length.sum() / max(len(length), 1)
    return Phases(
        loading=loading,
        workers=trace.has_name(lambda name: "MultiProcessing" in name, operators.where(waits)),
        converts=bool((inside & scaling).any()),
        converting=Cover(gaps.start[long], gaps.end[long]).gaps(loading.start, loading.end),
        preparing=operators.cover(preparing),
        normalises=bool((before & scaling).any() and (before & shifting).any()),
        resizes=bool((before & trace.named(operators, _RESIZING.match)).any()),
        model=Cover(begin[has_model], end[has_model]),
        products=operators.cover(products),
        convolves=bool((products & trace.named(operators, lambda name: "conv" in name.lower())).any()),
        loss=operators.cover(loss & outside),
        optimizer=training.own,
        per_step=training.per_step,
        fused=trace.has_name(_FUSED.fullmatch, operators),
    )


def _until_the_model(training: Passes, loading: Cover, starts: np.ndarray, begins: np.ndarray) -> Cover:
    """When a batch may be prepared: from the last begin of a step, or end of a wait for a batch, a pass or an update,
    until the model begins. begins: of what it computes.
    """
    edges = np.sort(np.concatenate([starts, loading.end, training.training.end, training.own.end]))
    edges = edges[~training.training.holds(edges)]
    at = np.searchsorted(begins, edges)
    begin, following = np.append(begins, -np.inf)[at], np.append(edges[1:], np.inf)
    return training.per_step.gaps(edges, np.where(begin <= following, begin, edges))


PAUSE = 200.0  # µs: to call an operator takes far less, also while stacks are recorded
_MODULE = re.compile(r"\(\d+\): <module>$")  # its line is that at which recording began
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


def between_operators(
    trace: Trace, start: np.ndarray, end: np.ndarray, busy: Cover | None = None, loading: bool = False
) -> Cover:
    """When, in the intervals [start, end), no operator, no call and no collective of gloo runs: Python, most likely.

    busy: further times that do not count. loading: whether waits for the DataLoader count: Python of the loader's.
    """
    operators = trace.operators
    idle = trace.named(operators, lambda name: is_mark(name) or (loading and is_loading(name)))
    working = operators.cover(~idle) | trace.runtime.cover() | gloo_marks(trace).cover()
    return (working | busy if busy else working).gaps(start, end)


def pauses(between: Cover) -> Cover:
    """Those times between operators that are longer than calling the next operator explains."""
    long = between.end - between.start >= PAUSE
    return Cover(between.start[long], between.end[long])


def stepping_thread(trace: Trace) -> int:
    """The thread that marks the steps (see `Marks`), else the one with the most operators.

    An index into `Trace.threads`.
    """
    for test in (is_step, is_optimizer_step, is_loading):
        for spans in (trace.annotations, trace.operators):
            marks = spans.thread[trace.named(spans, test)]
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
    return [(plain_name(name), us) for name, us in trace.longest(functions.name[innermost], end - start)]


OUTSIDE = "outside of any operator"


class Operator(Struct, frozen=True):
    """Operators of one name. count: how many; us: on the CPU without the operators inside them.

    device_us: of the kernels that they launched themselves, no operator inside them.
    """

    name: str
    count: int
    us: float
    device_us: float


def by_operator(trace: Trace, steps: Steps) -> list[Operator]:
    """The operators of the steps, the longest on the GPU first, then the longest on the CPU.

    To a step belong the operators that begin while the CPU runs it, and the kernels that it called. Kernels that no
    recorded operator launched have a row of their own, `OUTSIDE`.
    """
    operators, names = trace.operators, len(trace.names)
    kept = ~trace.named(operators, lambda name: is_step(name) or is_loading(name))
    kept = operators.where(kept & ~passes(trace).wrapping)  # the time of a mark around a closure is the model's
    own = Cover(steps.cpu_start, steps.cpu_end).holds(kept.start) if steps.marked else np.ones(len(kept), bool)
    count = np.bincount(kept.name[own], minlength=names)
    us = np.bincount(kept.name[own], Nesting(kept).own_time()[own], names)
    device_us, outside_us = np.zeros(names), 0.0
    if len(trace.kernels):
        mask = of_steps(trace, steps, trace.kernels) if steps.marked else np.ones(len(trace.kernels), bool)
        kernels = trace.kernels.where(mask)
        operator = launching_operators(trace, kernels.call)
        known = operator >= 0
        device_us = np.bincount(operators.name[operator[known]], weights=kernels.duration[known], minlength=names)
        outside_us = float(kernels.duration[~known].sum())
    rows = [
        Operator(trace.names[at], int(count[at]), float(us[at]), float(device_us[at]))
        for at in np.flatnonzero((count > 0) | (device_us > 0)).tolist()
    ]
    if outside_us > 0:
        rows.append(Operator(OUTSIDE, 0, 0.0, outside_us))
    return sorted(rows, key=lambda row: (-row.device_us, -row.us, row.name))
