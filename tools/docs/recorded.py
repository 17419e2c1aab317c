"""The recorded ladders, as the course shows them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from common.options import COURSE
from labs.shared.study import FILE as LAB_FILE
from tools.docs import gpu_memory
from walkthrough.advice.gains import Advised, advise
from walkthrough.compare import predictions, roofs, rounds
from walkthrough.compare.study import Study
from walkthrough.compare.study import read as read_study
from walkthrough.compare.table import escaped
from walkthrough.records import record
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError
from walkthrough.trace.analysis import Analysis, analyze

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDS = ROOT / "logs" / "reference"


@dataclass(frozen=True)
class Recorded:
    """One ladder with its traces and studies. folder: of its runs."""

    folder: Path
    ladder: rounds.Comparison
    _studies: dict[str, Study | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def device_type(self) -> str:
        return self.ladder.baseline.device_type

    @property
    def windows(self) -> int:
        """Timed windows per step."""
        return len(self.ladder.baseline.samples_per_second.windows)

    @property
    def run_count(self) -> int:
        """Runs per step: its rounds."""
        return max(len(row.rounds) for row in self.ladder.rows)

    @property
    def steps(self) -> list[str]:
        return [row.result.step for row in self.ladder.rows]

    def row(self, step: str) -> rounds.Row:
        """The row of a step. Raises InputError where it was not recorded."""
        for row in self.ladder.rows:
            if row.result.step == step:
                return row
        raise InputError(f"{self.folder} has no run of {step}")

    @cached_property
    def analyses(self) -> dict[str, Analysis]:
        """{step: the `Analysis` of its trace}; a trace that cannot be read is left out, with a line on stderr."""
        analyses = {}
        for row in self.ladder.rows:
            try:
                analyses[row.result.step] = analyze(self.folder / row.result.step / row.result.trace)
            except InputError as error:
                print(error, file=sys.stderr)
        return analyses

    @cached_property
    def advised(self) -> dict[str, Advised]:
        """{step: what to do about its trace}."""
        return {step: advise(analysis) for step, analysis in self.analyses.items()}

    def study(self, name: str) -> Study | None:
        """The study of that name, one of `compare.study.OF_A_LADDER`; None where it was not recorded."""
        path = self.folder / f"{name}.json"
        if name not in self._studies:
            self._studies[name] = read_study(path) if path.exists() else None
        return self._studies[name]

    @property
    def limit(self) -> roofs.Limit | None:
        """What the ladder's "% of limit" is relative to."""
        return roofs.read(self.folder)

    @cached_property
    def predictions(self) -> list[predictions.Prediction]:
        """What each step was predicted to gain, in order."""
        return predictions.of_ladder(self.ladder, {step: advised.costs for step, advised in self.advised.items()})


@dataclass(frozen=True)
class Course:
    """What the pages show: all records, the first of which is the one in the chapters.

    to_docs, to_logs: from the page to `docs/` (with its slash) and to the folder of records; for pages in `docs/`.
    figures: {file below docs/figures: draws it}, of all pages so far.
    """

    records: list[Recorded]
    to_docs: str = ""
    to_logs: str = "../logs/reference"
    figures: "dict[str, Callable[[], Figure]]" = field(default_factory=dict, repr=False, compare=False)

    @property
    def shown(self) -> Recorded:
        return self.records[0]

    @property
    def link(self) -> str:
        """The device that the chapters show, linked to the page of its record."""
        device = escaped(self.shown.ladder.baseline.device)
        return f"[{device}]({self.to_logs}/{self.shown.folder.name}/README.md)"

    @property
    def machine(self) -> str:
        """The same with its cores, the model and the rounds."""
        base, on_gpu, count = self.shown.ladder.baseline, self.shown.device_type == "cuda", self.shown.run_count
        cores = "" if on_gpu else f", {base.environment.cores} CPU cores"
        rounds = f"{count} round{'s' if count > 1 else ''}{'' if on_gpu else ' (no GPU recorded yet)'}"
        return f"{self.link}{cores}, {escaped(base.model)} at {base.image_size} px, {rounds}"

    @property
    def measured(self) -> str:
        """The line below a measured table: where it was measured. A page has it once; see `measured_again`."""
        return f"*Measured: {self.machine}.*"

    @property
    def measured_again(self) -> str:
        """The line below a page's further tables, in place of `measured`."""
        return f"*{self.link}{'' if self.shown.device_type == 'cuda' else ', CPU'}.*"

    def picture(self, name: str, alt: str, draw: "Callable[[], Figure]") -> str:
        """The Markdown of a figure, which is drawn once all pages are written. alt: what a screen reader says."""
        self.figures[f"{name}.svg"] = draw
        return f"![{escaped(alt)}]({self.to_docs}figures/{name}.svg)"

    def lab(self, name: str) -> Study | None:
        """The study of a lab, next to the records; None where it was not recorded."""
        path = self.shown.folder.parent / "labs" / name / LAB_FILE
        return read_study(path) if path.is_file() else None

    @cached_property
    def fit(self) -> gpu_memory.Fit | None:
        """The GPU memory predicted for every program: one file for all records. None where there is none."""
        return gpu_memory.read(self.shown.folder.parent)


def records(root: Path = RECORDS) -> list[Recorded]:
    """Every `Recorded` below a folder; first the one that the chapters show.

    GPUs come before CPUs, the course's own model before others, more windows before fewer. Raises InputError where
    there is none.
    """
    every = [read(path.parent) for path in sorted(root.glob(f"*/{record.FILE}"))]
    if not every:
        raise InputError(f"{root} holds no recorded ladder: `walkthrough record` makes one")
    return sorted(every, key=_rank)


def read(folder: str | Path) -> Recorded:
    """The `Recorded` in a folder: a record, or runs made here. Raises InputError for none, and for broken ones."""
    folder = Path(folder)
    return Recorded(folder, rounds.whole_comparison(folder))


def _rank(recorded: Recorded) -> tuple[bool, bool, int, str]:
    base = recorded.ladder.baseline
    return (
        base.device_type != "cuda",
        base.model != COURSE.on(base.device_type).model,
        -recorded.windows,
        recorded.folder.name,
    )
