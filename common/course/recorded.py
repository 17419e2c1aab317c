"""The ladders that were recorded, as the course shows them."""

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common import record
from common.errors import InputError
from common.ladder import compare
from common.ladder import predictions as predicted
from common.machine import ROOT
from common.reference import recording
from common.studies.ablation.record import read_ablation
from common.studies.input.record import read_input_limit
from common.studies.limit.record import read_limit
from common.studies.overhead.record import read_overhead
from common.studies.sweep.record import read_sweep
from common.trace.summary import summarize

RECORDS = ROOT / "logs" / "reference"


@dataclass(frozen=True)
class Recorded:
    """One ladder with its traces: the folder of its runs, and {step: `compare.RunSpread`} where it was recorded."""

    folder: Path
    ladder: compare.Ladder
    runs: dict[str, compare.RunSpread]

    @property
    def device_type(self):
        return self.ladder.baseline.device_type

    @property
    def windows(self):
        """Timed windows of a step."""
        return len(self.ladder.baseline.samples_per_second.windows)

    @property
    def run_count(self):
        """Runs of a step; 1 for what was not recorded run by run."""
        return max((runs.count for runs in self.runs.values()), default=1)

    @property
    def steps(self):
        return [row.result.step for row in self.ladder.rows]

    def row(self, step):
        """The `compare.Row` of a step. InputError where it was not recorded."""
        for row in self.ladder.rows:
            if row.result.step == step:
                return row
        raise InputError(f"{self.folder} has no run of {step}")

    @cached_property
    def summaries(self):
        """{step: the `Summary` of its trace}; a trace that cannot be read is left out, and said on stderr."""
        found = {}
        for row in self.ladder.rows:
            try:
                found[row.result.step] = summarize(self.folder / row.result.step / row.result.trace)
            except InputError as error:
                print(error, file=sys.stderr)
        return found

    @cached_property
    def limit(self):
        """The `limit_record.Limit` of the record; None where it holds none. So are the four below."""
        return read_limit(self.folder)

    @cached_property
    def input_limit(self):
        return read_input_limit(self.folder)

    @cached_property
    def ablation(self):
        return read_ablation(self.folder)

    @cached_property
    def overhead(self):
        return read_overhead(self.folder)

    @cached_property
    def sweep(self):
        return read_sweep(self.folder)

    @cached_property
    def predictions(self):
        """The ladder's `predicted.Prediction`s, in order."""
        return predicted.of_ladder(self.ladder, self.summaries)


def records(root=RECORDS):
    """Every `Recorded` below a folder; first the one that the chapters show.

    That is a GPU's before a CPU's, the course's own model before others, more windows before fewer. InputError where
    there is none.
    """
    found = [read(path.parent) for path in sorted(Path(root).glob(f"*/{recording.FILE}"))]
    if not found:
        raise InputError(f"{root} holds no recorded ladder: `python -m common record` makes one")
    return sorted(found, key=_rank)


def read(folder):
    """The `Recorded` in a folder: a record, or runs made here. InputError where it holds none, or broken ones."""
    folder = Path(folder)
    results, problems = record.read_results(folder)
    if problems or not results:
        raise InputError(problems[0] if problems else f"{folder} holds no results")
    return Recorded(folder, compare.ladders(results)[0], compare.recorded_runs(folder, results))


def _rank(each):
    base, windows = each.ladder.baseline, each.windows
    return base.device_type != "cuda", base.model != recording.MODEL, -windows, each.folder.name
