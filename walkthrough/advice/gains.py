"""What to do about a trace: its costs, what treating each would gain, which of them to treat, and what stands out.

The predicted gain is Amdahl's bound: how many times faster the mean typical step would be with a cost gone, or hidden
behind other work. The measured gain is at most that, as long as only this cost changes. (A bigger batch changes more:
work that is done once per step, such as the optimizer's, is then done less often per image.) Where more may change than
the trace shows, there is no bound, and the cost's share ranks it. The estimated gain takes into account what else
bounds the step: the trace is replayed for it. Where far longer steps recur, all of these are weighed by the share of
the program's time that typical steps stand for.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from walkthrough.advice.catalogue import COSTS, Advice, Cost, Finding
from walkthrough.advice.evidence import WORTHWHILE, Evidence
from walkthrough.advice.replay import MAX_ERROR, Change, Replay
from walkthrough.advice.verdict import bound, gain_text, stalled, verdict, why_idle
from walkthrough.advice.wait_costs import long_steps
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.idle import CAUSES
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier

ALIKE = 1.05  # times faster: no replay tells gains apart that are closer
MOST_COMBINED = 3
CANDIDATES = 2  # to combine with what was combined already, those of the largest costs
ADDED = 1.05  # times faster with than without: less says nothing new
NOTICEABLE = 1 + MAX_ERROR  # times faster: less than that may be nothing
OTHER = 1.1  # times faster with both of two against launches than with one: less is the same gain twice
FAR = 1.2  # times faster: an estimate so far from its bound, or from the time it names, deserves a reason


class Combination(Struct, frozen=True):
    """Several pieces of advice followed together. ids, titles: theirs; error: the largest of theirs. See `Advice`."""

    ids: list[str]
    titles: list[str]
    estimated_gain: float
    low_gain: float
    error: float


class Advised(Struct, frozen=True):
    """What to do about the typical steps of a trace.

    costs: all that were looked for. advice: those worth treating, the largest sure gain first. together: pieces of
    advice followed together. findings: what stands out; [] for a trace without a GPU. verdict: one sentence on what
    bounds the steps and what to do first; bound: without that; why_idle: one on why the GPU idles, "" if it does not.
    """

    costs: list[Advice]
    advice: list[Advice]
    together: list[Combination]
    findings: list[Finding]
    verdict: str
    bound: str
    why_idle: str


def advise(analysis: Analysis) -> Advised:
    """What to do about an analysed trace."""
    a = analysis.typical
    shown, gains, found, together = evidence(a), Gains(a), list[Finding](), list[Combination]()
    replayed = a.on_gpu and not a.trace.partial and not a.workload.unusable
    costs = [_of_all_steps(a, gains.estimated(item) if replayed else item) for item in costs_of(a, shown)]
    if replayed:
        found = findings(a, shown, costs)
        worth, together = gains.worth_following(ranked(costs))
    else:
        worth = [item for item in ranked(costs) if _is_noticeable(item)]
    if stalled(a):
        worth = despite_a_stall(worth)
    text = bound(a, worth)
    return Advised(costs, worth, together, found, verdict(a, worth, text), text, why_idle(a))


def _of_all_steps(a: Analysis, item: Advice) -> Advice:
    """The advice with its gains weighed by the share of the program's time that typical steps stand for."""
    weight = 1.0 if item.cost.of_all_steps else long_steps(a).weight
    predicted, estimated, low = (
        _weighed(gain, weight) for gain in (item.predicted_gain, item.estimated_gain, item.low_gain)
    )
    return replace(item, weight=weight, predicted_gain=predicted, estimated_gain=estimated, low_gain=low)


def _weighed(gain: float | None, weight: float) -> float | None:
    """How many times faster a program is where `weight` of its time is `gain` times faster; None for None."""
    return gain if not gain or weight == 1 else 1 / (1 - weight * (1 - 1 / gain))


def evidence(a: Analysis) -> dict[str, Evidence]:
    """What the rules find of each cost, by its id. {} for a partial trace, which proves nothing.

    Of a trace that shows no step of a running program only what is about the trace as a whole: what its kernels do,
    they do once.
    """
    if a.trace.partial:
        return {}
    searched = [cost for cost in COSTS if cost.of_trace or a.workload.has_steps]
    return {cost.id: found for cost in searched if (found := cost.evidence(a))}


def costs_of(a: Analysis, shown: Mapping[str, Evidence]) -> list[Advice]:
    """An `Advice` for every cost of the catalogue, of what the rules found; [] where the trace shows no steps."""
    if not a.workload.has_steps:
        return []
    return [
        Advice(
            cost.step,
            cost.title_for(a, found),
            found.why,
            found.share,
            found.gain,
            id=cost.id,
            do=found.do,
            error=cost.error_for(a),
        )
        for cost in COSTS
        if cost.title and (found := shown.get(cost.id))
    ]


def findings(a: Analysis, shown: Mapping[str, Evidence], costs: Sequence[Advice]) -> list[Finding]:
    """What stands out, the longest time first, what is about the trace as a whole before all else. costs: estimated."""
    rows, estimates = [], {item.id: item.estimated_gain for item in costs}
    for cost in COSTS:
        found = shown.get(cost.id)
        if found and found.what:
            us = found.share * a.steps.mean_us if found.us_per_step is None else found.us_per_step
            why, gain = found.detail or found.why, estimates.get(cost.id)
            finding = Finding(cost.finding, cost.id, found.what, why, us, found.do, gain, found.when)
            rows.append((not cost.of_trace, -us, finding))
    return [finding for *_, finding in sorted(rows, key=lambda row: row[:2])]


def ranked(costs: Iterable[Advice]) -> list[Advice]:
    """The advice worth following, by the gain that is nearly sure: the lower end of an estimate, else of the bound.

    A wait that the trace shows is replayed to within some per cent; how fast kernels would be that do not exist yet is
    a guess (see `Cost.error`). Gains as good as equal (see `ALIKE`) are in the walkthrough's order: the simpler first.
    A bigger batch is ranked by the cost that the trace shows, and after what is alike: its estimate is for twice the
    batch, which gains where the trace shows hardly a cost, but trains something else.
    """
    left = sorted((item for item in costs if item.share_of_time >= WORTHWHILE), key=_remaining)
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
    """The share of the time that is left; see `ranked` on a bigger batch."""
    if not item.cost.changes_training:
        return item.remaining
    by_share = 1 - item.share_of_time * (1 - item.error)
    return max(item.remaining, by_share) if item.estimated_gain else 1.0


def despite_a_stall(advice: Iterable[Advice]) -> list[Advice]:
    """The advice for a trace whose GPU mostly waits for itself: bounds over what the CPU does say nothing then.

    What a replay estimated stays: it has explained the waits.
    """
    return [item for item in advice if item.estimated_gain or item.cost.shortens_gpu_work]


class Gains:
    """How many times faster a program would be without some of its typical steps' costs, by replays of the trace."""

    def __init__(self, a: Analysis) -> None:
        self._a = a
        self._changes: dict[str, Change] = {}

    @cached_property
    def replay(self) -> Replay:
        """What each gain is replayed with: all steps, of which the typical ones count."""
        steps = self._a.whole.steps
        return Replay(self._a.trace, steps, ~is_outlier(steps))

    def gain(self, change: Change) -> float:
        """How many times faster the program is with a change; 0.0 where the replay cannot tell."""
        return _weighed(self.replay.gain(change), long_steps(self._a).weight) or 0.0

    def change(self, cost: Cost) -> Change:
        """What treating a cost that has a change would change."""
        if cost.id not in self._changes:
            assert cost.change
            self._changes[cost.id] = cost.change(self._a)
        return self._changes[cost.id]

    def estimated(self, item: Advice) -> Advice:
        """With the gain of a replay for typical steps, and what of it is sure. One beyond the bound is that bound or,
        far beyond it, proves that it is none.

        Less work on the CPU also lets it run ahead, and a bigger batch is more samples. No bound leaves less than the
        kernels and copies that stay. A cost that is not worth a change has no estimate, and no bound that is none.
        """
        if item.share_of_step < WORTHWHILE:
            return replace(item, predicted_gain=None) if self._exceeds(item) else item
        change = self.change(item.cost) if item.cost.change else Change()
        bound = item.predicted_gain
        if bound and not item.cost.shortens_gpu_work:
            bound = min(bound, max(self.replay.most(change), 1.0))
        item = replace(item, predicted_gain=bound)
        gain = self.replay.gain(change) if item.cost.change else None
        if gain is None:
            return item
        if bound is not None and gain > bound:
            gain, bound = (bound, bound) if gain <= bound * (1 + MAX_ERROR) else (gain, None)
        sure = item.predicted_gain if bound is None and item.predicted_gain else gain  # the rest is what might follow
        low = 1 / (1 - (1 - 1 / sure) * (1 - item.error))
        return replace(item, estimated_gain=gain, predicted_gain=bound, low_gain=low)

    def _exceeds(self, item: Advice) -> bool:
        """Whether a replay gains more than the bound of a cost that the trace has."""
        cost, bound = item.cost, item.predicted_gain
        if bound is None or not cost.change or (cost.unless and cost.unless(self._a)):
            return False
        return (self.replay.gain(self.change(cost)) or 1.0) > bound * (1 + MAX_ERROR)

    def worth_following(self, advice: Sequence[Advice]) -> tuple[list[Advice], list[Combination]]:
        """The ranked advice without what adds nothing to the rest, and the first pieces of it together.

        Nothing add those that gain nothing, alone or together with others, and the second one of those against launches
        where both together gain little more than the first, or no replay tells; the first then names it.
        """
        same = [item for item in advice if item.cost.joins_launches]
        instead = ""
        if len(same) > 1 and self._together(same) < (same[0].estimated_gain or 1.0) * OTHER:
            advice = [item for item in advice if item is not same[1]]
            gain, other = (item.estimated_gain or item.predicted_gain or 1.0 for item in same[:2])
            if other - 1 >= (gain - 1) / 2 > 0:  # much of what the first one gains
                instead = f"; or {same[1].title[0].lower()}{same[1].title[1:]} instead: {gain_text(same[1])}"
        combined = self._combined(advice)
        together = {id for combination in combined for id in combination.ids}
        kept = [item for item in advice if _is_noticeable(item) or item.id in together]
        reasons = [self._reason(item) + (instead if item in same else "") for item in kept]
        return [replace(item, do=item.do + why) for item, why in zip(kept, reasons, strict=True)], combined

    def _reason(self, item: Advice) -> str:
        """Why an estimate is far from its cost, beyond it or below its bound, to be added to the advice; else ""."""
        gain, bound = item.estimated_gain, item.predicted_gain
        if gain is None:
            return ""
        is_beyond = bound is None and gain * (1 - item.share_of_time) >= FAR
        if not is_beyond and (bound is None or gain * FAR > bound):
            return ""
        if item.cost.changes_training:
            return "; estimated for twice the batch, for which there are half as many launches per sample"
        if is_beyond:
            return "; it gains more than that time, since the CPU then runs ahead of the GPU"
        change, steps = self.change(item.cost), self._a.steps
        if self.gain(replace(change, at_least=None)) >= gain * FAR:
            return "; what is overlapped still takes its time, and no step takes less"
        without_cpu = Change(cpu=[(Cover(steps.cpu_start, steps.cpu_end), 0.0)])
        if self.gain(change | without_cpu) >= gain * FAR:
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
        sure = 1 - 1 / (advice[0].low_gain or gain)  # of the time: what is surely saved
        left = sorted(advice[1:], key=lambda item: -item.share_of_step)
        left = [item for item in left if item.estimated_gain is not None]
        combinations = []
        while len(taken) < MOST_COMBINED:
            if any("dataloader" in item.cost.idle for item in taken):  # of ways to wait less, nobody needs two
                left = [item for item in left if "dataloader" not in item.cost.idle]
            if not left:
                break
            gains = [self._together([*taken, item]) for item in left[:CANDIDATES]]
            best = int(np.argmax(gains))
            if gains[best] < gain * ADDED:
                break
            sure += (1 / gain - 1 / gains[best]) * (1 - left[best].error)
            taken, gain = [*taken, left.pop(best)], gains[best]
            in_order = [item for item in advice if item in taken]
            ids, titles = [item.id for item in in_order], [item.title for item in in_order]
            error = max(item.error for item in taken)
            combinations.append(Combination(ids, titles, gain, 1 / (1 - sure), error))
        return combinations

    def _together(self, advice: Sequence[Advice]) -> float:
        """Of several pieces of advice together; 0.0 where the replay cannot tell."""
        return self.gain(reduce(or_, (self.change(item.cost) for item in advice)))


def _is_noticeable(advice: Advice) -> bool:
    """Whether its gain is one, or is unknown."""
    gain = advice.estimated_gain or advice.predicted_gain
    return gain is None or gain >= NOTICEABLE


def longest_gap(analysis: Analysis, advice: Advice) -> tuple[float, float, int | None] | None:
    """The longest single stretch that the advice is about, in the typical steps; None where it is about none.

    When it begins and ends (µs since `Trace.origin`), and the GPU that waits there, if one does: a GPU's gap, by how
    much of it has a cause that the advice treats; a wait for the DataLoader in a trace without kernels; a stretch in
    which only collectives run, for advice to overlap them.
    """
    a, cost, best, longest = analysis.typical, advice.cost, None, 0.0
    if cost.where or not a.on_gpu:
        when = cost.where(a) if cost.where else Cover()
        if not cost.where and "dataloader" in cost.idle:
            when = a.phases.loading & Cover(a.steps.cpu_start, a.steps.cpu_end)
        stretches = zip(when.start.tolist(), when.end.tolist(), strict=True)
        return max(((*gap, None) for gap in stretches), key=lambda gap: gap[1] - gap[0], default=None)
    for gpu in a.idle if cost.idle else ():
        treated = gpu.by_gap[[CAUSES.index(cause) for cause in cost.idle]].sum(axis=0)
        if treated.max(initial=0.0) > longest:
            gap = int(treated.argmax())
            longest = float(treated[gap])
            best = float(gpu.start[gap]), float(gpu.end[gap]), gpu.device
    return best
