"""A ladder's promises: what each step was to gain by the trace of the step before it, beside what it gained."""

import json
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from rich.padding import Padding
from rich.text import Text

from common.errors import InputError, printable
from common.explain.terminal import console, headed_table
from common.ladder import compare
from common.ladder.markdown import escaped, table
from common.trace.advice import Advice
from common.trace.source import MAX_SIZE, Chunks
from common.trace.summary import summarize


@dataclass(frozen=True)
class Prediction:
    """One step of a ladder: what the trace of the step before it promised at most, and what was then measured.

    advice: None where that trace cannot be read. gain: of the timed windows, over the step before.
    """

    before: str
    step: str
    advice: Advice | None
    gain: compare.Ratio
    notes: tuple[str, ...] = ()

    @property
    def why(self):
        """The evidence; where it promises nothing, also what the step itself noted about this machine. "" for none."""
        said = [self.advice.why] if self.advice else []
        return "; ".join(said if self.advice and self.advice.predicted_gain else [*said, *self.notes])

    @property
    def outcome(self):
        """ "within": at most what was promised; "miss": more; "cannot tell": no promise, or too wide a range."""
        promised = self.advice and self.advice.predicted_gain
        if promised is None:
            return "cannot tell"
        promised *= 1.005  # what rounds to the bound is not over it
        if self.gain.low > promised:
            return "miss"
        return "within" if self.gain.differs or self.gain.high <= promised else "cannot tell"


def predictions(logdir, results, max_size=MAX_SIZE):
    """A list of `Prediction`s for each ladder among `results` (from `record.read_results`), and the problems met."""
    found, problems = [], []
    for ladder in compare.ladders(results):
        summaries = {}
        for before in ladder.rows[:-1]:
            try:
                trace = Path(logdir) / before.result.step / before.result.trace
                summaries[before.result.step] = summarize(Chunks(trace, max_size))
                problems += summaries[before.result.step].trace.warnings
            except InputError as error:
                problems.append(str(error))
        found.append((ladder, of_ladder(ladder, summaries)))
    return found, problems


def of_ladder(ladder, summaries):
    """The `Prediction`s of one ladder from {step: `Summary` of its trace}; a step may lack there."""
    rows = []
    for before, after in pairwise(ladder.rows):
        summary = summaries.get(before.result.step)
        advice = summary and next((each for each in summary.bottlenecks if each.step == after.result.step), None)
        notes = tuple(note for note in after.result.notes if note not in before.result.notes)
        rows.append(Prediction(before.result.step, after.result.step, advice, after.gain, notes))
    return rows


def print_predictions(found, to):
    """For each ladder: what each step was promised by the trace before it, beside what it gained."""
    for ladder, rows in found:
        base = ladder.baseline
        to.print(f"\n{printable(base.model)} on {printable(base.device)}, {base.image_size} px\n", markup=False)
        shown = headed_table("step", "predicted", "measured", "outcome")
        for row in rows:
            shown.add_row(*_prediction(row))
        to.print(shown)
        for row in rows:
            if row.why:
                to.print(Padding(Text(f"{row.step}: {row.why}", "dim"), (0, 0, 0, 2), expand=False))
    to.print(
        Text(
            "\npredicted: at most, from the trace of the step before (the cost that the step treats, gone). "
            "measured: from the timed windows, which no profiler slowed; no difference: they cannot be told apart. "
            "outcome: within what was promised, a loss included; a miss gained more; cannot tell: no promise, or too "
            "wide a range.",
            "dim",
        )
    )


def markdown(found):
    """A page of the docs with the same tables."""
    lines = [
        "# Predicted and measured",
        "",
        "What each step was promised by the trace of the step before it, and what it then gained. *Predicted* is",
        "Amdahl's bound: the mean step with the cost that the next step treats gone, so a gain of at most that.",
        "*Measured* is the ratio of the timed windows, without a profiler, and the range they allow; *no difference*",
        "where that range holds 1. *Within*: at most the bound, a loss included. A *miss* gained more than the bound:",
        "the trace, or our reading of it, did not tell all. *Cannot tell*: there was no bound, or the range holds both",
        "it and 1.",
        "",
    ]
    if not any(ladder.baseline.device_type == "cuda" for ladder, _ in found):
        lines += [
            "No ladder from a GPU has been recorded yet. On a CPU most of the steps have nothing to act on, and the",
            "traces say so; see [Without a GPU](index.md#without-a-gpu).",
            "",
        ]
    for ladder, rows in found:
        base = ladder.baseline
        windows = len(base.samples_per_second.windows)
        lines += [f"## {escaped(base.model)}, {base.image_size} px, on {escaped(base.device)}", ""]
        machine = f"{base.environment.cores} CPU cores, torch {base.environment.torch}"
        lines += [f"{machine}, {windows} timed windows a step.", ""]
        cells = [[*_prediction(row), escaped(row.why)] for row in rows]
        lines += [table(["step", ">predicted, at most", ">measured", "outcome", "why"], cells), ""]
    lines.append("*Made by `make docs-figures`, from `logs/reference/`.*")
    return "\n".join(lines)


def _prediction(row):
    promised = row.advice and row.advice.predicted_gain
    return row.step, "cannot tell" if promised is None else f"{promised:.2f}x", str(row.gain), row.outcome


def explain_runs(recorded, source, as_json=False, as_markdown=False, max_size=MAX_SIZE):
    """Print what `explain` says of recorded runs: what each step was predicted to gain beside what it gained.

    recorded: {folder: its `record.Result`s}. source: the path that was named, for an error. Returns the exit code.
    Raises InputError where there are runs of one step only.
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
                "predicted_gain": row.advice and row.advice.predicted_gain,
                "why": row.why,
                "measured_gain": asdict(row.gain),
                "outcome": row.outcome,
            }
            for _, rows in ladders
            for row in rows
        ]
        print(json.dumps({"ladder": rows}, indent=2, allow_nan=False))
    elif as_markdown:
        print(markdown(ladders))
    else:
        print_predictions(ladders, console())
    return 0
