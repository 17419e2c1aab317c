"""The study's tables and claims, from what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.studies.lab import Claim, Mean, Ratio, Row, above, mean, of_pairs, percent, ratio
from labs.scale import published
from labs.scale.measure import EACH, LAST, NEVER, PIPELINES, SHARDS
from labs.scale.one_rank import EXCHANGES

FIRST, WORKERS, BATCHED = PIPELINES[:3]
Answers = Sequence[Mapping[str, Any]]  # of each round, what a function of `measure` returned
FASTER = 5.0  # times the images/s of decoding per image: the goal of shards
EPOCH_COLUMNS = {  # header: (of `training.Epoch`, how its seeds are summed up)
    "training loss": ("loss", mean),
    "validation loss": ("validation_loss", mean),
    "top-1 %": ("top1", percent),
    "top-5 %": ("top5", percent),
}


def of_rounds(rounds: Answers, name: str, what: str) -> dict[int, list[float]]:
    """{round: [its figure]} of a pipeline, of the rounds that have one."""
    values = {number: answer["pipelines"].get(name, {}).get(what) for number, answer in enumerate(rounds)}
    return {number: [value] for number, value in values.items() if value is not None}


def middle(rounds: Mapping[int, Sequence[float]]) -> float | None:
    """The median over rounds; None of none."""
    return statistics.median(value for values in rounds.values() for value in values) if rounds else None


def over(one: Mapping[int, Sequence[float]], other: Mapping[int, Sequence[float]]) -> Ratio | None:
    """The `Ratio` of two in the same rounds; None where either has none."""
    return ratio(one, other) if one and other else None


def offline_rows(runs: Mapping[tuple[str, int], Answers], jpeg_bytes: int) -> list[Row]:
    """Making shards, by engine and size. runs: {(engine, px): rounds}. jpeg_bytes: of what they are made of."""
    rows = []
    for (engine, size), rounds in runs.items():
        digests = {answer["digest"] for (_, px), of_engine in runs.items() if px == size for answer in of_engine}
        rows.append(
            {
                "by": engine,
                "px": size,
                "images": rounds[0]["images"],
                "s": mean([answer["seconds"] for answer in rounds]),
                "images/s": statistics.median(answer["images"] / answer["seconds"] for answer in rounds),
                "MB of JPEGs": jpeg_bytes / 1e6,
                "MB of shards": rounds[0]["bytes"] / 1e6,
                "shards": rounds[0]["shards"],
                "the same bytes each time, by each": len(digests) == 1,
            }
        )
    return rows


def pipeline_rows(rounds: Answers) -> list[Row]:
    """What each pipeline delivers, beside what the model consumes. rounds: of `measure.pipelines`, of one size."""
    consumed = {number: [answer["consumed"]] for number, answer in enumerate(rounds)}
    rows, before = [], FIRST
    for name in _names(rounds):
        alone = of_rounds(rounds, name, "delivered")
        rows.append(
            {
                "pipeline": name,
                "images/s": middle(alone),
                "times decoding each": over(alone, of_rounds(rounds, FIRST, "delivered")) if name != FIRST else None,
                "times the one before": over(alone, of_rounds(rounds, before, "delivered")) if name != FIRST else None,
                "images/s of one core": middle(of_rounds(rounds, name, "per_cpu_second")),
                "MB on disk": rounds[0]["pipelines"][name]["bytes"] / 1e6,
                "times what the model consumes": over(alone, consumed),
            }
        )
        before = name
    return rows


def trained_rows(rounds: Answers) -> list[Row]:
    """What the model trains from each pipeline; [] where nothing was trained."""
    names = [name for name in _names(rounds) if of_rounds(rounds, name, "trained")]
    consumed = {number: [answer["consumed"]] for number, answer in enumerate(rounds)}
    return [
        {
            "trained from": name,
            "images/s": middle(of_rounds(rounds, name, "trained")),
            "times decoding each": over(of_rounds(rounds, name, "trained"), of_rounds(rounds, FIRST, "trained"))
            if name != FIRST
            else None,
            "of what the model consumes": over(of_rounds(rounds, name, "trained"), consumed),
        }
        for name in names
    ]


def _names(rounds: Answers) -> list[str]:
    """The pipelines, in the order of the ladder, which turned with the rounds."""
    return sorted(rounds[0]["pipelines"])


def epoch_rows(by_size: Mapping[int, Answers], device: str) -> list[Row]:
    """An epoch of ImageNet: published, and at the rates measured here, of pipelines and of the model alone."""
    hour = 3600
    rows: list[Row] = [
        {"whose": "published", "what": what, "h": hours, "images/s": published.IMAGES / hour / hours}
        for what, hours in published.EPOCH_HOURS.items()
    ]
    for size, rounds in by_size.items():
        rates = {f"{name}, {size} px": middle(of_rounds(rounds, name, "delivered")) for name in (FIRST, SHARDS)}
        rates[f"the model, {size} px"] = statistics.median(answer["consumed"] for answer in rounds)
        rows += [
            {"whose": device, "what": what, "h": published.IMAGES / hour / rate, "images/s": rate}
            for what, rate in rates.items()
            if rate
        ]
    return rows


def scaling_rows(rounds: Answers) -> list[Row]:
    """Strong and weak scaling. rounds: of `measure.scaled`."""
    rows = []
    for kind in ("strong", "weak"):
        for place, run in enumerate(rounds[0][kind]):
            processes = run["processes"]
            faster = None if processes == 1 else speed_up(rounds, kind, place)
            rows.append(
                {
                    "scaling": kind,
                    "processes": processes,
                    "ms of a step": statistics.median(_step_ms(answer[kind][place]) for answer in rounds),
                    "images/s": statistics.median(_images(answer[kind][place]) for answer in rounds),
                    "times one process": faster,
                    "efficiency": faster and efficiency(faster, processes),
                    "more processes than cores": run["oversubscribed"],
                }
            )
    return rows


def speed_up(rounds: Answers, kind: str, place: int) -> Ratio:
    """Images/s of a row of `measure.scaled` over those of one process, in pairs."""
    many, one = (
        {number: answer[kind][at]["images_per_second"][LAST] for number, answer in enumerate(rounds)}
        for at in (place, 0)
    )
    return ratio(many, one)


def efficiency(faster: Ratio, processes: int) -> Ratio:
    """A speed-up over the number of processes: 1 where nothing is lost."""
    return replace(faster, ratio=faster.ratio / processes, low=faster.low / processes, high=faster.high / processes)


def _step_ms(run: Mapping[str, Any], exchange: str = LAST) -> float:
    return statistics.median(run["step_ms"][exchange])


def _images(run: Mapping[str, Any], exchange: str = LAST) -> float:
    return statistics.median(run["images_per_second"][exchange])


def exposed(runs: Answers, exchange: str = LAST) -> Mean:
    """ms of a step beyond those of the step without an exchange, over rounds."""
    return mean([_step_ms(run, exchange) - _step_ms(run, NEVER) for run in runs])


def bucket_rows(rounds: Sequence[Answers], sizes_mb: Sequence[float]) -> list[Row]:
    """What sending gradients in smaller parts does. rounds: of `measure.buckets`."""
    rows = []
    for place, size in enumerate(sizes_mb):
        runs = [answer[place] for answer in rounds]
        rows.append(
            {
                "MiB of a part": size,
                "ms of a step": mean([_step_ms(run) for run in runs]),
                "exposed ms": exposed(runs),
                **{
                    f"ms in collectives, rank {rank}": mean([run["ranks"][rank]["communication_ms"] for run in runs])
                    for rank in range(len(runs[0]["ranks"]))
                },
            }
        )
    return rows


def accumulation_rows(runs: Answers, passes: int) -> list[Row]:
    """Gradients exchanged in the last pass, in each, and never. runs: of `measure.accumulation`, by round."""
    speeds = {
        exchange: {number: run["images_per_second"][exchange] for number, run in enumerate(runs)}
        for exchange in EXCHANGES
    }
    return [
        {
            "gradients exchanged": exchange,
            "passes": passes,
            "ms of a step": mean([_step_ms(run, exchange) for run in runs]),
            "exposed ms": None if exchange == NEVER else exposed(runs, exchange),
            "times as fast as in each pass": None if exchange == EACH else ratio(speeds[exchange], speeds[EACH]),
        }
        for exchange in EXCHANGES
    ]


def straggler_rows(rounds: Answers, delay_ms: float) -> list[Row]:
    """A row for each rank; the last one sleeps before each step. rounds: of `measure.straggler`."""
    count = len(rounds[0]["alike"]["ranks"])

    def over_rounds(which: str, rank: int, what: str) -> Mean:
        return mean([answer[which]["ranks"][rank][what] for answer in rounds])

    return [
        {
            "rank": rank,
            "sleeps ms": delay_ms if rank == count - 1 else 0.0,
            "ms of a step, none asleep": over_rounds("alike", rank, "step_ms"),
            "ms of a step": over_rounds("delayed", rank, "step_ms"),
            "ms in collectives, none asleep": over_rounds("alike", rank, "communication_ms"),
            "ms in collectives": over_rounds("delayed", rank, "communication_ms"),
        }
        for rank in range(count)
    ]


def curve_rows(trainings: Mapping[int, Sequence[Answers]]) -> list[Row]:
    """For the figure: each epoch of `measure.trained`. trainings: {processes: by seed}; means over seeds."""
    return [
        {"variant": _processes(processes), "epoch": number + 1, **_of_epoch([epochs[number] for epochs in by_seed])}
        for processes, by_seed in trainings.items()
        for number in range(len(by_seed[0]))
    ]


def accuracy_rows(trainings: Mapping[int, Sequence[Answers]]) -> list[Row]:
    """The last epochs."""
    return [
        {"training": _processes(processes), "seeds": len(by_seed), **_of_epoch([epochs[-1] for epochs in by_seed])}
        for processes, by_seed in trainings.items()
    ]


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _of_epoch(of_seeds: Answers) -> Row:
    return {
        header: of_values([epoch[name] for epoch in of_seeds]) for header, (name, of_values) in EPOCH_COLUMNS.items()
    }


def sweep_rows(sweep: Mapping[str, Any], most: int = 8) -> list[Row]:
    """The best trials of a sweep that ran to their end."""
    done = [trial for trial in sweep["trials"] if trial["state"] == "complete"]
    return [
        {
            "trial": trial["number"],
            "accuracy %": 100 * trial["accuracy"],
            **{name.replace("_", " "): value for name, value in trial["parameters"].items()},
            "s": trial["seconds"],
        }
        for trial in sorted(done, key=lambda trial: -trial["accuracy"])[:most]
    ]


def trial_rows(sweep: Mapping[str, Any]) -> list[Row]:
    """How the trials ended, and how many epochs they trained."""
    epochs: dict[str, list[int]] = {}
    for trial in sweep["trials"]:
        epochs.setdefault(trial["state"], []).append(len(trial["epochs"]))
    in_all = sweep["settings"]["epochs"]
    return [
        {"trials": state, "count": len(counts), "epochs trained": sum(counts), "of": in_all * len(counts)}
        for state, counts in sorted(epochs.items())
    ]


def importance_rows(sweep: Mapping[str, Any]) -> list[Row]:
    """How much of the variance of accuracy each parameter explains."""
    shares = sweep["importance"] or {}
    return [
        {"parameter": name.replace("_", " "), "share of the variance %": 100 * share}
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
    ]


def claims(by_size: Mapping[int, Answers], scaled: Answers, accumulation: Answers, straggler: Answers) -> list[Claim]:
    """What was published or expected, and what came of it. by_size: {px: rounds}, the lab's own first."""
    size, rounds = next(iter(by_size.items()))
    shards, first, spread = (of_rounds(rounds, name, "delivered") for name in (SHARDS, FIRST, WORKERS))
    found = []
    for id, other, text in (
        ("shards", first, "decoding each in the main process"),
        ("shards-workers", spread, "decoding each in workers"),
    ):
        value = over(shards, other)
        text = f"Shards of {size} px deliver at least {FASTER:.0f} times the images/s of {text} (times)."
        found.append(_of_ratio(id, text, value, FASTER))
    value = over(of_rounds(rounds, BATCHED, "delivered"), spread)
    found.append(_of_ratio("batched", "Normalising batches beats normalising images (times the images/s).", value, 1))
    text = f"Shards of {size} px deliver more than the model consumes (times)."
    consumed = {number: [answer["consumed"]] for number, answer in enumerate(rounds)}
    found.append(_of_ratio("fed", text, over(shards, consumed), 1))
    if large := [px for px in by_size if px > size]:
        other = {number: [answer["consumed"]] for number, answer in enumerate(by_size[large[0]])}
        times = published.SMALL_OVER_LARGE
        text = f"At {size} px a model trains {times:.0f} times the images/s of {large[0]} px, as published (times)."
        found.append(_of_ratio("small-images", text, over(consumed, other), times))
    if scaled and (last := scaled[0]["strong"][-1])["processes"] > 1:
        processes = last["processes"]
        for kind in ("strong", "weak"):
            text = (
                f"{processes} processes reach the published efficiency of {published.EFFICIENCY}, {kind} scaling "
                "(efficiency)."
            )
            value = efficiency(speed_up(scaled, kind, len(scaled[0][kind]) - 1), processes)
            found.append(_of_ratio(f"efficiency-{kind}", text, value, published.EFFICIENCY))
    if accumulation:
        speeds = [
            {number: run["images_per_second"][exchange] for number, run in enumerate(accumulation)}
            for exchange in (LAST, EACH)
        ]
        text = "Exchanging gradients in the last pass alone is faster than in each (times)."
        found.append(_of_ratio("no-sync", text, ratio(*speeds), 1))
    if straggler:
        ratios = [
            statistics.fmean(rank["communication_ms"] for rank in answer["delayed"]["ranks"][:-1])
            / answer["delayed"]["ranks"][-1]["communication_ms"]
            for answer in straggler
        ]
        text = "The others' collectives take longer than those of the rank that sleeps (times)."
        found.append(_of_ratio("straggler", text, of_pairs(ratios) if len(ratios) > 1 else None, 1))
    return [claim for claim in found if claim is not None]


def _of_ratio(id: str, text: str, value: Ratio | None, limit: float) -> Claim | None:
    """A claim that a ratio is above a limit."""
    return value and Claim(id, text, value.ratio, value.low, value.high, above(value, limit))
