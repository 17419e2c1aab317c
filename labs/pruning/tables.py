"""The study's tables and claims, from what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labs.pruning import published
from labs.pruning.masks import HOW, magnitudes
from labs.pruning.measure import PRODUCT, TIMED_SHARE, VARIANTS
from walkthrough.compare.statistics import Mean, Ratio, mean, of_pairs, ratio
from walkthrough.compare.study import Claim, Row, above, claim, percent

Cell = tuple[float, int]  # sparsity (0..1), the epoch that weights are reset to
BySeed = Mapping[int, float]  # accuracy, 0..1
Speeds = Sequence[Mapping[str, Mapping[str, Sequence[float]]]]  # of each round, see `measure.speeds`
Jobs = Mapping[int, Sequence[float]]  # {trainings at a time: seconds of each round}
SAME_SPEED = (0.95, 1.05)  # times the speed that count as none gained or lost
JUDGED = 0.95  # the sparsity that claims are of
FEWEST = 3  # seeds, for a claim to be decided
ROUNDING = 1e-6  # points: an interval that is narrower has no width


@dataclass(frozen=True)
class Accuracies:
    """Of test images, 0..1, by seed.

    unpruned. without_retraining: {sparsity}. grid: {cell: layer-wise masks}. swapped: {(sparsity, epoch that weights
    are reset to, epoch that training begins at)}, where they differ. others: {(how, sparsity): other masks}.
    reinitialised: {sparsity: layer-wise masks on random weights}. iterated: {cell: pruned in rounds}. channel_pruned:
    {share}. late: the epoch of late resetting, that of `others` and `channel_pruned`.
    """

    unpruned: BySeed
    without_retraining: Mapping[float, BySeed]
    grid: Mapping[Cell, BySeed]
    swapped: Mapping[tuple[float, int, int], BySeed]
    others: Mapping[tuple[str, float], BySeed]
    reinitialised: Mapping[float, BySeed]
    iterated: Mapping[Cell, BySeed]
    channel_pruned: Mapping[float, BySeed]
    late: int

    @property
    def sparsities(self) -> list[float]:
        """Those of the grid."""
        return sorted({sparsity for sparsity, _ in self.grid})

    @property
    def resets(self) -> list[int]:
        """The epochs of the grid."""
        return sorted({reset for _, reset in self.grid})

    def reset_to(self, reset: int, sparsity: float) -> BySeed:
        """A cell of the grid; {} where it was not measured."""
        return self.grid.get((sparsity, reset), {})


def points(of: BySeed) -> Mean | None:
    """The mean accuracy in %; None of no seed."""
    return percent(list(of.values())) if of else None


def more(one: BySeed, other: BySeed) -> Mean | None:
    """How many percentage points more the first has: paired by seed; None without a pair."""
    both = [seed for seed in one if seed in other]
    if not both:
        return None
    paired = mean([100 * (one[seed] - other[seed]) for seed in both])
    return replace(paired, mean=round(paired.mean, 9) + 0.0)  # no -3.7e-15, and no -0


def in_percent(share: float) -> str:
    """For people: "95 %"."""
    return f"{100 * share:.3g} %"


def count_rows(counts: Mapping[str, int]) -> list[Row]:
    """What is counted as weights: of the published network, and of ours. counts: see `measure.trained`."""
    from torchvision.models import mobilenet_v2

    theirs = mobilenet_v2()
    of_theirs = {name: len(magnitudes(theirs, name)) for name in ("weights", "parameters", "pooled")}
    return [
        {
            "network": name,
            "weights that can be pruned": of["weights"],
            "parameters": of["parameters"],
            "running statistics": of["pooled"] - of["parameters"],
            "parameters and statistics": of["pooled"],
            "published as weights": said,
        }
        for name, of, said in (("MobileNetV2", of_theirs, published.WEIGHTS), ("ours", counts, None))
    ]


def quantile_rows(trained: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Magnitudes by quantile, means over seeds: as published, and ours with running statistics and without."""

    def ours(of: str, name: str) -> float:
        return mean([run["magnitudes"][of][name] for run in trained]).mean

    return [
        {
            "of the magnitudes": name,
            "published, pooled": published.QUANTILES.get(name),
            "ours, pooled": ours("pooled", name),
            "ours, parameters": ours("parameters", name),
            "ours, weights that can be pruned": ours("weights", name),
        }
        for name in trained[0]["magnitudes"]["weights"]
    ]


def misplaced_rows(trained: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What a threshold from pooled numbers really prunes."""
    by_seed = [dict(map(tuple, run["misplaced"])) for run in trained]
    return [
        {"asked for %": 100 * share, "of the parameters %": mean([100 * of_seed[share] for of_seed in by_seed])}
        for share in by_seed[0]
    ]


def grid_rows(of: Accuracies) -> list[Row]:
    """A row for each sparsity: accuracy by the epoch that weights are reset to."""
    return [
        {"pruned %": 100 * sparsity, "not trained again": points(of.without_retraining.get(sparsity, {}))}
        | {f"reset to epoch {reset}": points(of.reset_to(reset, sparsity)) for reset in of.resets}
        for sparsity in of.sparsities
    ]


def curve_rows(of: Accuracies) -> list[Row]:
    """For the figure: accuracy over sparsity, a line for each reset epoch, for other weights, and for none pruned."""
    lines = {"unpruned": dict.fromkeys(of.sparsities, of.unpruned)}
    for reset in of.resets:
        lines[f"reset to epoch {reset}"] = {sparsity: of.reset_to(reset, sparsity) for sparsity in of.sparsities}
    lines["reinitialised"] = dict(of.reinitialised)
    return [
        {"variant": name, "pruned %": 100 * sparsity, "accuracy %": points(by_seed)}
        for name, line in lines.items()
        for sparsity, by_seed in sorted(line.items())
        if by_seed
    ]


def reset_rows(of: Accuracies) -> list[Row]:
    """Late resetting, initialisation and other weights against each other, in the same masks: paired by seed."""
    rows = []
    for sparsity in of.sparsities:
        late, first = of.reset_to(of.late, sparsity), of.reset_to(0, sparsity)
        other = of.reinitialised.get(sparsity, {})
        rows.append(
            {
                "pruned %": 100 * sparsity,
                f"epoch {of.late} over initialisation": more(late, first),
                "initialisation over reinitialised": more(first, other),
                f"epoch {of.late} over reinitialised": more(late, other),
                f"epoch {of.late} over unpruned": more(late, of.unpruned),
            }
        )
    return rows


def schedule_rows(of: Accuracies) -> list[Row]:
    """Late weights and a late beginning apart: both, either, neither; differences are paired by seed."""
    rows = []
    for sparsity in sorted({sparsity for sparsity, _, _ in of.swapped}):
        neither, both = of.reset_to(0, sparsity), of.reset_to(of.late, sparsity)
        weights = of.swapped.get((sparsity, of.late, 0), {})
        beginning = of.swapped.get((sparsity, 0, of.late), {})
        rows.append(
            {
                "pruned %": 100 * sparsity,
                "epoch 0, from epoch 0": points(neither),
                f"epoch {of.late}, from epoch 0": points(weights),
                f"epoch 0, from epoch {of.late}": points(beginning),
                f"epoch {of.late}, from epoch {of.late}": points(both),
                "late weights, points": more(weights, neither),
                "late beginning, points": more(beginning, neither),
            }
        )
    return rows


def mask_rows(of: Accuracies, trained: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Layer-wise masks against global and random ones, all reset late; and the layers that each leaves no weight."""
    rows = []
    for sparsity in sorted({sparsity for _, sparsity in of.others}):
        by_layer = of.reset_to(of.late, sparsity)
        row: Row = {"pruned %": 100 * sparsity, HOW[0]: points(by_layer)}
        for how in HOW[1:]:
            own = of.others.get((how, sparsity), {})
            emptied = [count for run in trained for one, at, count in run["emptied"] if (one, at) == (how, sparsity)]
            row |= {
                how: points(own),
                f"{HOW[0]} over {how}, points": more(by_layer, own),
                f"layers emptied, {how}": mean(emptied).mean if emptied else None,
            }
        rows.append(row)
    return rows


def iterated_rows(of: Accuracies) -> list[Row]:
    """Pruning in rounds against pruning in one shot, at the same sparsity and reset epoch; not the first round."""
    first = min((sparsity for sparsity, _ in of.iterated), default=0.0)  # which is one shot
    return [
        {
            "reset to epoch": reset,
            "pruned %": 100 * sparsity,
            "in rounds": points(by_seed),
            "one shot": points(of.reset_to(reset, sparsity)),
            "in rounds over one shot, points": more(by_seed, of.reset_to(reset, sparsity)),
        }
        for (sparsity, reset), by_seed in sorted(of.iterated.items(), key=lambda cell: (cell[0][1], cell[0][0]))
        if sparsity > first
    ]


def speed_rows(rounds: Speeds, of: Accuracies) -> list[Row]:
    """What masks and fewer channels do to speed; accuracy where it was measured."""
    accuracy = {
        "unpruned": of.unpruned,
        "masked": of.reset_to(of.late, TIMED_SHARE),
        "masks removed": of.reset_to(of.late, TIMED_SHARE),  # the same numbers
        "channels pruned": of.channel_pruned.get(TIMED_SHARE, {}),
    }
    return [
        {
            "network": name if name == "unpruned" else f"{name}, {in_percent(TIMED_SHARE)}",
            "inference, times as fast": None if name == "unpruned" else times(rounds, name, "inference"),
            "training, times as fast": None if name == "unpruned" else times(rounds, name, "training"),
            "accuracy %": points(accuracy[name]),
        }
        for name in VARIANTS
    ]


def times(rounds: Speeds, name: str, what: str) -> Ratio | None:
    """The speed of a variant over that of the unpruned network, in pairs; None where it has none."""
    own, plain = (
        {number: round[variant][what] for number, round in enumerate(rounds) if round[variant].get(what)}
        for variant in (name, "unpruned")
    )
    return ratio(own, plain) if own else None


def product_rows(rounds: Sequence[Mapping[str, Sequence[float]]]) -> list[Row]:
    """A matrix product whose weights are two of four zero, as it is and where Tensor Cores skip them."""
    own, plain = ({number: round[name] for number, round in enumerate(rounds)} for name in ("2:4", "with its zeros"))
    return [{"product, fp16": f"{PRODUCT} x {PRODUCT} x {PRODUCT}", "2:4, times as fast": ratio(own, plain)}]


def channel_rows(of: Accuracies, parameters: Mapping[float, float]) -> list[Row]:
    """Channel pruning: accuracy by the share of channels inside blocks that is gone. parameters: {share: left}."""
    return [
        {
            "channels gone %": 100 * share,
            "parameters left": parameters[share],
            "accuracy %": points(by_seed),
            "over unpruned, points": more(by_seed, of.unpruned),
        }
        for share, by_seed in sorted(of.channel_pruned.items())
        if by_seed
    ]


def job_rows(jobs: Jobs, count: int) -> list[Row]:
    """One training after the other, with all cores, against several at a time with one core each."""
    return [
        {
            "at a time": at_a_time,
            "trainings": count,
            "s": mean(seconds).mean,
            "times as soon": None if at_a_time == 1 else sooner(jobs, at_a_time),
        }
        for at_a_time, seconds in sorted(jobs.items())
        if seconds
    ]


def sooner(jobs: Jobs, at_a_time: int) -> Ratio | float:
    """How many times as soon trainings are done, so many at a time, as one after the other."""
    ratios = [one / several for one, several in zip(jobs[1], jobs[at_a_time], strict=True)]
    return of_pairs(ratios) if len(ratios) > 1 else ratios[0]


def claims(of: Accuracies, trained: Sequence[Mapping[str, Any]], rounds: Speeds, jobs: Jobs) -> list[Claim]:
    """What was published or expected, and what came of it."""
    late, first = of.reset_to(of.late, JUDGED), of.reset_to(0, JUDGED)
    late_weights = of.swapped.get((JUDGED, of.late, 0), {})
    other, at = of.reinitialised.get(JUDGED, {}), f"{in_percent(JUDGED)} pruned (points more)"
    found = [
        _of_seeds("late-reset", f"Late resetting beats resetting to the initialisation, {at}.", more(late, first)),
        _of_seeds(
            "late-weights",
            f"Late weights beat the initialisation where both are trained for all epochs, {at}.",
            more(late_weights, first),
        ),
        _of_seeds("initialisation", f"The initialisation beats other random weights, {at}.", more(first, other)),
        _of_seeds("late-reinitialised", f"Late resetting beats other random weights, {at}.", more(late, other)),
    ]
    global_masks, random_masks = (of.others.get((how, JUDGED), {}) for how in HOW[1:])
    text = f"A threshold over all layers beats one for each layer, {at}."
    found.append(_of_seeds("global-layer-wise", text, more(global_masks, late)))
    found.append(_of_seeds("layer-wise-random", f"Layer-wise masks beat random ones, {at}.", more(late, random_masks)))
    value = more(of.iterated.get((JUDGED, of.late), {}), late)
    found.append(_of_seeds("rounds", f"Pruning in rounds beats pruning in one shot, {at}.", value))
    excess = [100 * (share - asked) for run in trained for asked, share in run["misplaced"] if asked == JUDGED]
    text = f"With statistics in the threshold more is pruned than asked for, {at}."
    found.append(_of_seeds("pooled", text, mean(excess) if excess else None))
    found += _of_speed(rounds) if rounds else []
    most = max(jobs)
    if most > 1 and jobs[most] and isinstance(value := sooner(jobs, most), Ratio):
        text = f"Trainings {most} at a time, one core each, are done sooner than one after the other (times as soon)."
        found.append(claim("processes", text, value, above=1))
    return [one for one in found if one is not None]


def _of_seeds(id: str, text: str, value: Mean | None) -> Claim | None:
    """A claim that a mean over seeds is above 0: not decided of too few, or where all seeds differ by the same."""
    if value is None:
        return None
    varies = value.low is not None and value.high is not None and value.high - value.low > ROUNDING
    holds = above(value, 0) if varies and value.count >= FEWEST else None
    return claim(id, text, value, holds=holds)


def _of_speed(rounds: Speeds) -> list[Claim]:
    found = []
    for name in ("masked", "masks removed"):
        if value := times(rounds, name, "inference"):
            text = f"A network is as fast with {in_percent(TIMED_SHARE)} of its weights zero, {name} (times as fast)."
            found.append(claim(name.replace(" ", "-"), text, value, within=SAME_SPEED))
    if value := times(rounds, "channels pruned", "inference"):
        text = f"Without {in_percent(TIMED_SHARE)} of the channels inside its blocks it is faster (times as fast)."
        found.append(claim("channels", text, value, above=1))
    return found
