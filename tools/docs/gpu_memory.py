"""The GPU memory that `fit` predicts for every program; `python -m tools.docs.gpu_memory` writes it to `FILE`.

Seconds for each program, as long as it takes to make the data of one that makes its own, and minutes for the largest
batches.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labs.memory.study import RUNS
from walkthrough.compare.ladder import PUBLISHED
from walkthrough.compare.table import code, escaped, markdown_table
from walkthrough.memory.fit import CONTEXT_BYTES, GPUS, Prediction
from walkthrough.memory.tracker import KINDS
from walkthrough.results.environment import ROOT, Environment, current_environment, now
from walkthrough.results.errors import InputError
from walkthrough.results.result import Result, read_json, typed, write_json

if TYPE_CHECKING:
    from tools.docs.recorded import Course

FILE = "fit.json"  # next to the records
SCHEMA = 1
TOLERANCE = 0.01  # to within which share of it the largest batch is sought
OF_FIT = "fit"  # what stands for the program of a training of `fit`'s own
MODEL = "resnet50"  # of those
OWN: dict[tuple[str, ...], dict[str, Any]] = {  # {words of the command line: settings}: two tricks, alone and together
    ("--model", MODEL, "--optimizer", "adam", "--precision", precision, *["--checkpoint"] * checkpoint): {
        "optimizer": "adam",
        "precision": precision,
        "checkpoint": checkpoint,
    }
    for precision, checkpoint in (("fp32", False), ("bf16", False), ("fp32", True), ("bf16", True))
}


@dataclass(frozen=True)
class PublishedMemory:
    """GPU memory as others published it. program: which of ours is nearest, with `words` on its command line.

    counts: "allocated", what the program holds, or "reserved", what it took from CUDA.
    """

    program: str
    words: tuple[str, ...]
    memory_gb: float
    counts: Literal["allocated", "reserved"]


# The walkthrough's, as the profiler plugin's Memory view shows them; and those of labs/memory by Nsight Systems, whose
# memory usage is that of the calls of cudaMalloc. Their model is ResNeXt-29 4x64d most likely.
MEMORY = (
    *(PublishedMemory(step, (), PUBLISHED[step].memory_gb, "allocated") for step in list(PUBLISHED)[:3]),
    *(
        PublishedMemory(
            f"labs/memory/{'02_checkpointing' if words else '00_baseline'}",
            (*words, "--batch-size", str(run.batch_size)),
            run.memory_gb,
            "reserved",
        )
        for name, run in RUNS.items()
        if run.memory_gb
        for words in [("--precision", "fp32") if "checkpointing" in name else ()]
    ),
)


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
    files = sorted((ROOT / "steps").glob("[0-9]*_*.py")) + sorted((ROOT / "labs").glob("*/[0-9]*_*.py"))
    published = [(ROOT / f"{one.program}.py", one.words) for one in MEMORY if one.words]
    return [(file, ()) for file in files] + [(file, words) for file, words in published if file.exists()]


def predicted() -> Fit:
    """The `Fit` of every program, with the largest batch for each of `GPUS`."""
    from walkthrough.memory import predict

    started, predictions, failed = now(), [], {}
    for what, words in [*programs(), *((predict.Own(MODEL, **settings), words) for words, settings in OWN.items())]:
        name = " ".join([predict.name_of(what) if isinstance(what, Path) else OF_FIT, *words])
        print(name, file=sys.stderr)
        try:
            predictions.append(predict.predicted(what, words, sorted(set(GPUS.values())), TOLERANCE))
        except InputError as error:
            failed[name] = str(error)
    environment = current_environment(version("torch"), None)
    return Fit(SCHEMA, CONTEXT_BYTES, predictions, failed, environment, started)


def of_fit(table: Callable[..., str]) -> Callable[..., str]:
    """Make a table of a course of one of a `Fit`; it names the command where there is none."""

    @wraps(table)
    def of_course(course: "Course", *words: str) -> str:
        if course.fit is None:
            return "*Not recorded: `python -m tools.docs.gpu_memory`.*"
        return table(course.fit, course, *words)

    return of_course


@of_fit
def programs_table(fit: Fit, course: "Course", *names: str) -> str:
    """Every program, or those named, with its own settings: what it allocates at the peak, by kind, and reserves."""
    rows = [
        [
            _name(one),
            str(one.batch_size),
            one.precision,
            *(_gb(size) for size in (one.peak_bytes, *one.by_kind.values(), one.reserved_bytes)),
        ]
        for one in fit.predictions
        if not one.words and (not names or one.program in names)
    ]
    headers = ["program", ">batch", "precision", ">peak GB", *(f">{kind}" for kind in KINDS), ">reserved GB"]
    if names:
        models = dict.fromkeys(one.model for one in fit.predictions if one.program in names)
        return f"{markdown_table(headers, rows)}\n\n*Predicted by `fit` for {', '.join(models)}, not measured.*"
    failed = [f"{code(program)} is not predicted: {escaped(why)}." for program, why in fit.failed.items()]
    return "\n\n".join([markdown_table(headers, rows), *failed, f"*torch {escaped(fit.environment.torch)}.*"])


@of_fit
def published_table(fit: Fit, course: "Course") -> str:
    """Beside every published figure: what is predicted, the way that figure counts."""
    rows = []
    for one in MEMORY:
        known = fit.find(one.program, one.words)
        predicted = known and {"allocated": known.peak_bytes, "reserved": known.reserved_bytes}[one.counts]
        rows.append(
            [
                code(" ".join([one.program, *one.words])),
                one.counts,
                f"{one.memory_gb:.2f}",
                _gb(predicted) if predicted else "-",
                f"{predicted / 1e9 / one.memory_gb - 1:+.1%}" if predicted else "not predicted",
                _gb(known.peak_bytes) if known else "-",
            ]
        )
    headers = ["program", "counts", ">published GB", ">predicted GB", ">off by", ">allocated GB, predicted"]
    return f"{markdown_table(headers, rows)}\n\nA context is taken to be {CONTEXT_BYTES / 1e9:.2f} GB."


@of_fit
def measured_table(fit: Fit, course: "Course") -> str:
    """Beside the allocator's peak in every record of a GPU: what was predicted for it."""
    tables = []
    for shown in course.records:
        results = [row.result for row in shown.ladder.rows if shown.device_type == "cuda"]
        rows = [
            [code(result.step), _gb(measured), _gb(predicted), f"{predicted / measured - 1:+.1%}"]
            for result in results
            for measured, predicted in [(result.peak_memory_bytes.allocated, fit.gpu_bytes(result))]
            if predicted
        ]
        if rows:
            table = markdown_table(["step", ">measured GB", ">predicted GB", ">off by"], rows)
            tables.append(f"Allocated at the peak on {escaped(shown.ladder.baseline.device)}:\n\n{table}")
    none = "*No GPU has been recorded yet, so there is no measured peak to compare with.*"
    return "\n\n".join(tables) or none


@of_fit
def largest_table(fit: Fit, course: "Course", *names: str) -> str:
    """The largest batch on common GPUs, for every program with which it was sought and that differs from the last.

    names: of some programs only, then by themselves, or "fit" of its own trainings; with what they take at their own
    batch size, a context included.
    """
    known = [one for one in fit.predictions if not names or (one.program or OF_FIT) in names]
    sought = [one for one in known if one.largest and not (names and one.program and one.words)]
    different = [one for at, one in enumerate(sought) if not at or one.largest != sought[at - 1].largest]
    rows = [
        [
            _name(one),
            *([one.precision, str(one.batch_size), _gb(one.reserved_bytes + fit.context_bytes)] if names else []),
            *(str(one.largest.get(str(size), "-")) for size in GPUS.values()),
        ]
        for one in different
    ]
    own = ["precision", ">batch", ">GB"] if names else []
    return markdown_table(["program", *own, *(f">{name}" for name in GPUS)], rows)


def _name(one: Prediction) -> str:
    return code(" ".join([one.program or OF_FIT, *one.words]))


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"


if __name__ == "__main__":
    write_json(ROOT / "logs" / "reference" / FILE, asdict(predicted()))
