"""Which time of `Optimizer.step` is the optimizer's own: its mark also wraps a closure, in which the model runs.

LBFGS needs a closure, and PyTorch Lightning passes one to every optimizer.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.intervals import Cover

_BACKWARD = re.compile(r"autograd::engine|Backward\d*$|_backward(?![a-z])")


class OptimizerCalls(Struct, frozen=True):
    """own: when `Optimizer.step` updates parameters. closures: from its begin to the end of its last backward pass.

    Where a closure runs several times, as for LBFGS, what the optimizer does between its runs counts for `closures`.
    per_step: `own`, and `Optimizer.zero_grad`. wrapping: a mask over `Trace.operators`, the marks that wrap a closure.
    """

    own: Cover
    closures: Cover
    per_step: Cover
    wrapping: np.ndarray


def optimizer_calls(trace: Trace) -> OptimizerCalls:
    """The `OptimizerCalls` of a trace: a mark wraps a closure if an operator of a backward pass begins inside it."""
    operators = trace.operators
    steps = trace.named(operators, lambda name: name.startswith("Optimizer.step"))
    zeroing = operators.cover(trace.named(operators, lambda name: name.startswith("Optimizer.")) & ~steps)
    start, end, wrapping = operators.start[steps], operators.end[steps], np.zeros(len(operators), bool)
    backward = operators.where(trace.named(operators, _BACKWARD.search))  # sorted by start, as all spans are
    if not len(backward) or not len(start):
        own = Cover(start, end)
        return OptimizerCalls(own, Cover(), own | zeroing, wrapping)
    last = np.searchsorted(backward.start, end) - 1
    wraps = (last >= 0) & (backward.start[last] >= start)
    begin = np.where(wraps, np.clip(np.maximum.accumulate(backward.end)[last], start, end), start)
    wrapping[steps] = wraps
    closures = Cover(start[wraps], begin[wraps])
    own = closures.gaps(begin, end)
    return OptimizerCalls(own, closures, own | zeroing, wrapping)
