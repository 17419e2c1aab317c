"""The study's claims: what was published or expected, and what came of it."""

import statistics
from collections.abc import Mapping

from labs.scale import published
from labs.scale.measure import EACH, LAST, PIPELINES, SHARDS
from labs.scale.tables import Answers, ByRound, consumption, efficiency, of_rounds, over, speed_up
from walkthrough.compare.statistics import Ratio, of_pairs, ratio
from walkthrough.compare.study import Claim, claim

FIRST, WORKERS, BATCHED = PIPELINES[:3]
FASTER = 5.0  # times the images/s of decoding per image: the goal of shards


def claims(by_size: Mapping[int, ByRound], scaled: Answers, accumulation: Answers, straggler: Answers) -> list[Claim]:
    """What was published or expected, and what came of it. by_size: {px: rounds}, the lab's own first."""
    size, rounds = next(iter(by_size.items()))
    shards, first, spread = (of_rounds(rounds, name, "delivered") for name in (SHARDS, FIRST, WORKERS))
    consumed = consumption(rounds)
    text = f"At {size} px the model consumes more than decoding each in the main process delivers (times)."
    listed = [_of_ratio("starved", text, over(consumed, first), 1)]
    for id, other, text in (
        ("shards", first, "decoding each in the main process"),
        ("shards-workers", spread, "decoding each in workers"),
    ):
        value = over(shards, other)
        text = f"Shards of {size} px deliver at least {FASTER:.0f} times the images/s of {text} (times)."
        listed.append(_of_ratio(id, text, value, FASTER))
    value = over(of_rounds(rounds, BATCHED, "delivered"), spread)
    listed.append(_of_ratio("batched", "Normalising batches beats normalising images (times the images/s).", value, 1))
    text = f"Shards of {size} px deliver more than the model consumes (times)."
    listed.append(_of_ratio("fed", text, over(shards, consumed), 1))
    if large := [px for px in by_size if px > size]:
        other = consumption(by_size[large[0]])
        times = published.SMALL_OVER_LARGE
        text = f"At {size} px a model trains at least {times:.0f} times the images/s of {large[0]} px (times)."
        listed.append(_of_ratio("small-images", text, over(consumed, other), times))
    if scaled and (last := scaled[0]["strong"][-1])["processes"] > 1 and not last["oversubscribed"]:
        processes = last["processes"]
        for kind in ("strong", "weak"):
            text = (
                f"{processes} processes reach the published efficiency of {published.EFFICIENCY}, {kind} scaling "
                "(efficiency)."
            )
            value = efficiency(speed_up(scaled, kind, len(scaled[0][kind]) - 1), processes)
            listed.append(_of_ratio(f"efficiency-{kind}", text, value, published.EFFICIENCY))
    if accumulation:
        speeds = [
            {number: run["images_per_second"][exchange] for number, run in enumerate(accumulation)}
            for exchange in (LAST, EACH)
        ]
        text = "Exchanging gradients in the last pass alone is faster than in each (times)."
        listed.append(_of_ratio("no-sync", text, ratio(*speeds), 1))
    if straggler:
        ratios = [
            statistics.fmean(rank["communication_ms"] for rank in answer["delayed"]["ranks"][:-1])
            / answer["delayed"]["ranks"][-1]["communication_ms"]
            for answer in straggler
        ]
        text = "The others' collectives take longer than those of the rank that sleeps (times)."
        listed.append(_of_ratio("straggler", text, of_pairs(ratios) if len(ratios) > 1 else None, 1))
    return [one for one in listed if one is not None]


def _of_ratio(id: str, text: str, value: Ratio | None, limit: float) -> Claim | None:
    """A claim that a ratio is above a limit."""
    return value and claim(id, text, value, above=limit)
