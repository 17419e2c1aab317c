"""The tables and claims of this lab's study, from what was measured.

A race that failed never reached the target: its time is longer than any other. So medians are over all races, failed
ones included, and there is none where half of them failed. Ratios of times are of pairs of races of one round that both
reached it; how many did not is next to them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from labs.speedrun import published
from labs.speedrun.race import Race
from walkthrough.compare.statistics import Mean, mean, of_pairs
from walkthrough.compare.study import Claim, Row, claim

Races = dict[str, dict[int, Race]]  # {program: {seed: its race}}; programs in the order of the ladder
PROGRAMS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[0-9][0-9]_*.py")))
NAIVE, LAST = PROGRAMS[0], PROGRAMS[-1]
FASTER_RATE = "00_naive, ten times the rate"
SOONER, SUCCESSES, RUNS = 10, 19, 20  # what this lab has to reach: times as soon; races of the last program
EQUAL_POINTS = 1.0  # accuracies that surely differ by less count as equal


def race_of(values: Mapping[str, Any]) -> Race:
    """The `Race` of a race's JSON."""
    return Race(**{field.name: values[field.name] for field in fields(Race)})


def median(values: Sequence[float | None]) -> float | None:
    """Of times to the target, None for a failure: None where half of them failed."""
    middle = statistics.median(math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def pairs(races: Races, slower: str, faster: str) -> list[float]:
    """How many times as soon one program reaches the target as another: of each seed from which both did."""
    ratios = []
    for seed, race in races.get(faster, {}).items():
        other = races.get(slower, {}).get(seed)
        if other and race.seconds_to_target and other.seconds_to_target:
            ratios.append(other.seconds_to_target / race.seconds_to_target)
    return ratios


def percent(shares: Sequence[float]) -> Mean:
    """The `Mean` of shares (0..1), in %; its interval ends at 0 and 100, which Student's t does not know of."""
    of_all = mean([100 * share for share in shares])
    if of_all.low is None or of_all.high is None:
        return of_all
    return replace(of_all, low=max(0.0, of_all.low), high=min(100.0, of_all.high))


def times(ratios: Sequence[float]) -> Any:
    """The `Ratio` of two pairs or more; of one pair the number alone; None of none."""
    return of_pairs(ratios) if len(ratios) > 1 else ratios[0] if ratios else None


def ladder_rows(races: Races) -> list[Row]:
    """Every program: how many of its races reached the target, when, and over the others."""
    rows, before = [], None
    for program, by_seed in races.items():
        done = list(by_seed.values())
        seconds = median([race.seconds_to_target for race in done])
        reached = [race.seconds_to_target for race in done if race.seconds_to_target]
        start_up = max(race.start_up_seconds for race in done)
        rows.append(
            {
                "program": program,
                "races": len(done),
                "reached it": len(reached),
                "epochs": median([race.epochs_to_target for race in done]),
                "s to target": seconds,
                "fastest": min(reached, default=None),
                "slowest": max(reached) if len(reached) == len(done) else None,
                "times as soon as the one before": times(pairs(races, before, program)) if before else None,
                "as the naive one": times(pairs(races, NAIVE, program)) if program != NAIVE else None,
                "accuracy at the end %": percent([race.accuracies[-1] for race in done]),
                "first steps s, at most": start_up,
                "s with them": None if seconds is None else seconds + start_up,
            }
        )
        before = program if program in PROGRAMS else before
    return rows


def race_rows(races: Races) -> list[Row]:
    """Each race: for the figure of the race, and for whoever wants another statistic."""
    return [
        {
            "program": program,
            "seed": seed,
            "s to target": race.seconds_to_target,
            "failure": race.failure or "",
            "accuracy at the end %": 100 * race.accuracies[-1],
        }
        for program, by_seed in races.items()
        for seed, race in by_seed.items()
    ]


def pareto_rows(races: Races) -> list[Row]:
    """Accuracy against training time, epoch by epoch: over a program's races that did not diverge, while all train."""
    rows = []
    for program, by_seed in races.items():
        done = [race for race in by_seed.values() if race.failure != "diverged"]
        epochs = min((len(race.seconds) for race in done), default=0)
        for epoch in range(epochs):
            rows.append(
                {
                    "program": program,
                    "epoch": epoch + 1,
                    "s": statistics.median(race.seconds[epoch] for race in done),
                    "accuracy %": statistics.fmean(100 * race.accuracies[epoch] for race in done),
                }
            )
    return rows


def published_rows(ladder: Sequence[Row], target: float, device: str, data: str) -> list[Row]:
    """What others published, and our first and last program."""
    rows = [
        {
            "who": run.who,
            "data": "CIFAR-10",
            "on": run.hardware,
            "accuracy %": run.accuracy,
            "s": run.seconds,
            "epochs": run.epochs,
            "remark": run.note,
        }
        for run in published.ROWS
    ]
    for row in ladder:
        if row["program"] in (NAIVE, LAST):
            remark = f"median; {row['reached it']} of {row['races']} races reached it"
            of_ours = {"data": data, "on": device, "accuracy %": 100 * target, "s": row["s to target"]}
            rows.append({"who": f"ours: {row['program']}", **of_ours, "epochs": row["epochs"], "remark": remark})
    return rows


def heat_rows(cells: Mapping[tuple[int, float], Sequence[float | None]]) -> list[Row]:
    """{(batch size, learning rate): accuracies, None for a run that diverged} as rows; such a run counts as 0."""
    rows = []
    for (batch_size, lr), accuracies in sorted(cells.items()):
        failed = sum(accuracy is None for accuracy in accuracies)
        rows.append(
            {
                "batch size": batch_size,
                "learning rate": lr,
                "accuracy %": percent([accuracy or 0.0 for accuracy in accuracies]),
                "failures": f"{failed} of {len(accuracies)} diverged" if failed else "",
            }
        )
    return rows


def ablation_rows(seeds: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Row]:
    """What changes when one idea is left out: paired by seed. A run that diverged counts as an accuracy of 0."""
    base = next(iter(seeds[0]))
    rows = []
    for name in seeds[0]:
        differences = [100 * ((seed[name]["accuracy"] or 0) - (seed[base]["accuracy"] or 0)) for seed in seeds]
        rows.append(
            {
                "variant": name,
                "seeds": len(seeds),
                "reached the target": sum(seed[name]["reached"] for seed in seeds),
                "accuracy at the end %": percent([seed[name]["accuracy"] or 0 for seed in seeds]),
                "points more": mean(differences) if name != base else None,
                "times its seconds": None if name == base else times(_seconds_over(seeds, name, base)),
            }
        )
    return rows


def _seconds_over(seeds: Sequence[Mapping[str, Mapping[str, Any]]], name: str, base: str) -> list[float]:
    """How many times the seconds of `base`, by seed; a run that diverged ended early, so it is left out."""
    return [
        seed[name]["seconds"] / seed[base]["seconds"]
        for seed in seeds
        if seed[name]["accuracy"] is not None and seed[base]["accuracy"] is not None
    ]


def curve_rows(seeds: Sequence[Mapping[str, Mapping[str, Any] | None]]) -> list[Row]:
    """Loss and accuracy by epoch, means over the seeds that did not diverge, of which "seeds" says how many."""
    rows = []
    for name in seeds[0]:
        done = [of_seed for seed in seeds if (of_seed := seed[name])]
        for epoch in range(len(done[0]["losses"]) if done else 0):
            rows.append(
                {
                    "variant": name,
                    "epoch": epoch + 1,
                    "seeds": len(done),
                    "training loss": mean([of_seed["losses"][epoch] for of_seed in done]),
                    "accuracy %": percent([of_seed["accuracies"][epoch] for of_seed in done]),
                }
            )
    return rows


def remembered_rows(seeds: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """By epoch: loss and accuracy on images by when they were last seen, the last fifth of the epoch first."""
    rows = []
    for epoch in range(len(seeds[0])):
        parts = [[*seed[epoch]["fifths"], seed[epoch]["unseen"]] for seed in seeds]
        names = [f"fifth {number} from the end" for number in range(1, len(parts[0]))]
        for number, name in enumerate([*names, "never: test images"]):
            own, last = ([part[at] for part in parts] for at in (number, 0))
            more = [one["loss"] - other["loss"] for one, other in zip(own, last, strict=True)]
            rows.append(
                {
                    "after epoch": epoch + 1,
                    "last seen": name,
                    "loss": mean([part["loss"] for part in own]),
                    "loss more than of the last": mean(more) if number else None,
                    "accuracy %": percent([part["accuracy"] for part in own]),
                }
            )
    return rows


def claims(
    races: Races,
    ablations: Sequence[Mapping[str, Mapping[str, Any]]],
    curves: Sequence[Mapping[str, Mapping[str, Any] | None]],
    remembered: Sequence[Sequence[Mapping[str, Any]]],
) -> list[Claim]:
    """What was to be reached, what was expected of each program, and what the write-up says."""
    rows = [of_ratio("sooner", f"The last program reaches the target {SOONER} times as soon as the naive one", races,
                     NAIVE, LAST, SOONER)]  # fmt: skip
    last = list(races.get(LAST, {}).values())
    if last:
        share = statistics.fmean(race.failure is None for race in last)
        text = f"The last program reaches the target in {SUCCESSES} of {RUNS} races ({len(last)} races; share)"
        holds = share >= SUCCESSES / RUNS if len(last) >= RUNS else None
        rows.append(claim("reliable", text, share, holds=holds))
    expected = {
        "02_on_device": "Augmentation on the device is sooner than image by image (times as soon)",
        "03_resnet9": "ResNet-9 is sooner than the naive network (times as soon)",
        "04_one_cycle": "One cycle of the learning rate is sooner than a constant rate (times as soon)",
        "05_decoupled_decay": "Momentum and decoupled decay are sooner than plain SGD (times as soon)",
        "14_muon": "Muon is sooner than SGD (times as soon)",
        "15_compile": "Compiled, the same is sooner, compiling aside (times as soon)",
    }
    for program, text in expected.items():
        before = PROGRAMS[PROGRAMS.index(program) - 1]
        rows.append(of_ratio(program, text, races, before, program, 1))
    text = "At ten times its learning rate the naive program is sooner (times as soon as at its own)"
    rows.append(of_ratio("rate", text, races, NAIVE, FASTER_RATE, 1))
    text = "The last program is sooner than the naive one at ten times its rate, too (times as soon)"
    rows.append(of_ratio("sooner-than-faster-rate", text, races, FASTER_RATE, LAST, 1))
    if ablations:
        base = next(iter(ablations[0]))
        for name, text in (
            ("no Lookahead", "Averaged weights are more accurate at the end (points)"),
            ("one view", "Tests on several views are more accurate (points)"),
        ):
            points = [100 * ((seed[base]["accuracy"] or 0) - (seed[name]["accuracy"] or 0)) for seed in ablations]
            rows.append(claim(name, text, mean(points), above=0))
    if remembered:
        more = [seed[-1]["fifths"][-1]["loss"] - seed[-1]["fifths"][0]["loss"] for seed in remembered]
        text = (
            "A network remembers the last images: their loss is lower than that of an epoch's first ones (difference, "
            "after the last epoch but one)"
        )
        rows.append(claim("remembers", text, mean(more), above=0))
    if curves:
        names = list(curves[0])
        pairs_of = [(seed[names[0]], seed[names[3]]) for seed in curves]
        differences = [
            100 * (larger["accuracies"][-1] - smaller["accuracies"][-1])
            for smaller, larger in pairs_of
            if smaller and larger
        ]
        text = (
            f"Four times the batch at four times the rate ends as accurate, within {EQUAL_POINTS} points (difference)"
        )
        within = (-EQUAL_POINTS, EQUAL_POINTS)
        rows += [claim("linear-scaling", text, mean(differences), within=within)] if differences else []
    return [row for row in rows if row is not None]


def of_ratio(name: str, text: str, races: Races, slower: str, faster: str, over: float) -> Claim | None:
    """A claim that one program reaches the target more than `over` times as soon; None where one did not race."""
    if slower not in races or faster not in races:
        return None
    ratios = pairs(races, slower, faster)
    if len(ratios) < 2:
        return claim(name, text, ratios[0] if ratios else None)
    return claim(name, text, of_pairs(ratios), above=over)
