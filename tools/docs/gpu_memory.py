"""The GPU memory that `fit` predicts for every program; `python -m tools.docs.gpu_memory` writes it to `FILE`.

Seconds for each program, as long as it takes to make the data of one that makes its own, and minutes for the largest
batches.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from walkthrough.compare.figures import GREY, step_label, styled
from walkthrough.memory.fit import CONTEXT_BYTES, GPUS, Prediction
from walkthrough.memory.tracker import KINDS
from walkthrough.results.environment import ROOT, Environment, current_environment, now
from walkthrough.results.errors import InputError
from walkthrough.results.result import Result, read_json, typed, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "fit.json"  # next to the records
SCHEMA = 1
TOLERANCE = 0.01  # to within which share of it the largest batch is sought
COLOURS = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#cc79a7", "#009e73", "#e69f00", "#999999"), strict=True))


@dataclass(frozen=True)
class Fit:
    """The predictions of every program, as `fit.json` holds them. failed: {program and words: why none}."""

    schema: int
    context_bytes: int
    predictions: list[Prediction]
    failed: dict[str, str]
    environment: Environment
    started: str

    def find(self, program: str, words: Sequence[str] = ()) -> Prediction | None:
        """The prediction of a program with these words on its command line, None where there is none."""
        return next((one for one in self.predictions if (one.program, one.words) == (program, [*words])), None)

    def gpu_bytes(self, result: Result) -> int | None:
        """The peak predicted for what a run on a GPU trained; None where nothing was."""
        same_bytes = {"float16": "bfloat16"}

        def setting(one: Prediction | Result) -> tuple[object, ...]:
            return one.model, one.image_size, one.batch_size, same_bytes.get(one.precision, one.precision)

        known = self.find(result.step)
        return known.peak_bytes if known and setting(known) == setting(result) else None


def read(folder: Path) -> Fit | None:
    """The `Fit` in a folder, None where there is none. Raises InputError for a broken one."""
    path = folder / FILE
    return typed(Fit, read_json(path), path) if path.exists() else None


def programs() -> Sequence[tuple[Path, Sequence[str]]]:
    """Every step and lab program with its words: by itself, and as the figures that others published were made."""
    from labs.memory.published import MEMORY

    files = sorted((ROOT / "steps").glob("[0-9]*_*.py")) + sorted((ROOT / "labs").glob("*/[0-9]*_*.py"))
    published = [(ROOT / f"{one.program}.py", one.words) for one in MEMORY if one.words]
    return [(file, ()) for file in files] + [(file, words) for file, words in published if file.exists()]


def predicted() -> Fit:
    """The `Fit` of every program, with the largest batch for each of `GPUS`."""
    from walkthrough.memory import predict

    started, predictions, failed = now(), [], {}
    for file, words in programs():
        name = " ".join([predict.name_of(file), *words])
        print(name, file=sys.stderr)
        try:
            predictions.append(predict.predicted(file, words, sorted(set(GPUS.values())), TOLERANCE))
        except InputError as error:
            failed[name] = str(error)
    environment = current_environment(version("torch"), None)
    return Fit(SCHEMA, CONTEXT_BYTES, predictions, failed, environment, started)


def figure(fit: Fit) -> "Figure":
    """A bar per program with its own settings, GB allocated at the peak by what holds them; a line: reserved."""
    from matplotlib.figure import Figure

    rows = [one for one in fit.predictions if not one.words]
    drawing = Figure(figsize=(9, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = drawing.subplots()
    left = np.zeros(len(rows))
    for kind in KINDS:
        widths = np.array([one.by_kind[kind] / 1e9 for one in rows])
        axes.barh(range(len(rows)), widths, left=left, height=0.62, color=COLOURS[kind], label=kind)
        left += widths
    reserved = [one.reserved_bytes / 1e9 for one in rows]
    axes.scatter(reserved, range(len(rows)), marker="|", s=90, color=GREY, label="reserved", zorder=3)
    names = [f"{step_label((one.program or '').rpartition('/')[2])}, {one.model}, {one.batch_size}" for one in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    styled(axes, "GB on a GPU, predicted")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return drawing


if __name__ == "__main__":
    write_json(ROOT / "logs" / "reference" / FILE, asdict(predicted()))
