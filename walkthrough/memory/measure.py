"""Predict programs in a process of its own, and write, draw and print what is predicted."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from walkthrough.compare.gpu_memory import CONTEXT_BYTES, FILE, SCHEMA, Fit, Prediction
from walkthrough.memory.record import TOLERANCE, Wanted, name_of
from walkthrough.results import progress, result
from walkthrough.results.environment import ROOT, current_environment, now
from walkthrough.results.errors import InputError

PROGRAM = "walkthrough.memory.program"
LIMIT_SECONDS, LIMIT_EACH = 1800, 300  # beyond it, and so much for each further program, something hangs
PREDICTED = '{"predicted": '  # how the lines of the process begin that hold a prediction
DURATION = "seconds each; one that makes its data first takes as long as that as well"
DURATION_WITH_BATCHES = (
    "a minute or so each, since many batch sizes are tried; data that a program makes are made for each"
)


def predictions(wanted: Sequence[Wanted]) -> list[Prediction | str]:
    """For each `Wanted` its `Prediction`, or why there is none, in a line.

    Where the process fails on the way, what it predicted until then is kept. Raises InputError where that is nothing,
    and where torch has moved the tools that this needs.
    """
    from walkthrough.compare import isolated

    kept: list[dict[str, Any]] = []

    def keep(line: str, _: "isolated.Isolated") -> None:
        if line.startswith(PREDICTED):
            kept.append(json.loads(line)["predicted"])
            if len(wanted) > 1:
                progress.say(f"fit: {len(kept)} of {len(wanted)}: {label(wanted[len(kept) - 1])}")

    limit = LIMIT_SECONDS + LIMIT_EACH * (len(wanted) - 1)
    answer = isolated.answer(isolated.module(PROGRAM), {"wanted": [asdict(one) for one in wanted]}, limit, keep)
    if isinstance(answer, str):
        if not kept:
            raise InputError(f"the memory could not be predicted: {answer}")
        answer = {"predictions": kept + [{"failed": answer}] * (len(wanted) - len(kept))}
    if "moved" in answer:
        raise InputError(f"fit cannot predict: {answer['moved']}; install the tested version, see requirements.lock")
    return [
        one["failed"] if "failed" in one else result.typed(Prediction, one, "prediction")
        for one in answer["predictions"]
    ]


def label(wanted: Wanted) -> str:
    """A program's name and words."""
    return " ".join([name_of(wanted.program or ""), *wanted.words])


def programs() -> list[Wanted]:
    """Every step and lab program by itself, and as the figures that others published were made."""
    from labs.memory.published import MEMORY

    files = sorted((ROOT / "steps").glob("[0-9]*_*.py")) + sorted((ROOT / "labs").glob("*/[0-9]*_*.py"))
    named = {name_of(str(path)): str(path) for path in files}
    own = [Wanted(path) for path in named.values()]
    published = [Wanted(named[one.program], one.words) for one in MEMORY if one.words and one.program in named]
    return own + published


def of_all_programs(budgets: Sequence[int] = ()) -> Fit:
    """The `Fit` of every program; the largest batch for each of `budgets`, bytes. Says how long it will take."""
    started = now()
    wanted = [replace(one, budgets=budgets, tolerance=TOLERANCE) for one in programs()]
    progress.say(f"fit: {len(wanted)} programs, {DURATION_WITH_BATCHES if budgets else DURATION}")
    answers = predictions(wanted)
    failed = {label(one): answer for one, answer in zip(wanted, answers, strict=True) if isinstance(answer, str)}
    return Fit(
        schema=SCHEMA,
        context_bytes=CONTEXT_BYTES,
        predictions=[answer for answer in answers if not isinstance(answer, str)],
        failed=failed,
        environment=current_environment(version("torch"), None),
        started=started,
    )


def write(logdir: Path, fit: Fit) -> None:
    """Write `fit.json` into a folder, which is made, whole or not at all. Raises InputError."""
    check_logdir(logdir)
    result.write_json(logdir / FILE, asdict(fit))


def check_logdir(logdir: Path) -> None:
    """Make the folder of `fit.json`. Raises InputError where it is none, or nothing can be written into it."""
    with result.writing(logdir):
        logdir.mkdir(parents=True, exist_ok=True)
    result.check_writable(logdir)


def plot(fit: Fit, path: Path | None) -> None:
    """Draw the memory of all programs into `path`, if it is named."""
    if path:
        from walkthrough.memory.figure import draw

        draw(fit, path)
        print(f"drawn: {path}", file=sys.stderr)


def show(fit: Fit, args: argparse.Namespace) -> None:
    """Print the predictions of all programs: one JSON object, or a table and where they were written."""
    if args.json:
        print(json.dumps(asdict(fit), indent=2))
        return
    _with_rich("show", fit)
    print(f"written to {args.logdir / FILE}")


def show_one(prediction: Prediction) -> None:
    """Print the prediction of one program."""
    _with_rich("show_one", prediction)


def _with_rich(name: str, what: Any) -> None:
    try:
        from walkthrough.memory import view
        from walkthrough.terminal import console
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print("no table: rich is not installed; --json prints without it")
        return
    getattr(view, name)(what, console())
