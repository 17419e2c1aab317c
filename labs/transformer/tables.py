"""The tables of this lab's study, from what `measure` returns. Tokens are real ones: padding never counts."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from labs.transformer import published
from labs.transformer.peaks import BATCH_SIZE
from labs.transformer.quality import LONGER, RANDOM
from labs.transformer.tricks import SMALL_BATCH, TRICKS
from labs.transformer.variants import BASELINE, PROGRAMS, VARIANTS, alone_name, cumulative_name, without_name
from walkthrough.compare.statistics import Mean, Ratio, mean, of_pairs, ratio
from walkthrough.compare.study import Row

Rounds = Sequence[Mapping[str, dict[str, Any]]]  # of `measure.speeds`: {variant: its speed, or {"failed": why}}
ByVariant = Mapping[str, dict[str, Any]]  # of `measure.memory` and `measure.predicted`
KINDS = ("parameters", "gradients", "optimizer", "activations", "inputs", "other")
YES_NO = {True: "yes", False: "no", None: "planned"}
ROWS_OF_CURVE = 21  # of padding by batch


def speed_ratio(rounds: Rounds, variant: str, other: str) -> Ratio | None:
    """How many times the real tokens/s of another a variant has, paired by round; None where either was not run."""
    windows = [
        {number: row[name]["tokens"] for number, row in enumerate(rounds) if row.get(name, {}).get("tokens")}
        for name in (variant, other)
    ]
    if variant == other or not set(windows[0]) & set(windows[1]):
        return None
    return ratio(*windows)


def median_of(rounds: Rounds, variant: str, what: str) -> float | None:
    """The median over all rounds' windows of "tokens" or "samples"; None where the variant was not run."""
    windows = [value for row in rounds for value in row.get(variant, {}).get(what, ())]
    return statistics.median(windows) if windows else None


def gigabytes(of: ByVariant, variant: str, what: str = "peak_bytes") -> float | None:
    """What a variant's memory is in GB; None where it could not be measured."""
    size = of.get(variant, {}).get(what)
    return None if size is None else size / 1e9


def over(of: ByVariant, variant: str, other: str) -> float | None:
    """The peak of a variant over that of another."""
    sizes = [gigabytes(of, name) for name in (variant, other)]
    return None if None in sizes or not sizes[1] else sizes[0] / sizes[1]  # pyright: ignore[reportOptionalOperand]


def padding_of(variant: str, padding: Mapping[str, Any]) -> float:
    """The share of padding in a variant's batches, in %."""
    tricks = VARIANTS[variant]
    kind = "packed" if "packing" in tricks else "dynamic" if "dynamic_padding" in tricks else "fixed"
    kind = "uniform" if "uniform_length" in tricks else kind
    return 100 * padding["share"][kind + (" bigger" if "bigger_batch" in tricks else "")]


def program_rows(rounds: Rounds, memory: ByVariant, predicted: ByVariant, padding: Mapping[str, Any]) -> list[Row]:
    """The numbered programs: speed over the baseline and over the program before, padding, memory."""
    names = {PROGRAMS[0]: BASELINE, **dict(zip(PROGRAMS[1:], map(cumulative_name, TRICKS), strict=True))}
    rows, before = [], None
    for program, variant in names.items():
        rows.append(
            {
                "program": program,
                "samples/s": median_of(rounds, variant, "samples"),
                "tokens/s": median_of(rounds, variant, "tokens"),
                "times the baseline": speed_ratio(rounds, variant, BASELINE),
                "times the one before": before and speed_ratio(rounds, variant, before),
                "padding %": padding_of(variant, padding),
                "peak MB here": (size := gigabytes(memory, variant)) and size * 1e3,
                "peak GB predicted for a T4": gigabytes(predicted, variant),
            }
        )
        before = variant
    return rows


def alone_rows(rounds: Rounds, memory: ByVariant, predicted: ByVariant) -> list[Row]:
    """Each trick alone on the baseline: its speed and memory over those of what it is added to."""
    return [
        {
            "trick": trick,
            "added to": without_name(trick).removeprefix("alone "),
            "samples/s": median_of(rounds, alone_name(trick), "samples"),
            "tokens/s": median_of(rounds, alone_name(trick), "tokens"),
            "times as fast": speed_ratio(rounds, alone_name(trick), without_name(trick)),
            "of the peak here": over(memory, alone_name(trick), without_name(trick)),
            "of the peak predicted for a T4": over(predicted, alone_name(trick), without_name(trick)),
        }
        for trick in TRICKS
    ]


def yes_no_rows(rounds: Rounds, predicted: ByVariant) -> list[Row]:
    """The published table, which says yes and no, with our numbers next to it: each trick alone."""
    return [
        {
            "technique": trick,
            "faster, published": YES_NO[said.faster],
            "times as fast": speed_ratio(rounds, alone_name(trick), without_name(trick)),
            "less memory, published": YES_NO[said.less_memory],
            "of the peak predicted for a T4": over(predicted, alone_name(trick), without_name(trick)),
        }
        for trick, said in published.TABLE.items()
    ]


def memory_rows(predicted: ByVariant) -> list[Row]:
    """For the figure: GB at the peak by kind, of the baseline and of the variants whose memory differs from it."""
    shown = [BASELINE, *(alone_name(trick) for trick in TRICKS), cumulative_name(TRICKS[-1])]
    rows, seen = [], []
    for variant in shown:
        kinds = predicted.get(variant, {}).get("by_kind")
        if kinds and kinds not in seen:
            seen.append(kinds)
            name = "all programs' tricks" if variant == shown[-1] else variant.removeprefix("alone ")
            rows.append({"trick": name} | {kind: kinds[kind] / 1e9 for kind in KINDS})
    return rows


def length_rows(padding: Mapping[str, Any]) -> list[Row]:
    """The histogram of the texts' lengths."""
    return [{"tokens": first, "texts": count} for first, count in padding["lengths"]]


def padding_rows(padding: Mapping[str, Any]) -> list[Row]:
    """The share of padding by what makes the batches, with the baseline's batch and with the larger one."""
    return [
        {
            "batches": kind,
            f"padding %, batches of {SMALL_BATCH}": 100 * padding["share"][kind],
            "padding %, bigger batches": 100 * padding["share"][f"{kind} bigger"],
        }
        for kind in ("fixed", "dynamic", "uniform", "packed")
    ]


def padding_curve_rows(padding: Mapping[str, Any]) -> list[Row]:
    """For the figure: the shares of single bigger batches in order, at each twentieth of them."""
    ordered = {kind: sorted(shares) for kind, shares in padding["batches"].items() if "bigger" in kind}
    rows = []
    for number in range(ROWS_OF_CURVE):
        part = number / (ROWS_OF_CURVE - 1)
        rows.append(
            {"% of batches": 100 * part}
            | {
                kind.removesuffix(" bigger"): 100 * shares[round(part * (len(shares) - 1))]
                for kind, shares in ordered.items()
            }
        )
    return rows


def worker_rows(runs: Mapping[int, Sequence[dict[str, Any]]]) -> list[Row]:
    """The baseline by its loader's workers: {workers: `measure.loading` of each round}."""
    base = min(runs)
    return [
        {
            "workers": workers,
            "loader alone, samples/s": statistics.median(run["loader"] for run in done),
            "training, samples/s": statistics.median(speed for run in done for speed in run["samples"]),
            "times none": None if workers == base else worker_ratio(runs, workers, base),
            "read from disk, kB": disk_kb(done),
        }
        for workers, done in runs.items()
    ]


def worker_ratio(runs: Mapping[int, Sequence[dict[str, Any]]], workers: int, other: int) -> Ratio:
    """How many times the training's samples/s with another number of workers, paired by round."""
    first, second = ({number: run["samples"] for number, run in enumerate(runs[count])} for count in (workers, other))
    return ratio(first, second)


def disk_kb(done: Sequence[dict[str, Any]]) -> float | None:
    """What a training read from disk while it was timed, kB in all rounds; None where the system does not say."""
    reads = [run["disk_bytes"] for run in done]
    return None if None in reads else sum(reads) / 1e3


def quality_rows(trained: Mapping[str, Sequence[dict[str, Any]]], simpler: Mapping[str, Any]) -> list[Row]:
    """Accuracy on held-out files after the same number of tokens, means over seeds, and what is simpler next to it."""
    rows: list[Row] = [
        {
            "trained with": name,
            "seeds": len(runs),
            "tokens": runs[0]["tokens"],
            "steps": round(statistics.fmean(run["steps"] for run in runs)),
            "test accuracy %": percent([run["accuracy"] for run in runs]),
            "points more than random batches": None if name in (RANDOM, LONGER) else points(trained, name),
            "test loss": mean([run["loss"] for run in runs]),
        }
        for name, runs in trained.items()
        if runs
    ]
    for name, accuracy in simpler["accuracy"].items():
        rows.append({"trained with": f"{name}, all training texts", "test accuracy %": 100 * accuracy})
    return rows


def percent(shares: Sequence[float]) -> Mean:
    """The `Mean` of shares (0..1), in %; its interval ends at 0 and 100, which Student's t does not know of."""
    value = mean([100 * share for share in shares])
    if value.low is None or value.high is None:
        return value
    return Mean(value.mean, max(0.0, value.low), min(100.0, value.high), value.count)


def points(trained: Mapping[str, Sequence[dict[str, Any]]], name: str) -> Mean:
    """How many percentage points more accurate than with random batches, over pairs of one seed."""
    pairs = zip(trained[name], trained[RANDOM], strict=False)
    return mean([100 * (one["accuracy"] - other["accuracy"]) for one, other in pairs])


def noise_rows(noise: Sequence[Mapping[str, float]]) -> list[Row]:
    """How much gradients vary from batch to batch, over seeds."""
    of_norm = [one["random"] / one["squared_norm"] for one in noise if one["squared_norm"]]
    return [
        {
            "seeds": len(noise),
            "variance over squared norm, random batches": mean(of_norm) if of_norm else None,
            "variance, uniform over random": noise_ratio(noise),
        }
    ]


def noise_ratio(noise: Sequence[Mapping[str, float]]) -> Ratio | None:
    """The variance of the gradients of uniform batches over that of random ones, over seeds; None of one seed."""
    return of_pairs([one["uniform"] / one["random"] for one in noise]) if len(noise) > 1 else None


def explained_rows(explained: Mapping[str, dict[str, Any]]) -> list[Row]:
    """What `explain` says first of a program's trace."""
    rows = []
    for name, told in explained.items():
        first = told["advice"][0] if told["advice"] else None
        rows.append(
            {
                "trace of": name,
                "explain says first": first["title"] if first else "nothing",
                "% of the step": first and 100 * first["share_of_step"],
                "also": "; ".join(one["title"] for one in told["advice"][1:3]) or None,
            }
        )
    return rows


def notes(rounds: Rounds, padding: Mapping[str, Any], simpler: Mapping[str, Any]) -> list[str]:
    """What the figures rest on, and what could not be run."""
    said = [
        f"{padding['texts']} training texts ({padding['source']}, {padding['classes']} classes), of "
        f"{padding['mean_tokens']:.0f} tokens in the mean, half of them of at most {padding['median_tokens']:.0f}, cut "
        f"at {padding['max_tokens']}",
        f"quality is of {len(simpler['classes'])} classes, {simpler['sizes']['train']} training and "
        f"{simpler['sizes']['test']} test texts; tricks without a row give the losses of random batches up to rounding",
        f"predicted: DistilBERT's own size, mixed precision as fp16, batches of {SMALL_BATCH}, bigger ones of "
        f"{BATCH_SIZE}; the batch of an epoch with the most tokens; workers and compiling have no effect on it",
    ]
    failed = {name: row["failed"] for one in rounds for name, row in one.items() if "failed" in row}
    return said + [f"{name} was not run: {why}" for name, why in failed.items()]
