"""Gains by replaying the trace: of each piece of advice, of several together, of what a finding is about."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from common.trace.advice import WORTHWHILE, Advice
from common.trace.changes import Changes
from common.trace.findings.finding import Finding, Look
from common.trace.replay import MAX_ERROR, Replay
from common.trace.tensor_cores import TensorCores

MOST_COMBINED = 3
COMBINABLE = 1.05  # a gain that is worth combining


class Combination(Struct, frozen=True):
    """Several pieces of advice followed together. titles: theirs. estimated_gain: see `Advice`."""

    titles: list[str]
    estimated_gain: float


class Estimates:
    """Replays one trace for its advice and findings.

    typical: a mask over the steps, those whose time counts. error: of the replay, see `Replay.error`.
    """

    def __init__(self, look: Look, tensor_cores: TensorCores, typical: np.ndarray) -> None:
        self._changes = Changes(look, tensor_cores)
        self._replay = Replay(look.trace, look.steps)
        self._typical = typical
        self.error: float = self._replay.error

    def advice(self, costs: Iterable[Advice]) -> list[Advice]:
        """The same advice with estimated gains, where the replay can tell."""
        return [self._estimated(cost) for cost in costs]

    def findings(self, found: Iterable[Finding]) -> list[Finding]:
        """The same findings with estimated gains, where the replay can tell."""
        return [
            replace(item, estimated_gain=self._replay.gain(item.change, self._typical)) if item.change else item
            for item in found
        ]

    def combined(self, advice: Sequence[Advice]) -> list[Combination]:
        """The first two, and the first three, of the ranked advice whose gains are worth it, followed together."""
        worth = [item for item in advice if (item.estimated_gain or 0.0) >= COMBINABLE][:MOST_COMBINED]
        combinations = []
        for count in range(2, len(worth) + 1):
            change = reduce(or_, (self._changes[_key(item)] for item in worth[:count]))
            gain = self._replay.gain(change, self._typical)
            if gain is not None:
                combinations.append(Combination([item.title for item in worth[:count]], gain))
        return combinations

    def _estimated(self, cost: Advice) -> Advice:
        """With the gain of a replay. One beyond the bound is that bound or, far beyond it, proves that it is none.

        Less work on the CPU also lets it run ahead, and a bigger batch is more samples.
        """
        if cost.share_of_step < WORTHWHILE or _key(cost) not in self._changes:
            return cost
        gain, bound = self._replay.gain(self._changes[_key(cost)], self._typical), cost.predicted_gain
        if gain is not None and bound is not None and gain > bound:
            gain, bound = (bound, bound) if gain <= bound * (1 + MAX_ERROR) else (gain, None)
        return replace(cost, estimated_gain=gain, predicted_gain=bound)


def _key(advice: Advice) -> str:
    return advice.step or advice.title
