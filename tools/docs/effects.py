"""What optimisations gain: in the ablation, alone and with the others; and against what was predicted of the ladder."""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from studies import ablation
from studies.study import title
from tools.docs.recorded import Course, Recorded
from walkthrough.compare.figures import short
from walkthrough.compare.predictions import Prediction
from walkthrough.compare.statistics import SAME, Mean, Ratio
from walkthrough.compare.study import Study, interval
from walkthrough.compare.table import Table, code, escaped
from walkthrough.terminal import counted, time_text

EXAMPLES = 3  # of optimisations whose gain depends on the place
OUTCOMES = {"within": "within it", "miss": "missed", "cannot tell": "cannot tell"}


def answer(course: Course, result: Study) -> str:
    """What gains most differently alone and in the full ladder, and what all gain together, in sentences."""
    changed = [row for row in result.tables["effects"] if _ratio(row["full ladder over alone"]).resolved]
    changed.sort(key=lambda row: -abs(math.log(_ratio(row["full ladder over alone"]).ratio)))
    examples = [
        f"{code(row['optimisation'])} {short(_ratio(row['alone']))} and {short(_ratio(row['in the full ladder']))}"
        for row in changed[:EXAMPLES]
    ]
    sentences = [f"**Alone and in the full ladder: {', '.join(examples)}.**"] if examples else []
    whole, product = (_program(result, name) for name in (ablation.FULL, ablation.MULTIPLIED))
    if whole and product:
        sentences.append(f"The gains of each alone multiply to {product}; all of them together gain {whole}.")
    cores = "" if result.on_gpu else f", a CPU with {counted(result.environment.cores, 'core', 'cores')}"
    return " ".join([*sentences, f"Recorded on {course.link}{cores}."])


def table(course: Course, result: Study) -> str:
    """The control and each optimisation that was measured, what follows, and which have no effect on the device."""
    rows = result.tables["effects"]
    shown = [row for row in rows if row["alone"] or row["in the full ladder"]]
    if control := _program(result, ablation.CONTROL):
        shown = [{"optimisation": "control", "alone": control}, *shown]
    columns = [column for column in rows[0] if column != "no effect"]
    times = dict.fromkeys((column for column in columns if column.startswith("saves")), "{}")
    cells = [
        {column: _time(row.get(column)) if column in times else row.get(column) for column in columns} for row in shown
    ]
    count, *sentences = result.conclusions["effects"]
    if seconds := _run_seconds(result.measured["measurements"]):
        count = f"{count.removesuffix('.')}, {seconds / 60:.0f} minutes each."
    without: dict[str, list[str]] = {}
    for row in rows:
        if why := row["no effect"]:
            without.setdefault(why, []).append(row["optimisation"])
    sentences += [f"No effect on this device: {', '.join(names)}: {why}." for why, names in without.items()]
    sentences += [f"{note[0].upper()}{note[1:]}." for note in result.notes]
    return "\n\n".join(
        [
            f"{escaped(title(result))}. {escaped(count)}",
            Table("effects", cells, templates=times).markdown(),
            "\n\n".join(map(escaped, [*result.conclusions["programs"], *sentences])),
            course.measured_again,
        ]
    )


def _program(result: Study, name: str) -> Ratio | None:
    """A program of the ablation over its baseline."""
    return next((_ratio(row["vs baseline"]) for row in result.tables["programs"] if row["program"] == name), None)


def _ratio(cell: Any) -> Ratio:
    """The `Ratio` in a stored cell; of an empty one, that of a program over itself."""
    ratio = interval(cell)
    return ratio if isinstance(ratio, Ratio) else SAME


def _time(cell: Any) -> str | None:
    """A stored `Mean` of µs, in whole ones."""
    mean = interval(cell)
    if not isinstance(mean, Mean):
        return None
    ends = "" if mean.low is None or mean.high is None else f" ({mean.low:.0f} to {mean.high:.0f})"
    return f"{round(mean.mean) + 0:.0f}{ends}"


def _run_seconds(measurements: Sequence[Mapping[str, Any]]) -> float:
    """How long a run of all programs takes, the median; 0 where that is not known."""
    starts: dict[int, list[datetime]] = {}
    for one in measurements:
        if "started" in one:
            starts.setdefault(one["run"], []).append(datetime.fromisoformat(one["started"]))
    lengths = [(max(run) - min(run)).total_seconds() * len(run) / (len(run) - 1) for run in starts.values() if run[1:]]
    return statistics.median(lengths) if lengths else 0.0


def outcomes(course: Course) -> str:
    """Of each record, how many of its ladder's gains lie within the bound that the trace before gave."""
    return "\n\n".join(_outcomes(recorded) for recorded in sorted(course.records, key=lambda one: one.folder))


def _outcomes(recorded: Recorded) -> str:
    rows, base = recorded.predictions, recorded.ladder.baseline
    bounds = [row for row in rows if row.predicted_gain]
    kind = "" if recorded.device_type == "cuda" else ", a CPU"
    known = [row.outcome for row in bounds]
    counts = [f"{known.count(outcome)} {text}" for outcome, text in OUTCOMES.items() if outcome in known]
    sentences = [
        f"On {escaped(base.device)}{kind}, the trace of the step before gave a bound for {len(bounds)} of "
        f"{counted(len(rows), 'step', 'steps')}{': ' if counts else ''}{', '.join(counts)}."
    ]
    if estimates := [row.estimate for row in rows if row.estimate]:
        sentences.append(f"{estimates.count('inside')} of {counted(len(estimates), 'estimate', 'estimates')} inside.")
    return " ".join([*sentences, *(_miss(recorded, row) for row in bounds if row.outcome == "miss")])


def _miss(recorded: Recorded, row: Prediction) -> str:
    """A gain above its bound, and the bound that the same cost has in a timed step, which is shorter than a traced."""
    bound, before = row.predicted_gain or 1.0, recorded.row(row.before).result
    traced_us = recorded.analyses[row.before].typical.steps.mean_us
    timed_us = before.ms_per_step * 1e3
    cost_us = traced_us * (1 - 1 / bound)
    text = f"{code(row.step)} gained {row.gain}, the bound was {bound:.2f}x."
    if not cost_us < timed_us < traced_us:
        return text
    return (
        f"{text} The cost was {time_text(cost_us)} of a traced step of {time_text(traced_us)}; without the profiler "
        f"that step takes {time_text(timed_us)}, and the same cost gives a bound of "
        f"{timed_us / (timed_us - cost_us):.2f}x."
    )
