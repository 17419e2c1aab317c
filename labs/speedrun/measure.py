"""What the study measures, each in a process of its own: see `labs.shared.study.serve`."""

import os
import pstats
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from common.options import StepOptions
from labs.shared.images import FOLDS
from labs.shared.study import serve
from labs.speedrun import race as races_module
from labs.speedrun.model import DEFAULTS
from labs.speedrun.race import FILE, Race, RaceOptions, race_options
from labs.speedrun.recipe import Recipe, assemble, raced, recipes
from walkthrough.results import result
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional as F

HERE = Path(__file__).parent
BASE = "14_muon"  # whose recipe is varied: the last program but for compiling
SGD = "13_test_time_views"  # the last one before Muon: of heat map and curves, as what was published is of SGD
SGD_RECIPE = recipes()[SGD]
FIFTHS = 5  # of an epoch, by how long ago an image was seen
TOP = 12  # functions and operators of a profile


def words(options: StepOptions, *more: object) -> list[str]:
    """The command line of a program: these options, where they are not what it would choose, and more."""
    chosen = DEFAULTS.on(options.device)
    own = ["--logdir", options.logdir, "--device", options.device, "--data", options.data]
    own += ["--precision", options.precision]
    own += ["--model", options.model] if options.model != chosen.model else []
    own += ["--batch-size", options.batch_size] if options.batch_size != chosen.batch_size else []
    return [str(word) for word in (*own, *more)]


def options_of(options: StepOptions, seed: int, program: str = BASE, **changes: Any) -> RaceOptions:
    """The options that a program would have for a seed, with changes."""
    parsed = race_options(None, HERE / f"{program}.py", words(options, "--seed", options.seed + seed))
    return replace(parsed, **changes)


def races(
    options: StepOptions, programs: Sequence[str], seeds: Sequence[int], changes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A race of each program from each seed, one after the other: `race.Race` as JSON, and `error`.

    error: why there was none, in a line; None for a race, also for one that failed. changes: more words of the
    command line. What is compiled is compiled anew in each process, whatever an earlier one has kept.
    """
    cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a compiler may be writing at the end
    with cache as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        return _races(options, programs, seeds, changes)


def _races(
    options: StepOptions, programs: Sequence[str], seeds: Sequence[int], changes: Sequence[str]
) -> list[dict[str, Any]]:
    answers = []
    for seed in seeds:
        for program in programs:
            torch._dynamo.reset()  # of an earlier network: torch compiles a function for a few of them only
            file = options.logdir / program / FILE
            file.unlink(missing_ok=True)
            argv = [program, *words(options, "--seed", options.seed + seed, "--race-only", *changes)]
            error = _run(program, argv)
            if file.exists():  # also that of a failure, whose program ends with an error
                answers.append({**result.read_json(file), "error": None})
            else:
                answers.append({"program": program, "seed": options.seed + seed, "error": error or "no result"})
    return answers


def _run(program: str, argv: list[str]) -> str | None:
    """Run a program in this process; why it gave up, in a line, if it did."""
    before, sys.argv = sys.argv, argv
    try:
        runpy.run_path(str(HERE / f"{program}.py"), run_name="__main__")
    except InputError as error:
        return str(error)
    except Exception as error:  # a compiler fails in any way; the others race on
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    return None


def heat_row(options: StepOptions, batch_size: int, seed: int, lrs: Sequence[float]) -> dict[str, Any]:
    """{"accuracies": (0..1) at the end, by learning rate, "seconds": of all}, on the fifth that the seed holds out.

    None is the accuracy of a race that diverged.
    """
    torch.set_num_threads(1)  # one of several processes
    begin = time.perf_counter()
    done = [_varied(options, seed, SGD_RECIPE, batch_size=batch_size, lr=lr, fold=seed % FOLDS) for lr in lrs]
    accuracies = [None if race.failure == "diverged" else race.accuracies[-1] for race in done]
    return {"accuracies": accuracies, "seconds": time.perf_counter() - begin}


def ablated(options: StepOptions, variants: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, dict[str, Any]]:
    """{variant: accuracy (0..1) at the end, None where it diverged, whether it reached the target, seconds}, one seed.

    variants: {name: changed fields of `Recipe`}.
    """
    torch.set_num_threads(1)
    _varied(options, seed, Recipe(), epochs=1)  # what only a process's first race costs
    answers = {}
    for name, changes in variants.items():
        race = _varied(options, seed, Recipe(**changes))
        diverged = race.failure == "diverged"
        answers[name] = {
            "accuracy": None if diverged else race.accuracies[-1],
            "reached": race.failure is None,
            "seconds": race.seconds[-1],
        }
    return answers


def curves(
    options: StepOptions, variants: Mapping[str, Mapping[str, Any]], seed: int
) -> dict[str, dict[str, Any] | None]:
    """{variant: {"losses", "accuracies" (0..1): by epoch}, None if it diverged}, on the fifth that the seed holds out.

    variants: {name: batch_size, epochs, and lr_times: by how much the learning rate is multiplied}.
    """
    torch.set_num_threads(1)
    answers = {}
    for name, changes in variants.items():
        changes = {"fold": seed % FOLDS, "lr": options_of(options, seed, SGD).lr * changes["lr_times"], **changes}
        changes.pop("lr_times")
        race = _varied(options, seed, SGD_RECIPE, **changes)
        diverged = race.failure == "diverged"
        answers[name] = None if diverged else {"losses": race.losses, "accuracies": race.accuracies}
    return answers


def _varied(options: StepOptions, seed: int, recipe: Recipe, **changes: Any) -> Race:
    program = BASE if recipe.muon else SGD
    return raced(recipe, options_of(options, seed, program, **changes), program)


def remembered(options: StepOptions, seed: int) -> list[dict[str, Any]]:
    """After each epoch but the last: loss and accuracy on training images by when they were seen, and on unseen ones.

    "fifths": of the epoch's steps, the last one first; which image is in which is drawn at random in every epoch.
    Images are those that are stored, not shifted or cut out. Without `Lookahead`, which would blur the steps.
    """
    torch.set_num_threads(1)
    args = options_of(options, seed)
    entry = assemble(Recipe(lookahead=False, views=False), args)
    model, rows = entry.state[0], list[dict[str, Any]]()
    images, labels = entry.loader.prepared()
    unseen = entry.data.prepared(entry.data.test, images.device)
    if entry.prepare:
        entry.prepare()
    for _ in range(args.epochs - 1):
        model.train()
        for batch in entry.loader:
            entry.train_step(*batch)
        model.eval()
        seen = entry.loader.order[: len(entry.loader) * entry.loader.batch_size].flip(0)
        parts = [(images[part], labels[part]) for part in seen.tensor_split(FIFTHS)]
        rows.append({"fifths": [_tested(model, *part) for part in parts], "unseen": _tested(model, *unseen)})
    return rows


@torch.no_grad()
def _tested(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    scores = model(images)
    right = (scores.argmax(1) == labels).float().mean()
    return {"loss": F.cross_entropy(scores, labels).item(), "accuracy": right.item()}


def profiled(options: StepOptions, program: str) -> dict[str, Any]:
    """A race of one epoch of a program, twice: under cProfile, and under torch.profiler.

    {"calls", "seconds": of all, "functions": rows by their own time, "operators": likewise}.
    """
    file = options.logdir / f"{program}.prof"
    short = ["--epochs", 1, "--race-only"]
    error = _run(program, [program, *words(options, *short, "--cprofile", file)])
    if error:
        raise InputError(error)
    operators = _operators(program, [program, *words(options, *short)])
    stats: Any = pstats.Stats(str(file))
    rows = [
        {
            "function": function_name(*where),
            "calls": calls,
            "own s": own,
            "cumulative s": cumulative,
        }
        for where, (_, calls, own, cumulative, _) in stats.stats.items()
    ]
    rows.sort(key=lambda row: row["own s"], reverse=True)
    return {"calls": stats.total_calls, "seconds": stats.total_tt, "functions": rows[:TOP], "operators": operators}


def function_name(file: str, line: int, name: str) -> str:
    """A function as cProfile knows it, without the folders of this machine: "augment.py:52(__call__)"."""
    return name if file == "~" else f"{Path(file).name}:{line}({name})"


def _operators(program: str, argv: list[str]) -> list[dict[str, Any]]:
    """Operators by their own time while the clock of a race of one epoch ran; on a GPU, by that of their kernels."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    profiler = torch.profiler.profile(activities=torch.profiler.supported_activities())
    untraced = races_module.race

    def traced(*args: Any, **settings: Any) -> Race:
        return untraced(*args, **{**settings, "on_clock": profiler})

    with patch.object(races_module, "race", traced):
        _run(program, argv)
    events = profiler.key_averages()
    on_gpu = any(event.self_device_time_total for event in events)

    def own_us(event: Any) -> float:
        return event.self_device_time_total if on_gpu else event.self_cpu_time_total

    events = sorted(events, key=own_us, reverse=True)[:TOP]
    return [{"operator": event.key, "calls": event.count, "own s": own_us(event) / 1e6} for event in events]


if __name__ == "__main__":
    serve(races, heat_row, ablated, curves, remembered, profiled)
