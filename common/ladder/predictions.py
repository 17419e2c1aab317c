"""A ladder's promises: what each step was to gain by the trace of the step before it, beside what it gained."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from common.errors import InputError
from common.ladder import compare
from common.trace.advice import Advice
from common.trace.source import MAX_SIZE, Pieces
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
                summaries[before.result.step] = summarize(Pieces(trace, max_size))
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
        advice = summary and next((each for each in summary.levers if each.step == after.result.step), None)
        notes = tuple(note for note in after.result.notes if note not in before.result.notes)
        rows.append(Prediction(before.result.step, after.result.step, advice, after.gain, notes))
    return rows
