"""The tables and claims of this lab's study, from what was measured. ROUGE is in percent, as papers print it."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from labs.simcls import published
from labs.simcls.packages import difference, over_packages, over_seeds, percent
from labs.simcls.training import METHODS, ranking_model
from walkthrough.compare.statistics import mean, ratio
from walkthrough.compare.study import Claim, Row, claim

Runs = dict[str, list[dict[str, Any]]]  # {program: its result.json of each round}
Memory = dict[int, tuple[dict[str, Any] | None, dict[str, Any] | None]]  # {candidates: (as it is, checkpointed)}
Folds = Sequence[dict[str, Any]]  # `training.Trained`, as JSON
KINDS = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
RULES = ("random", "first", "best place", "nearest length")
NEAR = 0.1  # a share: memory that is as near as that to what its tokens say grows with them


def ranking_rows(folds: Folds) -> list[Row]:
    """ROUGE by method: the mean over documents, its interval over packages, how far it comes from random to oracle."""
    rows = []
    for method in METHODS:
        kinds = {name: over_packages(folds, percent(method, number)) for number, name in enumerate(KINDS)}
        figures = published.ROUGE.get(method)
        rows.append(
            {
                "candidate chosen": method,
                **kinds,
                "mean of the three": over_packages(folds, percent(method)),
                "of the way from random to oracle": over_packages(
                    folds, difference(method, "random"), difference("oracle", "random")
                ),
                "published, CNN/DailyMail": figures and " / ".join(f"{value:.2f}" for value in figures),
            }
        )
    return rows


def paired_rows(folds: Folds) -> list[Row]:
    """The re-ranker against what needs no model, on the same documents: over packages, and over seeds alone.

    And whether its own interval lies above the rule's: see `points_between`.
    """
    return [
        {
            "against": method,
            f"points of ROUGE more, over {units(folds)}": over_packages(folds, difference("re-ranked", method)),
            "the same, over seeds": over_seeds(folds, difference("re-ranked", method)),
            "times its ROUGE": over_packages(folds, percent("re-ranked"), percent(method)),
            "own interval above the rule's": None if (gap := points_between(folds, method)) is None else gap > 0,
        }
        for method in RULES
    ]


def points_between(folds: Folds, method: str) -> float | None:
    """From the upper end of a method's own interval to the lower end of the re-ranker's, in points of ROUGE.

    Below 0 where the re-ranker's does not lie above it. None where there is no interval.
    """
    mine, theirs = (over_packages(folds, percent(name)) for name in ("re-ranked", method))
    return None if mine.low is None or theirs.high is None else mine.low - theirs.high


def units(folds: Folds) -> str:
    """What intervals are over, and what is tested on in whole: packages of docstrings, or articles one by one."""
    return "packages" if folds[0]["source"] == "docstrings" else "articles"


def fold_rows(folds: Folds) -> list[Row]:
    """What each run trained and tested on, and what came of it."""
    of_packages = units(folds) == "packages"
    return [
        {
            "fold": fold["fold"],
            "seed": fold["seed"],
            **{
                f"{name} documents{' (packages)' * of_packages}": f"{fold['documents'][name]}"
                + f" ({fold['packages'][name]})" * of_packages
                for name in ("train", "validation", "test")
            },
            "epoch chosen": fold["chosen"],
            **{method: over_packages([fold], percent(method)).mean for method in (*RULES, "re-ranked", "oracle")},
        }
        for fold in folds
    ]


def curve_rows(folds: Folds) -> list[Row]:
    """Validation ROUGE and loss after each epoch: means over folds and seeds, with their intervals; first for scale."""
    rows = []
    for variant, values in (("re-ranked", "validation"), ("first", "validation_first")):
        for epoch in range(len(folds[0]["validation"])):
            of_folds = [fold[values][epoch] if variant == "re-ranked" else fold[values] for fold in folds]
            losses = [fold["losses"][epoch - 1] for fold in folds] if epoch and variant == "re-ranked" else None
            validation = mean([100 * value for value in of_folds])
            rows.append(
                {
                    "variant": variant,
                    "epoch": epoch,
                    "validation ROUGE": validation,
                    "training loss": losses and mean(losses),
                }
            )
    return rows


def program_rows(runs: Runs) -> list[Row]:
    """The numbered programs: speed and memory, over the baseline and over the program before.

    Speeds and times are the median of the rounds' medians, the peak is the highest of all rounds; the ratios are of
    all rounds, in pairs.
    """
    names, rows = list(runs), []
    for name, before in zip(names, [None, *names], strict=False):
        rounds = runs[name]
        rows.append(
            {
                "program": name,
                "documents/s": median(run["samples_per_second"]["median"] for run in rounds),
                "tokens/s": median(run["tokens_per_second"]["median"] for run in rounds),
                "step ms": median(run["step_ms"]["median"] for run in rounds),
                "peak MB": max(run["peak_memory_bytes"]["allocated"] for run in rounds) / 1e6,
                "workers": rounds[0]["workers"],
                "precision": rounds[0]["precision"],
                "times the baseline": speed_ratio(runs, name, names[0]) if before else None,
                "times the one before": speed_ratio(runs, name, before) if before else None,
            }
        )
    return rows


def speed_ratio(runs: Runs, name: str, other: str) -> Any:
    """The `Ratio` of two programs' documents/s, paired by round."""
    rounds = [
        {number: run["samples_per_second"]["windows"] for number, run in enumerate(runs[program])}
        for program in (name, other)
    ]
    return ratio(*rounds)


def memory_rows(memory: Memory) -> list[Row]:
    """What forward and backward need by the number of candidates, beyond weights and moments."""

    rows = []
    for candidates, (plain, checkpointed) in memory.items():
        known: dict[str, Any] = plain or checkpointed or {}
        megabytes = [both["bytes"] / 1e6 if both else None for both in (plain, checkpointed)]
        rows.append(
            {
                "candidates": candidates,
                "sequences per step": known.get("sequences"),
                "tokens per step": known.get("tokens"),
                "MB": megabytes[0],
                "MB, checkpointed": megabytes[1],
                "of it": megabytes[1] / megabytes[0] if megabytes[0] and megabytes[1] else None,
                "step ms": plain and plain["step_ms"],
                "step ms, checkpointed": checkpointed and checkpointed["step_ms"],
            }
        )
    return rows


def ranking_claims(folds: Folds) -> list[Claim]:
    """Whether re-ranking beats each rule on the same documents; and whether the methods' own intervals are apart."""
    claims, over = [], units(folds)
    for method in RULES:
        points = over_packages(folds, difference("re-ranked", method))
        text = f"The re-ranker chooses better summaries than {WORDS[method]} (points of ROUGE, interval over {over})"
        claims.append(claim(f"beats_{method.replace(' ', '_')}", text, points, above=0))
    for method in ("random", "first"):
        points = over_seeds(folds, difference("re-ranked", method))
        text = f"So it does on these {over} whatever the seed, compared with {WORDS[method]} (interval over seeds)"
        claims.append(claim(f"beats_{method}_over_seeds", text, points, above=0))
    for method in ("random", "first"):
        gap = points_between(folds, method)
        text = (
            f"Its own interval and that of {WORDS[method]} are apart, {over} varying as they do (points of ROUGE "
            "between them; below 0: they overlap)"
        )
        claims.append(claim(f"apart_from_{method}", text, gap, above=0))
    return claims


WORDS = {
    "random": "a random candidate",
    "first": "the first sentence",
    "best place": "the place that is best on the validation documents",
    "nearest length": "the candidate of the usual length",
}


def program_claims(runs: Runs) -> list[Claim]:
    """What each program was expected to do to the speed of the one before."""
    expected = {
        "01_workers": ("00_baseline", "Workers make the training faster (times the one before)", True),
        "02_half_precision": ("01_workers", "Half precision makes it faster (times the one before)", True),
        "03_checkpointing": ("02_half_precision", "Checkpointing makes it slower (times the one before)", False),
        "04_ordered_once": ("03_checkpointing", "ROUGE once instead of in every epoch makes it faster (times)", True),
    }
    claims = []
    for name, (before, text, faster) in expected.items():
        if name in runs and before in runs:
            speed = speed_ratio(runs, name, before)
            claims.append(claim(name, text, speed, **{"above" if faster else "below": 1}))
    return claims


def memory_claims(memory: Memory) -> list[Claim]:
    """Whether memory grows with the tokens, and what checkpointing keeps of it. Without intervals: it does not vary."""
    few, many = memory[min(memory)], memory[max(memory)]
    claims = []
    if few[0] and many[0]:
        tokens = many[0]["tokens"] / few[0]["tokens"]
        text = (
            f"{max(memory)} candidates need as many times the memory of {min(memory)} as they have tokens, within "
            f"{NEAR:.0%} (times the memory, over {tokens:.2f} times the tokens)"
        )
        growth = many[0]["bytes"] / few[0]["bytes"] / tokens
        claims.append(claim("memory_by_tokens", text, growth, within=(1 - NEAR, 1 + NEAR)))
    if many[0] and many[1]:
        kept = many[1]["bytes"] / many[0]["bytes"]
        text = f"Checkpointing halves what a step with {max(memory)} candidates needs (share that is left)"
        claims.append(claim("checkpointing_memory", text, kept, holds=kept <= 0.5))
    return claims


def notes(folds: Folds, runs: Runs, model: str) -> list[str]:
    """What the figures rest on, and what this device could not do. model: of the options."""
    first = folds[0]
    total, tested = sum(first["documents"].values()), [fold["packages"]["test"] for fold in folds]
    said = [
        f"{first['source']}: {total} documents in fold {first['fold']}, and {first['dropped']} left out because too "
        "few candidates can be made from them"
    ]
    if units(folds) == "packages":
        said[0] += "; other machines have other packages, so other documents"
        said.append(
            f"{among(tested)} packages tested in a fold, with a model that saw none of them; training "
            "parts overlap, and a few packages have most of the documents, so intervals are somewhat too narrow"
        )
    else:
        said.append(
            "the data set's own splits: all folds train and test on the same articles, and differ in random numbers "
            "alone; intervals are over articles"
        )
    if (trained_with := ranking_model(model)) != model:
        said.append(f"the ranking is trained with the encoder {trained_with}, everything else is measured with {model}")
    return said + list(dict.fromkeys(note for of_rounds in runs.values() for run in of_rounds for note in run["notes"]))


def among(numbers: Sequence[int]) -> str:
    """ "3" where all are, "3 to 5" where they differ."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
