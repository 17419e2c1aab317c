"""What `ablate` measured, as `ablation.json` holds it, and what follows from it. Needs the standard library only.

Effects and interactions are computed run by run: run k of one variant over run k of another, which were measured
within one round, so that a machine that drifts does it to both. Of these the median and the range over the runs.
"""

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import InputError
from common.ladder import compare
from common.ladder.compare import Ratio
from common.record import Environment, StepTime, Throughput, read_as, write_whole
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
    variants,
)  # fmt: skip

FILE = "ablation.json"


@dataclass(frozen=True)
class Settings:
    """What all measurements share. batch_size: with bigger_batch; workers: with multiprocess_loading."""

    device: str
    device_type: str
    data: str
    model: str
    image_size: int
    batch_size: int
    workers: int
    seed: int
    quick: bool
    all_pairs: bool


@dataclass(frozen=True)
class Measurement:
    """One variant in one run, counted from 1, with the optimisations that were on."""

    variant: str
    on: list[str]
    run: int
    samples_per_second: Throughput
    step_ms: StepTime
    first_step_seconds: float
    batch_size: int
    started: str
    notes: list[str]


@dataclass(frozen=True)
class NotMeasured:
    """An optimisation that makes no other program here, or a variant that could not be run: why, without full stop."""

    name: str
    why: str


@dataclass(frozen=True)
class Ablation:
    """One `ablation.json`. runs: as many as were asked for. cannot_act: optimisations; not_run: variants."""

    schema: int
    settings: Settings
    environment: Environment
    code: str
    runs: int
    cannot_act: list[NotMeasured]
    not_run: list[NotMeasured]
    measurements: list[Measurement]

    @property
    def variants(self):
        """The `Variant`s that are to be measured in every run."""
        skipped = {each.name for each in self.not_run}
        every = variants([each.name for each in self.cannot_act], self.settings.all_pairs)
        return [variant for variant in every if variant.name not in skipped]

    @property
    def missing(self):
        """What is still to be measured, in order: (run, `Variant`). Every other run goes backwards."""
        done = {(each.run, each.variant) for each in self.measurements}
        forth, back = self.variants, self.variants[::-1]
        whole = ((run, variant) for run in range(1, self.runs + 1) for variant in (forth if run % 2 else back))
        return [(run, variant) for run, variant in whole if (run, variant.name) not in done]

    @property
    def whole_runs(self):
        """How many runs have every variant."""
        return len(_shared(self, [variant.name for variant in self.variants]))

    def of(self, variant):
        """{run: its `Measurement`} of the variant of that name, in order."""
        found = {each.run: each for each in self.measurements if each.variant == variant}
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Effect:
    """What one optimisation brings: alone, over the baseline; in_full, the full ladder over the same without it.

    None where that was not measured; cannot_act says why it never is here.
    """

    optimisation: str
    alone: Ratio | None
    in_full: Ratio | None
    cannot_act: str | None


@dataclass(frozen=True)
class Interaction:
    """Two optimisations on the baseline. together: both over the baseline; first, second: one of them alone.

    ratio: together over first times second, 1 where each brings what it brings without the other. verdict: "more" or
    "less" than each alone promises; "none" seen; None with fewer than two runs, or nothing to compare with.
    """

    pair: Pair
    first: Ratio | None
    second: Ratio | None
    together: Ratio | None
    ratio: Ratio | None
    verdict: str | None


def read_ablation(logdir):
    """The `Ablation` in a folder, None where there is none. Raises InputError for one that is broken."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    found = read_as(Ablation, path)
    known = {name for each in found.measurements for name in each.on} | {each.name for each in found.cannot_act}
    if not known <= set(NAMES):
        raise InputError(f"{path} is broken: it names an optimisation that there is not")
    speeds = [speed for each in found.measurements for speed in _speeds(each)]
    if not all(each.samples_per_second.windows for each in found.measurements) or min(speeds, default=1) <= 0:
        raise InputError(f"{path} is broken: measurements must hold windows, and positive numbers")
    return found


def write_ablation(logdir, ablation):
    """Write `ablation.json` into a folder, whole or not at all, with what follows from it for other readers."""
    write_whole(Path(logdir) / FILE, json.dumps(as_object(ablation), indent=2) + "\n")


def as_object(ablation):
    """The object that `ablation.json` holds and `ablate --json` prints."""
    return asdict(ablation) | {
        "control": _asdict(control(ablation)),
        "effects": [asdict(each) for each in effects(ablation)],
        "interactions": [asdict(each) for each in interactions(ablation)],
    }


def compared(ablation, faster, slower):
    """The `compare.Ratio` of one variant to another, by name: median and range of the runs that both have.

    With one run, the range is what its windows allow (`compare.ratio`). None where no run has both.
    """
    one, other = ablation.of(faster), ablation.of(slower)
    both = [run for run in one if run in other]
    if len(both) == 1:
        return compare.ratio(one[both[0]], other[both[0]])
    return _ratio(_median(one[run]) / _median(other[run]) for run in both)


def control(ablation):
    """The baseline over itself, measured as if it were another program: what "no difference" looks like here."""
    return compared(ablation, CONTROL, BASELINE)


def effects(ablation):
    """The `Effect` of each optimisation, in the order of the steps."""
    idle = {each.name: each.why for each in ablation.cannot_act}
    return [
        Effect(name, compared(ablation, alone(name), BASELINE), compared(ablation, *in_full(name)), idle.get(name))
        for name in NAMES
    ]


def whole_ladder(ablation):
    """The full ladder over the baseline, and what the product of each alone promises for it: two `Ratio`s or Nones."""
    idle = {each.name for each in ablation.cannot_act}
    each_alone = [alone(name) for name in LADDER if name not in idle]
    return compared(ablation, FULL, BASELINE), _product(ablation, each_alone)


def interactions(ablation):
    """The `Interaction` of each pair that was to be measured.

    It is a ratio of two ratios, so it has to be farther from 1 than the control's factor squared.
    """
    found = []
    for pair in pairs([each.name for each in ablation.cannot_act], ablation.settings.all_pairs):
        first, second, both = alone(pair.first), alone(pair.second), together(pair)
        ratio = _product(ablation, [both], [first, second])
        several = len(_shared(ablation, [BASELINE, CONTROL, first, second, both])) > 1
        found.append(
            Interaction(
                pair,
                *(compared(ablation, name, BASELINE) for name in (first, second, both)),
                ratio,
                verdict(ratio, noise_factor(control(ablation)) ** 2) if several else None,
            )
        )
    return found


def noise_factor(noise):
    """How many times as fast as itself a program seemed at most, from the control's `Ratio`: 1.02, say.

    Which of two same programs is over the other is chance, so one that seemed 0.98 times as fast counts as 1.02.
    """
    return max(noise.high, 1 / noise.low)


def noise_of(ablation):
    """The `noise_factor` of an ablation; 1 with fewer than two runs of the control, which tell nothing of noise."""
    noise = control(ablation)
    return noise_factor(noise) if noise and len(_shared(ablation, [BASELINE, CONTROL])) > 1 else 1.0


def verdict(ratio, beyond):
    """ "more" or "less" where all runs lie on that side of 1, farther from it than the factor `beyond`, else "none"."""
    if ratio.low > beyond:
        return "more"
    return "less" if ratio.high < 1 / beyond else "none"


def depends_on_place(ablation):
    """[(optimisation, verdict alone, verdict in full)] of those that bring something in one place and not in the other.

    By `verdict`, beyond what the control showed, and only where the ranges do not overlap; nothing with fewer than two
    runs.
    """
    found = []
    for effect in effects(ablation):
        names = (BASELINE, CONTROL, alone(effect.optimisation), *in_full(effect.optimisation))
        if len(_shared(ablation, names)) < 2:
            continue
        here, there = effect.alone, effect.in_full
        beyond = noise_factor(control(ablation))
        verdicts = verdict(here, beyond), verdict(there, beyond)
        if verdicts[0] != verdicts[1] and (here.high < there.low or there.high < here.low):
            found.append((effect.optimisation, *verdicts))
    return found


def _product(ablation, times, over=()):
    """The product of variants over the baseline, over that of others: a `Ratio` by run; None where no run has all."""

    def of_run(run):
        base = _median(ablation.of(BASELINE)[run])
        gains = [[_median(ablation.of(name)[run]) / base for name in names] for names in (times, over)]
        return math.prod(gains[0]) / math.prod(gains[1])

    return _ratio(of_run(run) for run in _shared(ablation, [BASELINE, *times, *over]))


def _shared(ablation, names):
    """The runs that have all variants of these names."""
    return sorted(set.intersection(*(set(ablation.of(name)) for name in names)))


def _ratio(of_runs):
    of_runs = list(of_runs)
    return Ratio(statistics.median(of_runs), min(of_runs), max(of_runs)) if of_runs else None


def _median(measurement):
    return measurement.samples_per_second.median


def _speeds(measurement):
    return [measurement.samples_per_second.median, *measurement.samples_per_second.windows]


def _asdict(ratio):
    return ratio and asdict(ratio)
