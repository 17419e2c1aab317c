"""Pairs of traces that others recorded before and after one change: what `explain` predicted, and what they show.

The traces are not kept here. `logs/reference/others.json` holds where they are, their SHA-256, and what was computed:

    python -m tools.docs.others FOLDER     compute it anew from the traces in a folder, whatever their names
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tools.docs.recorded import RECORDS
from walkthrough.advice.catalogue import Advice
from walkthrough.advice.gains import advise
from walkthrough.compare.markdown import escaped, table
from walkthrough.compare.predictions import Prediction, cells
from walkthrough.compare.statistics import Ratio, of_windows
from walkthrough.records import samples
from walkthrough.results import result
from walkthrough.results.environment import git_revision, now
from walkthrough.results.errors import InputError, one_line_errors
from walkthrough.trace.analysis import Analysis, analyze

FILE = "others.json"


class Traced(Struct, frozen=True):
    """A trace. steps_us: the length of its steps, by name. outlying: those far longer than the others."""

    address: str
    sha256: str
    steps_us: dict[str, float] = {}
    outlying: list[str] = []

    @property
    def typical_us(self) -> list[float]:
        return [us for name, us in self.steps_us.items() if name not in self.outlying]


class Pair(Struct, frozen=True):
    """Two traces, before and after what one step of the walkthrough changes.

    advice: what `explain` says of that step in the first trace. gpu: None where the traces do not name it.
    """

    what: str
    step: str
    before: Traced
    after: Traced
    gpu: str | None = None
    advice: Advice | None = None

    @property
    def prediction(self) -> Prediction:
        """Measured: the median typical step before over that after."""
        return Prediction("", self.step, self.advice, gain(self.before.typical_us, self.after.typical_us))


class Others(Struct, frozen=True):
    """computed: when, ISO 8601. git: the commit of the code that did."""

    pairs: list[Pair]
    computed: str = ""
    git: str | None = None


def read(root: Path = RECORDS) -> Others:
    """What the file in a folder of records holds; without it, no pairs."""
    path = root / FILE
    return msgspec.json.decode(path.read_bytes(), type=Others) if path.exists() else Others([])


def traces_in(folder: Path) -> dict[str, Path]:
    """{SHA-256: path} of the traces in a folder and below it."""
    files = [path for path in sorted(folder.rglob("*.json*")) if path.is_file()]
    return {samples.sha256(path): path for path in files}


def computed(pair: Pair, traces: Mapping[str, Path]) -> Pair:
    """The same pair with what its traces show. traces: see `traces_in`. Raises InputError where one is missing."""
    missing = [traced.address for traced in (pair.before, pair.after) if traced.sha256 not in traces]
    if missing:
        raise InputError(f"the folder lacks the trace of {missing[0]}")
    before, after = (analyze(traces[traced.sha256]) for traced in (pair.before, pair.after))
    return replace(
        pair,
        before=_traced(pair.before, before),
        after=_traced(pair.after, after),
        gpu=before.gpus[0].name if before.gpus else None,
        advice=next((advice for advice in advise(before).costs if advice.step == pair.step), None),
    )


def section(others: Others) -> list[str]:
    """The lines of a page about the pairs; none for no pair."""
    if not others.pairs:
        return []
    rows = []
    for pair in others.pairs:
        links = f"[before]({pair.before.address}), [after]({pair.after.address})"
        every = gain(pair.before.steps_us.values(), pair.after.steps_us.values())
        steps = list(pair.before.steps_us)
        what = escaped(f"{pair.what}, steps {steps[0]} to {steps[-1]}, {pair.gpu or 'a GPU that is not named'}")
        rows.append(
            [f"{what}: {links}", *cells(pair.prediction, True), f"{every.ratio:.2f}x", escaped(pair.prediction.why)]
        )
    headers = ["traces", "step", ">predicted, about", ">at most", ">measured", "outcome", ">of all steps", "why"]
    return [
        "## Pairs measured by others",
        "",
        "Traces that others recorded before and after one change. They are not kept here; the links lead to them.",
        "*Measured* is the median step of the first over that of the second, without outlying steps, and its 95 %",
        "interval over these few steps. Each is one run, under the profiler: the interval says nothing of how runs",
        "vary. *Of all steps*: with the outlying ones.",
        "",
        table(headers, rows),
        "",
        f"Computed on {others.computed[:10]} at commit {others.git}, by `python -m tools.docs.others FOLDER`.",
        "",
    ]


def _traced(traced: Traced, analysis: Analysis) -> Traced:
    lengths = dict(zip(analysis.steps.names, analysis.steps.duration.tolist(), strict=True))
    return replace(traced, steps_us=lengths, outlying=[step.name for step in analysis.outliers])


def gain(before_us: Iterable[float], after_us: Iterable[float]) -> Ratio:
    """The median step before over that after, with the 95 % interval over these few steps."""
    return of_windows(*([1 / us for us in steps_us] for steps_us in (after_us, before_us)))


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a trace is missing or cannot be read."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise InputError("name one folder, with the traces of all pairs")
    traces = traces_in(Path(words[0]))
    others = Others([computed(pair, traces) for pair in read().pairs], now(), git_revision())
    result.write_whole(RECORDS / FILE, msgspec.json.format(msgspec.json.encode(others), indent=2) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
