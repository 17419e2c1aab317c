"""What follows from an ablation: the effect of each optimisation alone and in the full ladder, and interactions.

Computed run by run: run k of one variant over run k of another, which were measured within one round, so that a
machine that drifts does it to both. Of these the median and the range over the runs.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.ladder import compare
from common.ladder.compare import Ratio
from common.studies.ablation.plan import (
    BASELINE,
    CONTROL,
    FULL,
    LADDER,
    NAMES,
    Pair,
    alone,
    in_full,
    pairs,
    together,
)  # fmt: skip
from common.studies.ablation.record import Ablation, Measurement


@dataclass(frozen=True)
class Effect:
    """The effect of one optimisation. alone: over the baseline; in_full: the full ladder over the same without it.

    None where that was not measured; no_effect: why it never is on this device.
    """

    optimisation: str
    alone: Ratio | None
    in_full: Ratio | None
    no_effect: str | None


@dataclass(frozen=True)
class Interaction:
    """Two optimisations on the baseline. together: both over the baseline; first, second: one of them alone.

    ratio: together over first times second, 1 where each gains the same with the other as without. verdict: "more" or
    "less" than predicted from each alone; "none" seen; None with fewer than two runs, or nothing to compare with.
    """

    pair: Pair
    first: Ratio | None
    second: Ratio | None
    together: Ratio | None
    ratio: Ratio | None
    verdict: str | None


def as_json(ablation: Ablation) -> dict[str, Any]:
    """What the file of an ablation holds besides its measurements."""
    noise = control(ablation)
    return {
        "control": noise and asdict(noise),
        "effects": [asdict(effect) for effect in effects(ablation)],
        "interactions": [asdict(interaction) for interaction in interactions(ablation)],
    }


def compared(ablation: Ablation, faster: str, slower: str) -> Ratio | None:
    """The `compare.Ratio` of one variant to another, by name: median and range of the runs that both have.

    With one run, the range is what its windows allow (`compare.ratio`). None where no run has both.
    """
    one, other = ablation.by_run(faster), ablation.by_run(slower)
    both = [run for run in one if run in other]
    if len(both) == 1:
        faster_run, slower_run = one[both[0]], other[both[0]]
        return compare.ratio(faster_run, slower_run)  # pyright: ignore[reportArgumentType]  # reads the speeds only
    return _ratio(_median(one[run]) / _median(other[run]) for run in both)


def control(ablation: Ablation) -> Ratio | None:
    """The baseline over itself, measured as if it were another program: what "no difference" looks like here."""
    return compared(ablation, CONTROL, BASELINE)


def effects(ablation: Ablation) -> list[Effect]:
    """The `Effect` of each optimisation, in the order of the steps."""
    reasons = {optimisation.name: optimisation.why for optimisation in ablation.no_effect}
    return [
        Effect(name, compared(ablation, alone(name), BASELINE), compared(ablation, *in_full(name)), reasons.get(name))
        for name in NAMES
    ]


def whole_ladder(ablation: Ablation) -> tuple[Ratio | None, Ratio | None]:
    """The full ladder over the baseline, and what is predicted for it: the product of the effects of each alone."""
    without_effect = {optimisation.name for optimisation in ablation.no_effect}
    each_alone = [alone(name) for name in LADDER if name not in without_effect]
    return compared(ablation, FULL, BASELINE), _product(ablation, each_alone)


def interactions(ablation: Ablation) -> list[Interaction]:
    """The `Interaction` of each pair that was to be measured.

    It is a ratio of two ratios, so it has to be farther from 1 than the control's factor squared.
    """
    results = []
    for pair in pairs([optimisation.name for optimisation in ablation.no_effect], ablation.all_pairs):
        first, second, both = alone(pair.first), alone(pair.second), together(pair)
        ratio, beyond = _product(ablation, [both], [first, second]), _noise_over(ablation, first, second, both)
        results.append(
            Interaction(
                pair=pair,
                first=compared(ablation, first, BASELINE),
                second=compared(ablation, second, BASELINE),
                together=compared(ablation, both, BASELINE),
                ratio=ratio,
                verdict=verdict(ratio, beyond**2) if ratio and beyond else None,
            )
        )
    return results


def noise_factor(noise: Ratio) -> float:
    """How many times as fast as itself a program seemed at most, from the control's `Ratio`: 1.02, say.

    Which of two same programs is over the other is chance, so one that seemed 0.98 times as fast counts as 1.02.
    """
    return max(noise.high, 1 / noise.low)


def noise_of(ablation: Ablation) -> float:
    """The `noise_factor` of an ablation; 1 with fewer than two runs of the control, which show no noise."""
    return _noise_over(ablation) or 1.0


def verdict(ratio: Ratio, beyond: float) -> str:
    """ "more" or "less" where all runs lie on that side of 1, farther from it than the factor `beyond`, else "none"."""
    if ratio.low > beyond:
        return "more"
    return "less" if ratio.high < 1 / beyond else "none"


def depends_on_place(ablation: Ablation) -> list[tuple[str, str, str]]:
    """[(optimisation, verdict alone, verdict in full)] of those with an effect in one place and not in the other.

    By `verdict`, beyond what the control showed, and only where the ranges do not overlap; nothing with fewer than two
    runs.
    """
    results = []
    for effect in effects(ablation):
        here, there = effect.alone, effect.in_full
        beyond = _noise_over(ablation, alone(effect.optimisation), *in_full(effect.optimisation))
        if here is None or there is None or beyond is None:
            continue
        verdicts = verdict(here, beyond), verdict(there, beyond)
        if verdicts[0] != verdicts[1] and (here.high < there.low or there.high < here.low):
            results.append((effect.optimisation, *verdicts))
    return results


def _noise_over(ablation: Ablation, *names: str) -> float | None:
    """The `noise_factor`; None with fewer than two runs that have the control, the baseline and these variants."""
    noise = control(ablation)
    several = len(ablation.runs_with([BASELINE, CONTROL, *names])) > 1
    return noise_factor(noise) if noise and several else None


def _product(ablation: Ablation, times: Sequence[str], over: Sequence[str] = ()) -> Ratio | None:
    """The product of variants over the baseline, over that of others: a `Ratio` by run; None where no run has all."""

    def of_run(run: int) -> float:
        base = _median(ablation.by_run(BASELINE)[run])
        gains = [[_median(ablation.by_run(name)[run]) / base for name in names] for names in (times, over)]
        return math.prod(gains[0]) / math.prod(gains[1])

    return _ratio(of_run(run) for run in ablation.runs_with([BASELINE, *times, *over]))


def _ratio(of_runs: Iterable[float]) -> Ratio | None:
    of_runs = list(of_runs)
    return Ratio(statistics.median(of_runs), min(of_runs), max(of_runs)) if of_runs else None


def _median(measurement: Measurement) -> float:
    return measurement.samples_per_second.median
