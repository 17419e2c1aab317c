"""What follows from an ablation: the effect of each optimisation alone and in the full ladder, and interactions.

Computed run by run: run k of one variant over run k of another, which were measured within one round, so that a
machine that drifts does it to both. Of these ratios `compare.statistics` gives the mean and its interval.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from studies.ablation.plan import (
    BASELINE,
    CONTROL,
    FULL,
    LADDER,
    NAMES,
    TF32,
    Pair,
    alone,
    before,
    dependents,
    in_full,
    pairs,
    together,
)  # fmt: skip
from studies.ablation.record import Ablation
from walkthrough.compare import statistics
from walkthrough.compare.statistics import Ratio


@dataclass(frozen=True)
class Effect:
    """The effect of one optimisation. alone: over the baseline; in_full: the full ladder over the same without it.

    full_over_alone: how many times as large it is there, 1 where its place does not matter. None where that was not
    measured, full_over_alone also with fewer than two runs; no_effect: why it never has one on this device.
    """

    optimisation: str
    alone: Ratio | None
    in_full: Ratio | None
    full_over_alone: Ratio | None
    no_effect: str | None


@dataclass(frozen=True)
class Interaction:
    """Two optimisations on the baseline. together: both over the baseline; first, second: one of them alone.

    ratio: together over first times second, 1 where each gains the same with the other as without; None with fewer than
    two runs. verdict: "more" or "less" than predicted from each alone; "none" measurable; None without a ratio.
    """

    pair: Pair
    first: Ratio | None
    second: Ratio | None
    together: Ratio | None
    ratio: Ratio | None
    verdict: str | None


def as_json(ablation: Ablation) -> dict[str, Any]:
    """What the file of an ablation holds besides its measurements."""
    noise, over_tf32 = control(ablation), amp_over_tf32(ablation)
    return {
        "control": noise and asdict(noise),
        "amp_over_tf32": over_tf32 and asdict(over_tf32),
        "effects": [asdict(effect) for effect in effects(ablation)],
        "interactions": [asdict(interaction) for interaction in interactions(ablation)],
    }


def compared(ablation: Ablation, faster: str, slower: str) -> Ratio | None:
    """The `Ratio` of one variant to another, by name, over the runs that both have; None where no run has both."""
    runs = ablation.runs_with([faster, slower])
    if not runs:
        return None
    one, other = (
        {run: ablation.by_run(name)[run].samples_per_second.windows for run in runs} for name in (faster, slower)
    )
    return statistics.ratio(one, other)


def control(ablation: Ablation) -> Ratio | None:
    """The baseline over itself, measured as if it were another program: an interval that should include 1."""
    return compared(ablation, CONTROL, BASELINE)


def amp_over_tf32(ablation: Ablation) -> Ratio | None:
    """What amp gains over float32 as cuDNN multiplies it unless told not to: both on the baseline with TF32."""
    return compared(ablation, together(Pair("amp", TF32)), alone(TF32))


def effects(ablation: Ablation) -> list[Effect]:
    """The `Effect` of each optimisation, in the order of the steps."""
    reasons = {optimisation.name: optimisation.why for optimisation in ablation.no_effect}
    results = []
    for name in NAMES:
        with_it, without_it = _in_full(ablation, name)
        results.append(
            Effect(
                optimisation=name,
                alone=compared(ablation, alone(name), before(name)),
                in_full=compared(ablation, with_it, without_it),
                full_over_alone=_products(ablation, [with_it, before(name)], [without_it, alone(name)]),
                no_effect=reasons.get(name),
            )
        )
    return results


def _in_full(ablation: Ablation, name: str) -> tuple[str, str]:
    """`plan.in_full`; with the full ladder itself in an older record, where nothing in it needs the optimisation."""
    with_it, without_it = in_full(name)
    in_ladder = {on for measurement in ablation.by_run(FULL).values() for on in measurement.on}
    older = dependents(name) and not ablation.by_run(with_it) and in_ladder.isdisjoint(dependents(name))
    return (FULL if older else with_it), without_it


def whole_ladder(ablation: Ablation) -> tuple[Ratio | None, Ratio | None]:
    """The full ladder over the baseline, and what is predicted for it: the product of the effects of each alone.

    There is no prediction with fewer than two runs.
    """
    without_effect = {optimisation.name for optimisation in ablation.no_effect}
    without_effect |= set(ablation.alone_only)
    with_effect = [name for name in LADDER if name not in without_effect]
    predicted = _products(ablation, [BASELINE, *map(alone, with_effect)], [BASELINE, *map(before, with_effect)])
    return compared(ablation, FULL, BASELINE), predicted


def interactions(ablation: Ablation) -> list[Interaction]:
    """The `Interaction` of each pair that was to be measured."""
    results = []
    for pair in pairs([optimisation.name for optimisation in ablation.no_effect], ablation.all_pairs):
        first, second, both = alone(pair.first), alone(pair.second), together(pair)
        ratio = _products(ablation, [both, BASELINE], [first, second])
        results.append(
            Interaction(
                pair=pair,
                first=compared(ablation, first, BASELINE),
                second=compared(ablation, second, BASELINE),
                together=compared(ablation, both, BASELINE),
                ratio=ratio,
                verdict=ratio and verdict(ratio),
            )
        )
    return results


def verdict(ratio: Ratio) -> str:
    """ "more" or "less" than 1 where that is measurable, else "none"."""
    if not ratio.resolved:
        return "none"
    return "more" if ratio.ratio > 1 else "less"


def depends_on_place(ablation: Ablation) -> list[Effect]:
    """Every `Effect` that is measurably different in the full ladder than alone."""
    return [effect for effect in effects(ablation) if effect.full_over_alone and effect.full_over_alone.resolved]


def _products(ablation: Ablation, times: Sequence[str], over: Sequence[str]) -> Ratio | None:
    """The product of variants' speeds over that of others, by run; None where fewer than two runs have them all."""
    runs = ablation.runs_with([*times, *over])
    if len(runs) < 2:
        return None

    def product(names: Sequence[str], run: int) -> float:
        return math.prod(ablation.by_run(name)[run].samples_per_second.median for name in names)

    return statistics.of_pairs([product(times, run) / product(over, run) for run in runs])
