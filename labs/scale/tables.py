"""The study's tables, from what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labs.scale import published
from labs.scale.measure import EACH, LAST, NEVER, PIPELINES, SHARDS
from labs.scale.one_rank import EXCHANGES
from walkthrough.compare.statistics import Mean, Ratio, mean, ratio
from walkthrough.compare.study import Row, percent

FIRST, _, BATCHED = PIPELINES[:3]
BEFORE = {SHARDS: "03_resized_once", "06_nvjpeg": BATCHED, "07_dali": "06_nvjpeg"}  # where it is not the one above
Answers = Sequence[Mapping[str, Any]]  # of each round, what a function of `measure` returned
ByRound = Mapping[int, Mapping[str, Any]]  # {round: what `measure.pipelines` returned}
EPOCH_COLUMNS = {  # header: (of `training.Epoch`, how its seeds are summed up)
    "training loss": ("loss", mean),
    "validation loss": ("validation_loss", mean),
    "top-1 %": ("top1", percent),
    "top-5 %": ("top5", percent),
}


def consumption(rounds: ByRound) -> dict[int, list[float]]:
    """{round: [images/s that the model consumes]}."""
    return {number: [answer["consumed"]] for number, answer in rounds.items()}


def of_rounds(rounds: ByRound, name: str, what: str) -> dict[int, list[float]]:
    """{round: [its figure]} of a pipeline, of the rounds that have one."""
    values = {number: answer["pipelines"].get(name, {}).get(what) for number, answer in rounds.items()}
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


def pipeline_rows(rounds: ByRound) -> list[Row]:
    """What each pipeline delivers, next to what the model consumes. rounds: of one size."""
    rows, above_it = [], FIRST
    for name in _names(rounds):
        alone = of_rounds(rounds, name, "delivered")
        rows.append(
            {
                "pipeline": name,
                "images/s": middle(alone),
                "times decoding each": over(alone, of_rounds(rounds, FIRST, "delivered")) if name != FIRST else None,
                "times the one before": over(alone, of_rounds(rounds, BEFORE.get(name, above_it), "delivered"))
                if name != FIRST
                else None,
                "images/s of one core": middle(of_rounds(rounds, name, "per_cpu_second")),
                "MB on disk": of_rounds(rounds, name, "bytes").popitem()[1][0] / 1e6,
                "times what the model consumes": over(alone, consumption(rounds)),
            }
        )
        above_it = name
    return rows


def trained_rows(rounds: ByRound) -> list[Row]:
    """What the model trains from each pipeline; [] where nothing was trained."""
    names = [name for name in _names(rounds) if of_rounds(rounds, name, "trained")]
    return [
        {
            "trained from": name,
            "images/s": middle(of_rounds(rounds, name, "trained")),
            "times decoding each": over(of_rounds(rounds, name, "trained"), of_rounds(rounds, FIRST, "trained"))
            if name != FIRST
            else None,
            "of what the model consumes": over(of_rounds(rounds, name, "trained"), consumption(rounds)),
        }
        for name in names
    ]


def _names(rounds: ByRound) -> list[str]:
    """The pipelines that ran, in the order of the ladder, which turned with the rounds."""
    answers = (answer["pipelines"].items() for answer in rounds.values())
    return sorted({name for of_round in answers for name, values in of_round if "error" not in values})


def refusals(by_size: Mapping[int, ByRound]) -> list[str]:
    """Notes: programs that did not run, and why, each once."""
    reasons = [
        f"{name} was not measured: {values['error']}"
        for rounds in by_size.values()
        for answer in rounds.values()
        for name, values in sorted(answer["pipelines"].items())
        if "error" in values
    ]
    return list(dict.fromkeys(reasons))


def utilization_rows(traced: Mapping[str, Mapping[str, float | None]]) -> list[Row]:
    """A GPU's utilization and occupancy in the traces of programs. traced: {program: of `measure.utilization`}."""
    return [
        {
            "trained from": name,
            "utilization %": None if of["utilization"] is None else 100 * of["utilization"],
            "occupancy %": of["occupancy_percent"],
        }
        for name, of in traced.items()
    ]


def epoch_rows(by_size: Mapping[int, ByRound], whose: str) -> list[Row]:
    """An epoch of ImageNet: published, and at the rates measured here, of pipelines and of the model alone.

    whose: the device and the model.
    """
    hour = 3600
    rows: list[Row] = [
        {
            "whose": f"published, {published.MODEL}",
            "what": what,
            "h": hours,
            "images/s": published.IMAGES / hour / hours,
        }
        for what, hours in published.EPOCH_HOURS.items()
    ]
    for size, rounds in by_size.items():
        rates = {f"{name}, {size} px": middle(of_rounds(rounds, name, "delivered")) for name in (FIRST, SHARDS)}
        rates[f"the model, {size} px"] = middle(consumption(rounds))
        rows += [
            {"whose": whose, "what": what, "h": published.IMAGES / hour / rate, "images/s": rate}
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
                    "exposed ms": exposed([answer[kind][place] for answer in rounds]) if processes > 1 else None,
                    "ms in collectives": mean([_in_collectives(answer[kind][place]) for answer in rounds])
                    if processes > 1
                    else None,
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


def _in_collectives(run: Mapping[str, Any]) -> float:
    """The mean over ranks, ms of a step."""
    return statistics.fmean(rank["communication_ms"] for rank in run["ranks"])


def _step_ms(run: Mapping[str, Any], exchange: str = LAST) -> float:
    return statistics.median(run["step_ms"][exchange])


def _images(run: Mapping[str, Any], exchange: str = LAST) -> float:
    return statistics.median(run["images_per_second"][exchange])


def exposed(runs: Answers, exchange: str = LAST) -> Mean:
    """ms of a step beyond those of the step without an exchange, over rounds."""
    return mean([_step_ms(run, exchange) - _step_ms(run, NEVER) for run in runs])


def bucket_rows(rounds: Sequence[Answers], sizes_mb: Sequence[float | None]) -> list[Row]:
    """What sending gradients in smaller parts does. rounds: of `measure.buckets`."""
    rows = []
    for place, size in enumerate(sizes_mb):
        runs = [answer[place] for answer in rounds]
        rows.append(
            {
                "MiB of a part": "torch's own" if size is None else f"{size:g}",
                "parts": runs[0]["parts"],
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
