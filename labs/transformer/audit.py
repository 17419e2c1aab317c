"""The published claims, and what this lab expected, each next to what was measured; see `published` for the source."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from labs.transformer import published
from labs.transformer.bag_of_words import TOKENS
from labs.transformer.quality import BIGGER, HALF, LONGER, UNIFORM
from labs.transformer.tables import (
    ByVariant,
    Rounds,
    disk_kb,
    noise_ratio,
    over,
    points,
    speed_ratio,
    worker_ratio,
)
from labs.transformer.tricks import TRICKS
from labs.transformer.variants import BASELINE, HALF_FUSED, alone_name, cumulative_name, without_name
from walkthrough.compare.statistics import mean
from walkthrough.compare.study import Claim, claim

ALIKE = (0.95, 1.05)  # times the memory: no more and no less
TWICE = 1.8  # times as fast: at least that is "half the time"
NOISE = (0.8, 1.25)  # times the variance: surely in between is "as random"
POINTS = 2.0  # accuracies that differ by fewer percentage points are "kept"
OURS = 3.0  # times the tokens/s of the baseline that all tricks together had to reach here


def speed_claims(rounds: Rounds) -> list[Claim]:
    """About the tokens/s of the tricks, together and alone."""
    claims = []

    def faster(name: str, text: str, variant: str, other: str, limit: float = 1.0) -> None:
        if value := speed_ratio(rounds, variant, other):
            claims.append(claim(name, text, value, above=limit))

    run = [trick for trick in TRICKS if speed_ratio(rounds, cumulative_name(trick), BASELINE)]
    last = cumulative_name(run[-1]) if run else BASELINE
    published_minutes = f"published: about {published.MINUTES_BEFORE} -> {published.MINUTES_AFTER} minutes"
    faster(
        "together",
        f"The published tricks together train at least {published.SPEED_UP:g} times as fast ({published_minutes}; "
        "here the programs up to checkpointing).",
        cumulative_name("gradient_checkpointing"), BASELINE, published.SPEED_UP,
    )  # fmt: skip
    faster("all-together", f"The last program is at least {published.SPEED_UP:g} times as fast as the baseline.",
          last, BASELINE, published.SPEED_UP)  # fmt: skip
    faster("together-here", f"It is at least {OURS:g} times as fast here.", last, BASELINE, OURS)
    faster(
        "half-time", f"Half the precision, half the time: mixed precision alone is at least {TWICE:g} times as fast.",
        alone_name("mixed_precision"), BASELINE, TWICE,
    )  # fmt: skip
    for trick, text in (
        ("bigger_batch", "A bigger batch is faster"),
        ("dynamic_padding", "Dynamic padding is faster, alone"),
        ("uniform_length", "Batches of uniform length are faster than random ones, both padded dynamically"),
        ("packing", "Packing is faster than fixed padding"),
        ("sdpa", "Fused attention is faster than eager"),
        ("fused_adamw", "Fused AdamW is faster"),
        ("compile", "torch.compile is faster, once it has compiled"),
    ):
        faster(trick, f"{text} (times the real tokens/s).", alone_name(trick), without_name(trick))
    for trick, text in (
        ("gradient_accumulation", "Accumulation makes the bigger batch slower"),
        ("gradient_checkpointing", "Checkpointing makes a step slower"),
    ):
        if value := speed_ratio(rounds, alone_name(trick), without_name(trick)):
            claims.append(claim(f"{trick}-time", f"{text} (times the tokens/s).", value, below=1.0))
    return claims


def memory_claims(predicted: ByVariant) -> list[Claim]:
    """About the memory that a T4 needs. Predicted, so without intervals: it does not vary."""
    claims = []
    for name, text, variant, other, holds in (
        (
            "mixed-precision-memory",
            "Mixed precision saves no memory (published: it is for speed): of the baseline's peak, to within 5 %.",
            alone_name("mixed_precision"), BASELINE, lambda share: ALIKE[0] <= share <= ALIKE[1],
        ),
        (
            "mixed-precision-memory-fused",
            "It saves no memory with fused attention either, where no scores are kept in float32.",
            HALF_FUSED, alone_name("sdpa"), lambda share: ALIKE[0] <= share <= ALIKE[1],
        ),
        (
            "accumulation-memory", "Gradient accumulation saves memory: of the peak of the bigger batch.",
            alone_name("gradient_accumulation"), alone_name("bigger_batch"), lambda share: share < ALIKE[0],
        ),
        (
            "checkpointing-memory", "Gradient checkpointing saves memory: of the baseline's peak.",
            alone_name("gradient_checkpointing"), BASELINE, lambda share: share < ALIKE[0],
        ),
        (
            "dynamic-padding-memory",
            "Dynamic padding saves memory: of the baseline's peak (the heaviest batch of an epoch).",
            alone_name("dynamic_padding"), BASELINE, lambda share: share < ALIKE[0],
        ),
    ):  # fmt: skip
        share = over(predicted, variant, other)
        if share is not None:
            claims.append(claim(name, text, share, holds=holds(share)))
    return claims


def loading_claims(runs: Mapping[int, Sequence[dict[str, Any]]]) -> list[Claim]:
    """About workers and pinned memory; runs: {workers: `measure.loading` of each round}."""
    claims, rule = [], published.WORKERS_PER_GPU
    if rule in runs and len(runs) > 1:
        speed = {
            workers: statistics.median(value for run in done for value in run["samples"])
            for workers, done in runs.items()
        }
        other = max((workers for workers in speed if workers != rule), key=lambda workers: speed[workers])
        value = worker_ratio(runs, rule, other)
        text = f"{rule} workers per GPU are faster than any other number (times the samples/s of the best, {other})."
        claims.append(claim("workers-four", text, value, above=1.0))
    if 0 in runs and (read := disk_kb(runs[0])) is not None:
        text = (
            "Pinned memory avoids the disk: without it, training reads batches from the disk (kB while it was timed, "
            "the loader in the same process)."
        )
        per_round = mean([run["disk_bytes"] / 1e3 for run in runs[0]])
        holds = False if read == 0 else True if (per_round.low or 0) > 0 else None
        claims.append(claim("pinned-disk", text, per_round, holds=holds))
    return claims


def quality_claims(trained: Mapping[str, Sequence[dict[str, Any]]]) -> list[Claim]:
    """About accuracy after the same number of tokens, over pairs of one seed."""
    claims = []
    for name, id, text in (
        (UNIFORM, "uniform-accuracy", "Batches of uniform length keep the accuracy"),
        (BIGGER, "bigger-accuracy", "The bigger batch keeps the accuracy, at the same learning rate"),
        (HALF, "half-accuracy", "Half precision keeps the accuracy"),
    ):
        if len(trained.get(name, ())) < 2:
            continue
        value = points(trained, name)
        text += f": the difference is surely less than {POINTS:g} percentage points (points more)."
        claims.append(claim(id, text, value, within=(-POINTS, POINTS)))
    return claims


def bag_claims(trained: Mapping[str, Sequence[dict[str, Any]]], simpler: Mapping[str, float]) -> list[Claim]:
    """Whether a transformer that was trained for longer is more accurate than bags of words; over seeds.

    simpler: accuracies (0..1) by name. A bag has no seed: it is the same each time.
    """
    claims, runs = [], trained.get(LONGER, ())
    for number, name in enumerate(TOKENS):
        if len(runs) < 2 or name not in simpler:
            continue
        value = mean([100 * (run["accuracy"] - simpler[name]) for run in runs])
        text = f"A DistilBERT without pretraining, trained for longer, beats a {name} (points more, over seeds)."
        id = ("bag", "bag-punctuation")[number]
        claims.append(claim(id, text, value, above=0))
    return claims


def noise_claims(noise: Sequence[Mapping[str, float]]) -> list[Claim]:
    """Whether batches of uniform length are as random as others."""
    value = noise_ratio(noise)
    if value is None:
        return []
    text = (
        "Batches of uniform length are as random as others: the variance of their gradients over that of random ones "
        f"is surely between {NOISE[0]:g} and {NOISE[1]:g}."
    )
    return [claim("uniform-noise", text, value, within=NOISE)]
