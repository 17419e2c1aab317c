"""What some steps do besides training: a new epoch, an evaluation, a checkpoint. By the recording, else by the trace.

A step that begins an epoch asks its DataLoader once more than usual: for the batch that there was none of. A step with
an evaluation has more forward passes than usual, and no more backward passes.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.intervals import Cover
from walkthrough.trace.marks import is_loading
from walkthrough.trace.recording import CHECKPOINT, EVALUATION, NEW_EPOCH

MORE = 1.5  # times the usual: so many products that only a further forward pass explains them
LEAST = 0.1  # of the usual step: what takes less longer needs no explanation
MOST = 0.5  # of what a step takes longer than usual: so much of it explains it
REASONS = (EVALUATION, CHECKPOINT, NEW_EPOCH)
# Of each product one operator; those of attention count beside them.
_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|baddbmm|_convolution|\w*convolution_overrideable|_scaled_dot_product_\w+)")
_BACKWARD = re.compile(r"autograd::engine|Backward\d*$")
_SAVING = re.compile(r"torch[/\\]serialization\.py\(\d+\): save$|torch[/\\]distributed[/\\]checkpoint[/\\].*: \w*save$")


class FirstBatch(Struct, frozen=True):
    """How a step waits for its DataLoader. us: the longest wait, see `first_batch`. workers: whether processes load."""

    us: float
    workers: bool


def reasons(
    trace: Trace, names: list[str], start: np.ndarray, end: np.ndarray, duration: np.ndarray
) -> list[tuple[str, ...]]:
    """For each step those of `REASONS` that the recording names, or that explain most of what it takes longer.

    start, end: of the steps' marks, µs. duration: of the steps, µs.
    """
    recorded: dict[str, set[str]] = {}
    for happening in trace.recording.happenings if trace.recording else ():
        recorded.setdefault(happening.step, set()).add(happening.what)
    found = [recorded.get(name, set()) & set(REASONS) for name in names]
    usual = _usual(duration)
    longer = np.flatnonzero(duration - usual > LEAST * usual).tolist()
    evaluates = _evaluates(trace, start, end) if longer else []
    begins_epoch = _begins_epoch(trace, start, end) if longer else []
    for index in longer:
        excess = float(duration[index]) - usual
        if _saving_us(trace, float(start[index]), float(end[index])) >= MOST * excess:
            found[index].add(CHECKPOINT)
        if evaluates[index]:
            found[index].add(EVALUATION)
        if begins_epoch[index] and not found[index]:
            first = first_batch(trace, float(start[index]), float(end[index]))
            if first.workers or first.us >= MOST * excess:
                found[index].add(NEW_EPOCH)
    return [tuple(reason for reason in REASONS if reason in step) for step in found]


def first_batch(trace: Trace, start: float, end: float) -> FirstBatch:
    """The longest wait for a batch in [start, end), µs.

    Two waits with nothing computed between them are one: a new epoch's is from the call that finds the last one's end
    to the end of the call that returns the first batch. The time between them starts the worker processes.
    """
    waits = _loads(trace)
    waits = waits.where((waits.start >= start) & (waits.start < end))
    if not len(waits):
        return FirstBatch(0.0, False)
    workers = any("MultiProcessing" in trace.names[number] for number in set(waits.name.tolist()))
    computing = np.sort(trace.operators.start[trace.named(trace.operators, _computes)])
    between = np.searchsorted(computing, waits.start[1:]) > np.searchsorted(computing, waits.end[:-1])
    joined = np.where(between, 0.0, waits.end[1:] - waits.start[:-1])
    return FirstBatch(float(max(waits.duration.max(), joined.max(initial=0.0))), workers)


def loading_us(trace: Trace, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """µs that the DataLoader's marks fill of each interval [start, end), float64."""
    return _loads(trace).cover().within(start, end)


def _loads(trace: Trace) -> Spans:
    return trace.operators.where(trace.named(trace.operators, is_loading))


def _computes(name: str) -> bool:
    return bool(_PRODUCT.fullmatch(name) or _BACKWARD.search(name)) or name.startswith("Optimizer.")


def _products(trace: Trace) -> np.ndarray:
    return trace.named(trace.operators, _PRODUCT.fullmatch)


def _counts(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many of the times `at` lie in each interval."""
    at = np.sort(at)
    return np.searchsorted(at, end) - np.searchsorted(at, start)


def _usual(values: np.ndarray) -> float:
    """The median; of an even count, the lower of the two in the middle: of two steps, the one that does less."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _begins_epoch(trace: Trace, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A mask: steps that asked their DataLoader once more than usual."""
    calls = _counts(_loads(trace).start, start, end)
    usual = _usual(calls)
    return (usual > 0) & (calls == usual + 1)


def _evaluates(trace: Trace, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A mask: steps with more forward passes than usual, by their products or else by their batches."""
    operators = trace.operators
    backward = trace.named(operators, _BACKWARD.search)
    passes = _counts(operators.start[backward], start, end)
    usual_passes = _usual(passes)
    if not usual_passes:
        return np.zeros(len(start), bool)
    outside = _products(trace) & ~operators.cover(backward).holds(operators.start)
    forward = _counts(operators.start[outside], start, end)
    more = np.maximum(passes / usual_passes, 1.0) * MORE
    if usual := _usual(forward):
        return forward >= usual * more
    batches = _counts(_loads(trace).start, start, end)
    return batches >= max(_usual(batches), 1.0) * more + 1


def _saving_us(trace: Trace, start: float, end: float) -> float:
    """µs inside [start, end) in which torch saves a file; needs a trace with stacks."""
    python = trace.python
    if not len(python):
        return 0.0
    saving = trace.named(python, _SAVING.search)
    return float(Cover(python.start[saving], python.end[saving]).within(start, end))
