"""The published claims, each next to what was measured here: see `published` for where they are from."""

from typing import Any

from labs.memory import published
from labs.memory.model import PUBLISHED, resnext
from walkthrough.compare.statistics import mean, of_pairs, ratio
from walkthrough.compare.study import Claim, Row, above, claim

import torch

BASELINE, CHECKPOINTED = "00_baseline", "02_checkpointing"
POINTS = 2.0  # accuracies that differ by fewer percentage points are "kept"
ALIKE = (0.8, 1.25)  # losses whose ratio is surely in between are "the same"
GROWS = 2.0  # times: an optimizer that takes surely longer than that "grows with the batch"
A100_BYTES_PER_SECOND = 1.555e12  # of its memory, by NVIDIA's data sheet (40 GB)
ADAM_BYTES_PER_PARAMETER = 28  # float32: reads weight, gradient and two moments, writes weight and both moments


def claims(
    tables: dict[str, list[Row]],
    times: dict[int, Any],
    curves: dict[str, list[list[dict[str, float]]]],
    device: str,
) -> list[Claim]:
    """All claims that were measured. times, curves: what `study.Study` returns of them. device: "cpu" or a GPU."""
    found = [
        *_about_workers(tables["workers"]),
        *_about_half_precision(tables["half_precision"]),
        *_about_checkpointing(tables["checkpointing"]),
        *_about_same_memory(tables["same_memory"]),
        *_about_optimizer(times, device),
    ]
    if len(curves.get("base", ())) > 1:
        found += _about_curves(curves)
    return found


def _about_workers(rows: list[Row]) -> list[Claim]:
    by_workers = {row["workers"]: row["speed"] for row in rows}
    if 2 not in by_workers or 0 not in by_workers:
        return []
    value = by_workers[2]
    text = "Two loader workers make an epoch faster than none (published: 67.7 -> 44.5 s, 1.52x)."
    return [claim("workers", text, value, above=1)]


def _about_half_precision(rows: list[Row]) -> list[Claim]:
    if len(rows) < 2:
        return []
    value = rows[1]["speed"]
    text = "Half precision makes a step faster (published: 104 -> 78 ms, 1.33x)."
    return [claim("half-precision", text, value, above=1)]


def _about_checkpointing(rows: list[Row]) -> list[Claim]:
    by_name = {row["program"]: row for row in rows}
    if CHECKPOINTED not in by_name:
        return []
    share, value = by_name[CHECKPOINTED]["of the baseline's"], by_name[CHECKPOINTED]["speed"]
    return [
        claim(
            "checkpoint-memory", "Checkpointing lowers the peak (published: 7.82 -> 5.11 GB, to 0.65).", share, below=1
        ),
        claim(
            "checkpoint-time", "Checkpointing makes a step slower (published: 104 -> 152 ms, 0.68x the speed).",
            value, below=1,
        ),
    ]  # fmt: skip


def _about_same_memory(rows: list[Row]) -> list[Claim]:
    by_name = {row["program"]: row for row in rows}
    if not {BASELINE, CHECKPOINTED} <= set(by_name):
        return []
    larger = by_name[CHECKPOINTED]["largest batch"] / by_name[BASELINE]["largest batch"]
    value = by_name[CHECKPOINTED]["speed"]
    return [
        claim(
            "same-memory-batch",
            "Checkpointing fits a larger batch into the same memory (published: 512 -> 896, 1.75x).",
            larger, above=1,
        ),
        claim(
            "same-memory-time", "Even so it is slower per image (published: 40 -> 56.5 s per epoch, 0.71x the speed).",
            value, below=1,
        ),
    ]  # fmt: skip


def _about_optimizer(times: dict[int, Any], device: str) -> list[Claim]:
    if len(times) < 2:
        return []
    smallest, largest = min(times), max(times)
    growth = {clock: ratio({0: times[largest][clock]}, {0: times[smallest][clock]}) for clock in ("after", "both")}
    after, both = growth["after"], growth["both"]
    grows = above(both, GROWS)
    text = (
        f"The optimizer takes longer with a larger batch (published: 28 -> 560 ms, 20x): over {GROWS:g} times as long "
        f"with batch {largest} as with {smallest}, the clock waiting for the device before and after."
    )
    clock_text = (
        "That growth is the backward pass's, in the clock: the time grows so if the clock waits after the optimizer "
        "only (the number next to it), and does not if it waits before as well."
    )
    parts = (above(after, GROWS), None if grows is None else not grows)
    wrong_clock = False if False in parts else None if None in parts else True
    if device == "cpu":  # nothing is queued, so the clocks do not differ
        wrong_clock = None
    return [
        claim("optimizer-grows", text, both, holds=grows),
        claim("optimizer-clock", clock_text, after, holds=wrong_clock),
    ]


def least_optimizer_ms() -> str:
    """A note, by arithmetic: how long Adam takes at least, for what it reads and writes. It refutes nothing."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in resnext(PUBLISHED).parameters())
    bytes_moved = parameters * ADAM_BYTES_PER_PARAMETER
    least_ms = bytes_moved / A100_BYTES_PER_SECOND * 1e3
    return (
        f"by arithmetic, Adam reads and writes {bytes_moved / 1e6:.0f} MB for the published model, whatever the batch: "
        f"{least_ms:.2f} ms at an A100's bandwidth, a lower bound, which does not refute the published "
        f"{published.BASE.optimizer_ms:g} ms"
    )


def _about_curves(curves: dict[str, list[list[dict[str, float]]]]) -> list[Claim]:
    found = []
    for id, name, text in (
        ("half-precision-accuracy", "half precision", "Half precision keeps the test accuracy"),
        ("checkpoint-accuracy", "checkpointing", "Checkpointing keeps the test accuracy"),
    ):
        pairs = zip(curves[name], curves["base"], strict=True)
        points = mean([100 * (one[-1]["test_accuracy"] - base[-1]["test_accuracy"]) for one, base in pairs])
        text += f": the difference is surely less than {POINTS:g} percentage points."
        found.append(claim(id, text, points, within=(-POINTS, POINTS)))
    pairs = zip(curves["larger batch"], curves["lower learning rate"], strict=True)
    alike = of_pairs([large[-1]["loss"] / low[-1]["loss"] for large, low in pairs])
    text = (
        "A larger batch acts like a smaller learning rate: 4 times the batch ends with the training loss of a quarter "
        f"of the learning rate (ratio surely between {ALIKE[0]} and {ALIKE[1]})."
    )
    found.append(claim("batch-like-learning-rate", text, alike, within=ALIKE))
    return found
