"""The phases of a training step on the CPU's time line: loading, preparing the batch, the model, the optimizer."""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.intervals import Cover
from walkthrough.trace.optimizer import optimizer_calls
from walkthrough.trace.ordered import distinct
from walkthrough.trace.steps import Steps, is_loading, is_step
from walkthrough.trace.tensor_cores import ELIGIBLE, ELIGIBLE_SINCE

COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo")
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
    that is done there. model: from the first convolution, matrix product or compiled code of a step to the end of the
    step. products: convolutions, where it `convolves`, and matrix products. loss: the loss and its derivative.
    optimizer: calls of `Optimizer.step`, without the closures that they wrap (`OptimizerCalls`). per_step: those, and
    `zero_grad`. fused: whether the optimizer is.
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

    products = trace.named(operators, lambda name: name in ELIGIBLE or name in ELIGIBLE_SINCE) & outside
    compiled = trace.named(operators, COMPILED.search) & outside
    starts = _starts(trace, steps)
    step = np.searchsorted(starts, operators.start, "right") - 1
    begin = np.full(len(starts), np.inf)
    first = (products | compiled) & (step >= 0)
    np.minimum.at(begin, step[first], operators.start[first])
    has_model = np.isfinite(begin)
    before = outside & (step >= 0) & has_model[step] & (operators.start < begin[step])
    end = np.append(starts[1:], max(float(steps.end[-1]), float(starts[-1])))

    scaling, shifting = (trace.named(operators, pattern.fullmatch) for pattern in (_SCALING, _SHIFTING))
    preparing = before & trace.named(operators, _CONVERTING.fullmatch)
    calls = optimizer_calls(trace)
    return Phases(
        loading=loading,
        workers=_any(trace, operators.where(waits), "MultiProcessing"),
        converts=bool((inside & scaling).any()),
        converting=_without_pauses(loading, operators.cover(inside)),
        preparing=operators.cover(preparing),
        normalises=bool((before & scaling).any() and (before & shifting).any()),
        resizes=bool((before & trace.named(operators, _RESIZING.match)).any()),
        model=Cover(begin[has_model], end[has_model]),
        products=operators.cover(products),
        convolves=bool((products & trace.named(operators, lambda name: "conv" in name.lower())).any()),
        loss=operators.cover(trace.named(operators, _LOSS.search) & outside),
        optimizer=calls.own,
        per_step=calls.per_step,
        fused=bool(trace.named(operators, _FUSED.fullmatch).any()),
    )


def _starts(trace: Trace, steps: Steps) -> np.ndarray:
    """Where steps begin on the CPU, µs; `Steps.start` may be later, where the GPU is behind."""
    marks = [spans.start[trace.named(spans, is_step)] for spans in (trace.operators, trace.annotations)]
    starts = distinct(np.concatenate(marks))
    return starts if len(starts) else steps.start


def _without_pauses(whole: Cover, working: Cover) -> Cover:
    """`whole` without the gaps in `working` that are longer than twice the mean gap."""
    gaps = working.gaps(whole.start, whole.end)
    length = gaps.end - gaps.start
    long = length > 2 * length.mean() if len(length) else np.zeros(0, bool)
    return Cover(gaps.start[long], gaps.end[long]).gaps(whole.start, whole.end)


def _any(trace: Trace, spans: Spans, text: str) -> bool:
    return any(text in trace.names[number] for number in distinct(spans.name).tolist())
