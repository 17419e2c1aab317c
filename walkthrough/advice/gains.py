"""What to do about a trace: its costs, what treating each would gain, which of them to treat, and what stands out.

The predicted gain is Amdahl's bound: how many times faster the mean typical step would be with a cost gone, or hidden
behind other work. The measured gain is at most that, as long as only this cost changes. (A bigger batch changes more:
work that is done once per step, such as the optimizer's, is then done less often per image.) Where more may change than
the trace shows, there is no bound, and the cost's share ranks it. The estimated gain takes into account what else
bounds the step: the trace is replayed for it.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from operator import or_

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from walkthrough.advice.catalogue import BY_ID, COSTS, Advice, Cost
from walkthrough.advice.evidence import WORTHWHILE, Finding
from walkthrough.advice.replay import MAX_ERROR, Change, Replay
from walkthrough.advice.verdict import stalled, verdict
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import is_loading

ALIKE = 1.05  # times faster: no replay tells gains apart that are closer
MOST_COMBINED = 3
CANDIDATES = 2  # to combine with what was combined already, those of the largest costs
ADDED = 1.05  # times faster with than without: less says nothing new
NOTICEABLE = 1 + MAX_ERROR  # times faster: less than that may be nothing,
BOUNDED = 1.1  # unless more could become possible after other changes: the bound, times faster
OTHER = 1.1  # times faster with both of two against launches than with one: less is the same gain twice
FAR = 1.2  # times faster: an estimate so far from its bound, or from the time it names, deserves a reason


class Combination(Struct, frozen=True):
    """Several pieces of advice followed together. titles: theirs. estimated_gain: see `Advice`."""

    titles: list[str]
    estimated_gain: float


class Gap(Struct, frozen=True):
    """A stretch of time. start, end: µs since `Trace.origin`. device: the GPU that waits there, or None."""

    start: float
    end: float
    device: int | None = None


class Advised(Struct, frozen=True):
    """What to do about the typical steps of a trace.

    costs: all that were looked for. advice: those worth treating, the largest gain first. together: pieces of advice
    followed together. findings: what stands out; [] for a trace without a GPU. verdict: one sentence.
    """

    costs: list[Advice]
    advice: list[Advice]
    together: list[Combination]
    findings: list[Finding]
    verdict: str


def advise(analysis: Analysis) -> Advised:
    """What to do about an analysed trace."""
    a = analysis.typical
    costs, found, together = costs_of(a), list[Finding](), list[Combination]()
    if len(a.trace.kernels) and not a.trace.partial and not a.workload.unusable:
        gains = Gains(a)
        costs = [gains.estimated(item) for item in costs]
        found = [gains.of_finding(item, costs) for item in findings(a)]
        worth, together = gains.worth_following(ranked(costs))
    else:
        worth = ranked(costs)
    if stalled(a):
        worth = despite_a_stall(worth)
    return Advised(costs, worth, together, found, verdict(a, worth))


def costs_of(a: Analysis) -> list[Advice]:
    """An `Advice` for every cost of the catalogue; its share is 0 where the trace does not show the cost.

    [] for a partial trace, which proves nothing, and for one of a start-up or of a graph's capture, in which no step of
    a running program is to be seen.
    """
    if a.trace.partial or not a.workload.has_steps:
        return []
    return [advice for cost in COSTS if (advice := cost.advice(a))]


def findings(a: Analysis) -> list[Finding]:
    """All findings of a trace, the longest time first, those about the trace as a whole before all others.

    Only those of a trace that shows no step of a running program: what its kernels do, they do once.
    """
    rules = [(cost.of_trace, cost.finding) for cost in COSTS if cost.finding]
    of_trace = [found for is_of_trace, rule in rules if is_of_trace and (found := rule(a))]
    if not a.workload.has_steps:
        return of_trace
    others = [found for is_of_trace, rule in rules if not is_of_trace and (found := rule(a))]
    return of_trace + sorted(others, key=lambda found: -found.us_per_step)


def ranked(costs: Iterable[Advice]) -> list[Advice]:
    """The advice worth following, the largest gain first: the estimated one, else the bound, else without its share.

    Estimates as good as equal (see `ALIKE`) are in the walkthrough's order, so the simpler and surer comes first: the
    later steps are against launches, which tracing makes slower than they are. Not those of gains that small.
    A bigger batch is ranked by the cost that the trace shows, and after what is alike: its estimate is for twice the
    batch, which gains where the trace shows hardly a cost, but trains something else.
    """
    left = sorted((item for item in costs if item.share_of_step >= WORTHWHILE), key=_remaining)
    result = []
    while left:
        limit = min(ALIKE * _remaining(left[0]), 1 / ALIKE)
        alike = [item for item in left if _remaining(item) <= limit]
        if not alike or any(item.estimated_gain is None for item in alike):
            alike = left[:1]
        result += sorted(alike, key=lambda item: (item.cost.changes_training, item.step or "99"))
        left = left[len(alike) :]
    return result


def _remaining(item: Advice) -> float:
    """The share of the step that is left; see `ranked` on a bigger batch."""
    return max(item.remaining, 1 - item.share_of_step) if item.cost.changes_training else item.remaining


def despite_a_stall(advice: Iterable[Advice]) -> list[Advice]:
    """The advice for a trace whose GPU mostly waits for itself: bounds over what the CPU does say nothing then.

    What a replay estimated stays: it has explained the waits.
    """
    return [item for item in advice if item.estimated_gain or item.cost.shortens_gpu_work]


class Gains:
    """How many times faster the typical steps would be without some of their costs, by replays of the trace."""

    def __init__(self, a: Analysis) -> None:
        self._a = a
        self._changes: dict[str, Change] = {}

    @cached_property
    def replay(self) -> Replay:
        """What each gain is replayed with: all steps, of which the typical ones count."""
        steps = self._a.whole.steps
        return Replay(self._a.trace, steps, ~is_outlier(steps))

    def change(self, cost: Cost) -> Change:
        """What treating a cost that has a change would change."""
        if cost.id not in self._changes:
            assert cost.change
            self._changes[cost.id] = cost.change(self._a)
        return self._changes[cost.id]

    def estimated(self, item: Advice) -> Advice:
        """With the gain of a replay. One beyond the bound is that bound or, far beyond it, proves that it is none.

        Less work on the CPU also lets it run ahead, and a bigger batch is more samples.
        """
        if item.share_of_step < WORTHWHILE or not item.cost.change:
            return item
        gain, bound = self.replay.gain(self.change(item.cost)), item.predicted_gain
        if gain is not None and bound is not None and gain > bound:
            gain, bound = (bound, bound) if gain <= bound * (1 + MAX_ERROR) else (gain, None)
        return replace(item, estimated_gain=gain, predicted_gain=bound)

    def of_finding(self, found: Finding, costs: Iterable[Advice]) -> Finding:
        """The finding with its gain, where the replay can tell: of the cost that is treated by the same, if any."""
        gain = next((item.estimated_gain for item in costs if item.id == found.advice), None)
        change = found.change
        if gain is None and found.advice:
            change = self.change(BY_ID[found.advice])
        if gain is None and change:
            gain = self.replay.gain(change)
        return replace(found, estimated_gain=gain)

    def worth_following(self, advice: Sequence[Advice]) -> tuple[list[Advice], list[Combination]]:
        """The ranked advice without what adds nothing to the rest, and the first pieces of it together.

        Nothing add those that gain nothing, alone or together with others, nor could, and the second one of those
        against launches where both together gain little more than the first, which then names it.
        """
        same = [item for item in advice if item.cost.joins_launches and item.estimated_gain is not None]
        instead = ""
        if len(same) > 1 and self._together(same) < (same[0].estimated_gain or 0.0) * OTHER:
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
        if item.cost.changes_training:
            return "; estimated for twice the batch, for which there are half as many launches per sample"
        if is_beyond:
            return "; it gains more than that time, since the CPU then runs ahead of the GPU"
        change, steps = self.change(item.cost), self._a.steps
        if (self.replay.gain(replace(change, at_least=None)) or 0.0) >= gain * FAR:
            return "; what is overlapped still takes its time, and no step takes less"
        without_cpu = Change(cpu=[(Cover(steps.cpu_start, steps.cpu_end), 0.0)])
        if (self.replay.gain(change | without_cpu) or 0.0) >= gain * FAR:
            return "; without that cost the CPU bounds the step"
        return ""

    def _combined(self, advice: Sequence[Advice]) -> list[Combination]:
        """The first piece of the ranked advice with that which then gains the most, and both with a third.

        What bounds a step after the first change is often not the second in rank: a GPU that no longer waits for the
        CPU gains from faster kernels. Only changes that leave the training as it is, so not a bigger batch.
        """
        advice = [item for item in advice if not item.cost.changes_training]
        if not advice or (advice[0].estimated_gain or 0.0) < ADDED:
            return []
        taken, gain = [advice[0]], advice[0].estimated_gain or 1.0
        left = sorted(advice[1:], key=lambda item: -item.share_of_step)
        left = [item for item in left if item.estimated_gain is not None]
        combinations = []
        while left and len(taken) < MOST_COMBINED:
            gains = [self._together([*taken, item]) for item in left[:CANDIDATES]]
            best = int(np.argmax(gains))
            if gains[best] < gain * ADDED:
                break
            taken, gain = [*taken, left.pop(best)], gains[best]
            in_order = [item.title for item in advice if item in taken]
            combinations.append(Combination(in_order, gain))
        return combinations

    def _together(self, advice: Sequence[Advice]) -> float:
        """Of several pieces of advice together; 0.0 where the replay cannot tell."""
        return self.replay.gain(reduce(or_, (self.change(item.cost) for item in advice))) or 0.0


def _is_noticeable(advice: Advice) -> bool:
    """Whether its gain is one, or is unknown, or could be one after other changes."""
    gain = advice.estimated_gain or advice.predicted_gain
    could = advice.predicted_gain or 1 / max(1 - advice.share_of_step, 1e-9)
    return gain is None or gain >= NOTICEABLE or could >= BOUNDED


def _instead(first: Advice, second: Advice) -> str:
    """What the second one of two gains, where that is much of what the first one does; else ""."""
    gain, other = first.estimated_gain or 1.0, second.estimated_gain or 1.0
    return f"; {second.title} instead: about {other:.2f}x" if other - 1 >= (gain - 1) / 2 > 0 else ""


def longest_gap(analysis: Analysis, advice: Advice) -> Gap | None:
    """The longest single stretch that the advice is about, in the typical steps; None where it is about none.

    A GPU's gap, by how much of it has a cause that the advice treats; a wait for the DataLoader in a trace without
    kernels; a stretch in which only collectives run, for advice to overlap them.
    """
    a, cost = analysis.typical, advice.cost
    if cost.where:
        return _longest(cost.where(a))
    if not len(a.trace.kernels):
        loading = a.trace.operators.cover(a.trace.named(a.trace.operators, is_loading))
        return _longest(loading & Cover(a.steps.cpu_start, a.steps.cpu_end)) if "dataloader" in cost.idle else None
    best, longest = None, 0.0
    for gpu in a.idle if cost.idle else ():
        treated = gpu.by_gap[[CAUSES.index(cause) for cause in cost.idle]].sum(axis=0)
        if treated.max(initial=0.0) > longest:
            gap = int(treated.argmax())
            longest = float(treated[gap])
            best = Gap(float(gpu.start[gap]), float(gpu.end[gap]), gpu.device)
    return best


def _longest(cover: Cover) -> Gap | None:
    if not len(cover.start):
        return None
    at = int(np.argmax(cover.end - cover.start))
    return Gap(float(cover.start[at]), float(cover.end[at]))
