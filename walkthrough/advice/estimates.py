"""Gains by replaying the trace: of each piece of advice, of several together, of what a finding is about."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from walkthrough.advice.advice import BIGGER_BATCH, WORTHWHILE, Advice, bounded
from walkthrough.advice.changes import FUSE_ATTENTION, Changes
from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.advice.findings.kernels import attention, fused_away
from walkthrough.advice.replay import MAX_ERROR, Change, Replay
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernels import TensorCores
from walkthrough.trace.units import time_text

MOST_COMBINED = 3
CANDIDATES = 2  # to combine with what was combined already, those of the largest costs
ADDED = 1.05  # times faster with than without: less says nothing new
NOTICEABLE = 1 + MAX_ERROR  # times faster: less than that may be nothing,
BOUNDED = 1.1  # unless more could become possible after other changes: the bound, times faster
OTHER = 1.1  # times faster with both of `SAME` than with one: less is the same gain twice
FAR = 1.2  # times faster: an estimate so far from its bound, or from the time it names, deserves a reason
SAME = ("13_compile", "15_cuda_graphs")  # both are against waits for launches


class Combination(Struct, frozen=True):
    """Several pieces of advice followed together. titles: theirs. estimated_gain: see `Advice`."""

    titles: list[str]
    estimated_gain: float


class Estimates:
    """Replays one trace for its advice and findings.

    typical: a mask over all steps, those whose time counts. error: of the replay, see `Replay.error`.
    """

    def __init__(self, look: Look, tensor_cores: TensorCores, typical: np.ndarray) -> None:
        self._look = look
        self._changes = Changes(look, tensor_cores)
        self._replay = Replay(look.trace, look.all_steps, typical)
        self.error: float = self._replay.error

    def advice(self, costs: Iterable[Advice]) -> list[Advice]:
        """The same advice with estimated gains, where the replay can tell, and for attention; of none, none."""
        all_costs = [self._with_chains(cost) for cost in costs]
        return [self._estimated(cost) for cost in (*all_costs, self._fused_attention())] if all_costs else []

    def findings(self, found: Iterable[Finding], advice: Iterable[Advice]) -> list[Finding]:
        """The same findings with estimated gains, where the replay can tell: of the `advice` to do the same, if any."""
        advised = {_key(item): item.estimated_gain for item in advice}
        findings = []
        for item in found:
            gain = advised.get(item.advice) if item.advice else None
            change = self._changes[item.advice] if item.advice else item.change
            if gain is None and change:
                gain = self._replay.gain(change)
            findings.append(replace(item, estimated_gain=gain))
        return findings

    def worth_following(self, advice: Sequence[Advice]) -> tuple[list[Advice], list[Combination]]:
        """The ranked advice without what adds nothing to the rest, and the first pieces of it together.

        Nothing add those that gain nothing, alone or together with others, nor could, and the second one of `SAME`
        where both together gain little more than the first, which then names it.
        """
        same = [item for item in advice if item.step in SAME and item.estimated_gain is not None]
        instead = ""
        if len(same) == len(SAME) and self._gain(*same) < (same[0].estimated_gain or 0.0) * OTHER:
            advice = [item for item in advice if item is not same[1]]
            instead = _instead(*same)
        combined = self._combined(advice)
        together = {title for combination in combined for title in combination.titles}
        kept = [item for item in advice if _is_noticeable(item) or item.title in together]
        reasons = [self._reason(item) + (instead if item in same else "") for item in kept]
        return [replace(item, why=item.why + why) for item, why in zip(kept, reasons, strict=True)], combined

    def _reason(self, item: Advice) -> str:
        """Why an estimate is far from its cost, beyond it or below its bound, to be added to the advice; else ""."""
        gain, bound = item.estimated_gain, item.predicted_gain
        if gain is None:
            return ""
        is_beyond = bound is None and gain * (1 - item.share_of_step) >= FAR
        if not is_beyond and (bound is None or gain * FAR > bound):
            return ""
        if item.step == BIGGER_BATCH:
            return "; estimated for twice the batch, for which there are half as many launches per sample"
        if is_beyond:
            return "; it gains more than that time, since the CPU then runs ahead of the GPU"
        change, steps = self._changes[_key(item)], self._look.steps
        if self._gain_of(replace(change, at_least=None)) >= gain * FAR:
            return "; what is overlapped still takes its time, and no step takes less"
        without_cpu = Change(cpu=[(Cover(steps.cpu_start, steps.cpu_end), 0.0)])
        if self._gain_of(change | without_cpu) >= gain * FAR:
            return "; without that cost the CPU bounds the step"
        return ""

    def _combined(self, advice: Sequence[Advice]) -> list[Combination]:
        """The first piece of the ranked advice with that which then gains the most, and both with a third.

        What bounds a step after the first change is often not the second in rank: a GPU that no longer waits for the
        CPU gains from faster kernels. Only changes that leave the training as it is, so not a bigger batch.
        """
        advice = [item for item in advice if item.step != BIGGER_BATCH]
        if not advice or (advice[0].estimated_gain or 0.0) < ADDED:
            return []
        taken, gain = [advice[0]], advice[0].estimated_gain or 1.0
        left = sorted(advice[1:], key=lambda item: -item.share_of_step)
        left = [item for item in left if item.estimated_gain is not None]
        combinations = []
        while left and len(taken) < MOST_COMBINED:
            gains = [self._gain(*taken, item) for item in left[:CANDIDATES]]
            best = int(np.argmax(gains))
            if gains[best] < gain * ADDED:
                break
            taken, gain = [*taken, left.pop(best)], gains[best]
            in_order = [item.title for item in advice if item in taken]
            combinations.append(Combination(in_order, gain))
        return combinations

    def _gain(self, *advice: Advice) -> float:
        """Of several pieces of advice together; 0.0 where the replay cannot tell."""
        change = reduce(or_, (self._changes[_key(item)] for item in advice))
        return self._gain_of(change)

    def _gain_of(self, change: Change) -> float:
        """Of a change; 0.0 where the replay cannot tell."""
        return self._replay.gain(change) or 0.0

    def _fused_attention(self) -> Advice:
        """In place of attention in parts; the time between its products goes, at least."""
        us = self._look.us_per_step(self._look.once(attention)[1])
        why = f"{time_text(us)} of a step are softmax and elementwise kernels between the two products of attention"
        how = "scaled_dot_product_attention is one kernel, which does not store the matrix of scores"
        share = self._look.share_of_steps(us)
        return bounded(None, FUSE_ATTENTION, f"{why}: {how}", share)

    def _with_chains(self, cost: Advice) -> Advice:
        """The advice to compile, also for the kernels that compiled code fuses into others."""
        if cost.step != "13_compile" or cost.predicted_gain == 1.0:
            return cost
        us = self._look.us_per_step(self._look.once(fused_away))
        share = self._look.share_of_steps(us)
        if share < WORTHWHILE:
            return cost
        why = f"{time_text(us)} of a step are kernels that compiled code fuses with those beside them"
        if cost.share_of_step >= WORTHWHILE:
            why = f"{why}, and {cost.why}"
        return bounded(cost.step, cost.title, why, cost.share_of_step + share)

    def _estimated(self, cost: Advice) -> Advice:
        """With the gain of a replay. One beyond the bound is that bound or, far beyond it, proves that it is none.

        Less work on the CPU also lets it run ahead, and a bigger batch is more samples.
        """
        if cost.share_of_step < WORTHWHILE or _key(cost) not in self._changes:
            return cost
        gain, bound = self._replay.gain(self._changes[_key(cost)]), cost.predicted_gain
        if gain is not None and bound is not None and gain > bound:
            gain, bound = (bound, bound) if gain <= bound * (1 + MAX_ERROR) else (gain, None)
        return replace(cost, estimated_gain=gain, predicted_gain=bound)


def _is_noticeable(advice: Advice) -> bool:
    """Whether its gain is one, or is unknown, or could be one after other changes."""
    gain = advice.estimated_gain or advice.predicted_gain
    could = advice.predicted_gain or 1 / max(1 - advice.share_of_step, 1e-9)
    return gain is None or gain >= NOTICEABLE or could >= BOUNDED


def _instead(first: Advice, second: Advice) -> str:
    """What the second one of `SAME` gains, where that is much of what the first one does; else ""."""
    gain, other = first.estimated_gain or 1.0, second.estimated_gain or 1.0
    return f"; {second.title} instead: about {other:.2f}x" if other - 1 >= (gain - 1) / 2 > 0 else ""


def _key(advice: Advice) -> str:
    return advice.step or advice.title
