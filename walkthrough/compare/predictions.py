"""Predicted and measured: the gain of each step by the trace of the step before it, next to what it then gained."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from walkthrough.advice.catalogue import Advice
from walkthrough.advice.gains import advise
from walkthrough.compare import rounds
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.table import Cell, Table
from walkthrough.results.errors import InputError, printable
from walkthrough.results.result import Result
from walkthrough.terminal import BOLD, DIM, SCREEN_WIDTH, Page, print_text, screen
from walkthrough.trace.analysis import analyze
from walkthrough.trace.chrome_trace import MAX_SIZE, Chunks

LEGEND = (
    "Predicted (upper bound): the trace of the step before, without the cost that the step reduces. Measured: the "
    "timed windows, without a profiler, and the 95 % interval; ~: no measurable difference. Outcome: within the bound, "
    "a loss included; a miss: the whole interval is above the bound; cannot tell: nothing predicted, or an interval "
    "that includes both 1 and the bound."
)
ESTIMATED = " About: by replaying that trace; the estimate lies inside the measured interval, above or below it."


@dataclass(frozen=True)
class Prediction:
    """One step of a ladder: what it can gain by the trace of the step before, and what was then measured.

    advice: None where that trace cannot be read. gain: of the timed windows, over the step before.
    """

    before: str
    step: str
    advice: Advice | None
    gain: Ratio
    notes: tuple[str, ...] = ()

    @property
    def predicted_gain(self) -> float | None:
        return self.advice.predicted_gain if self.advice else None

    @property
    def estimated_gain(self) -> float | None:
        return self.advice.estimated_gain if self.advice else None

    @property
    def why(self) -> str:
        """The evidence; where no gain is predicted, also what the step itself noted about this machine. "" for none."""
        evidence = [self.advice.why] if self.advice else []
        return "; ".join(evidence if self.predicted_gain or self.estimated_gain else [*evidence, *self.notes])

    @property
    def outcome(self) -> str:
        """ "within", "miss", or "cannot tell", by the interval of the gain.

        A miss: all of it is above the bound. Cannot tell: it holds both 1 and the bound, or nothing is predicted.
        """
        if self.predicted_gain is None:
            return "cannot tell"
        bound = self.predicted_gain * 1.005  # what rounds to the bound is not over it
        if self.gain.low > bound:
            return "miss"
        return "within" if self.gain.resolved or self.gain.high <= bound else "cannot tell"

    @property
    def estimate(self) -> str | None:
        """Where the estimated gain lies: "inside" the measured interval, "above" or "below" it; None without one."""
        if self.estimated_gain is None:
            return None
        if self.estimated_gain > self.gain.high:
            return "above"
        return "below" if self.estimated_gain < self.gain.low else "inside"


LadderPredictions = tuple[rounds.Comparison, list[Prediction]]


def predictions(
    logdir: str | Path, results: Iterable[Result], max_size: int | None = None
) -> tuple[list[LadderPredictions], list[str]]:
    """The `Prediction`s of each ladder among `results` (from `result.read_results`), and the problems met: messages.

    max_size: refuse traces of more bytes of JSON.
    """
    ladders = []
    compared, problems = rounds.comparisons(logdir, [result.step for result in results])
    for ladder in compared:
        costs = {}
        for before in ladder.acting[:-1]:
            try:
                trace = Path(logdir) / before.result.step / before.result.trace
                analysis = analyze(Chunks(trace, max_size or MAX_SIZE))
                costs[before.result.step] = advise(analysis).costs
                problems += analysis.trace.warnings
            except InputError as error:
                problems.append(str(error))
        ladders.append((ladder, of_ladder(ladder, costs)))
    return ladders, problems


def of_ladder(ladder: rounds.Comparison, costs: Mapping[str, Sequence[Advice]]) -> list[Prediction]:
    """The `Prediction`s of one ladder. costs: {step: the costs in its trace, see `Advised`}; steps may be missing."""
    rows = []
    for before, after in pairwise(ladder.acting):
        if after.gain is None:
            continue
        step = after.result.step
        advice = next((advice for advice in costs.get(before.result.step, ()) if advice.step == step), None)
        notes = tuple(note for note in after.result.notes if note not in before.result.notes)
        rows.append(Prediction(before.result.step, step, advice, after.gain, notes))
    return rows


def predictions_text(ladders: Sequence[LadderPredictions], width: int = SCREEN_WIDTH, colour: bool = False) -> str:
    """For each ladder: what each step was predicted to gain by the trace before it, next to what it gained."""
    page = Page(width, colour)
    for ladder, rows in ladders:
        base = ladder.baseline
        page.wrapped(f"{printable(base.model)} on {printable(base.device)}, {base.size_label}", 0, BOLD)
        page.line()
        known = table(rows)
        sides = "".join("r" if known.is_right(column) else "l" for column in known.columns)
        page.table([known.columns, *known.texts()] if rows else [], sides, headed=True)
        for row in rows:
            if row.why:
                page.wrapped(f"{row.step}: {row.why}", 2, DIM)
        page.line()
    replayed = any(row.estimated_gain for _, rows in ladders for row in rows)
    page.wrapped(LEGEND + (ESTIMATED if replayed else ""), 0, DIM)
    return page.text()


def table(rows: Sequence[Prediction], replayed: bool | None = None) -> Table:
    """Step, estimated gain, bound, measured gain, outcome.

    replayed: whether with the estimated gain; by default where a row has one.
    """
    replayed = any(row.estimated_gain for row in rows) if replayed is None else replayed
    about, most = "about", "at most" if replayed else "predicted"

    def cells(row: Prediction) -> dict[str, Cell]:
        bound, estimate = row.predicted_gain, row.estimated_gain
        unknown, lies = "cannot tell" if estimate is None else "no bound", f"; estimate {row.estimate}"
        return (
            {"step": row.step}
            | ({about: estimate} if replayed else {})
            | {most: unknown if bound is None else bound, "measured": row.gain}
            | {"outcome": row.outcome + (lies if row.estimate else "")}
        )

    return Table("predicted", [cells(row) for row in rows], templates={about: "{:.2f}x", most: "{:.2f}x"})


def explain_runs(
    recorded: Mapping[Path, Sequence[Result]],
    source: Path,
    as_json: bool = False,
    max_size: int | None = None,
) -> None:
    """Print what `explain` shows of recorded runs: what each step was predicted to gain next to what it gained.

    recorded: {folder: its results}. source: the path that was named, for an error. Raises InputError where there
    are runs of one step only.
    """
    ladders = []
    for logdir, results in recorded.items():
        of_folder, problems = predictions(logdir, results, max_size)
        ladders += of_folder
        for problem in problems:
            print(printable(problem), file=sys.stderr)
    if not any(rows for _, rows in ladders):
        raise InputError(f"{source} holds runs of one step only: run the next as well, or name a trace")
    if as_json:
        rows = [
            {
                "step": row.step,
                "before": row.before,
                "predicted_gain": row.predicted_gain,
                "estimated_gain": row.estimated_gain,
                "why": row.why,
                "measured_gain": asdict(row.gain) | {"resolved": row.gain.resolved},
                "outcome": row.outcome,
                "estimate": row.estimate,
            }
            for _, rows in ladders
            for row in rows
        ]
        print(json.dumps({"ladder": rows}, indent=2, allow_nan=False))
    else:
        print_text(predictions_text(ladders, *screen()))
