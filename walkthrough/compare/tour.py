"""`tour`: every step in order, each in a process of its own, once or in several rounds; then the comparison."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.compare import forked, rounds, runner
from walkthrough.results.folder import drop_runs, locked, own_folder, publish
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import NotRun, Result, read_result, writing

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tour`: those of a step, and how many rounds."""
    from common.options import add_step_options

    add_step_options(parser)
    rounds.add_options(parser, "--rounds", default=1)


def run(args: argparse.Namespace) -> int:
    """Run every step with the options in `args`, print the comparison, return the exit code.

    A step that fails is named and the others still run: then 1, or 2 if each that failed did so by its input; the table
    has those as not run, with the reason. Raises InputError, at once, where the input suits no step at all.
    """
    schedule = rounds.Schedule.of(args, runner.step_files(), default=1)
    runner.prepare(args)
    busy = f"another tour is writing to {args.logdir}: wait for it, or use another --logdir"
    with locked(args.logdir / ".tour.lock", busy), ExitStack() as held:
        staging = {}
        if schedule.limit > 1:
            for script in schedule.scripts:
                _, staging[script.stem] = held.enter_context(own_folder(args.logdir, script.stem))
        return _run_all(args, schedule, staging)


def _run_all(args: argparse.Namespace, schedule: rounds.Schedule, staging: Mapping[str, Path]) -> int:
    """staging: {step: where a run of several rounds is written before it is kept}; {} for one round."""
    from rich.text import Text

    from common.options import command_line
    from walkthrough.terminal import console

    out, failures = console(), []
    is_forked = args.quick and forked.available(args.device)
    show = runner.once(lambda line: out.print(Text(line, "dim")))
    for number, script in schedule:
        step, folder = script.stem, args.logdir / script.stem
        label = schedule.label(number, step) if staging else f"{step:<26}"
        logdir = staging.get(step, args.logdir)
        with _bar(out, label) as advance:
            words = command_line(args, logdir=logdir, download=False)
            outcome = runner.run(script, words, advance, show, is_forked)
        if outcome.code == 0:
            result = read_result(logdir / step / RESULT_FILE)
            if staging:
                is_first, is_traced = step not in schedule.runs, schedule.is_traced(number, result)
                _keep(logdir / step, folder, number, result, is_first, is_traced)
            schedule.add(number, result)
            speed = result.samples_per_second.median
            out.print(Text.assemble(("" if staging else "done   ", "green"), f"{label}{speed:10.1f} images/s"))
            continue
        if outcome.code == 2 and not schedule.runs and not failures:
            runner.check_input(args)
        what = schedule.add_failure(step, outcome)
        failures.append((step, what, outcome))
        if staging and step not in schedule.runs:
            drop_runs(folder)
        out.print(Text.assemble((f"{what} ", "red" if what == "failed" else "yellow"), f"{label}{outcome.reason}"))
    results = [read_result(args.logdir / step / RESULT_FILE) for step in sorted(schedule.runs)]
    missing = [NotRun(step, reason) for step, reason in schedule.not_run.items()]
    if results:
        _print_comparison(args.logdir, results, missing, out)
    for step, what, outcome in dict.fromkeys(failures):  # once, what failed in every round
        print(f"tour: {step} {what}: {outcome.reason}", file=sys.stderr)
    return runner.exit_code(outcome.code for _, _, outcome in failures)


def _keep(source: Path, folder: Path, number: int, result: Result, is_first: bool, is_traced: bool) -> None:
    """Move a round's run into the log folder: the first as a run by itself, replacing what was there.

    is_traced: whether this run's trace and events are kept, under the names of the first's.
    """
    if is_first:
        publish(folder, source, result.trace, next(source.glob("events.out.tfevents.*")).name, result)
    elif is_traced:
        with writing(folder):
            for kind in ("*.pt.trace.json.gz", "events.out.tfevents.*"):
                os.replace(next(source.glob(kind)), next(folder.glob(kind)))
    rounds.keep(folder, number, result)
    shutil.rmtree(source)  # TensorBoard would show it


def _print_comparison(logdir: Path, results: list[Result], missing: list[NotRun], out: "Console") -> None:
    from walkthrough.compare.compare import gpu_use, ladders, readable_rounds
    from walkthrough.compare.ladder import print_ladders

    runs, problems = readable_rounds(logdir, results)
    for problem in problems:
        print(f"tour: skipped: {problem}", file=sys.stderr)
    used, problems = gpu_use(logdir, results)
    for problem in problems:
        print(f"tour: no figures from a trace: {problem}", file=sys.stderr)
    print_ladders(ladders(results, runs), out, used, missing=missing)
    python = Path(sys.executable)
    board = python.with_name("tensorboard")
    out.print(f"\nLook at the runs:  {board if board.exists() else 'tensorboard'} --logdir {logdir}", markup=False)
    again = "These rows again:  " if missing else "This table again:  "
    out.print(f"{again}{python} -m walkthrough compare {logdir}", markup=False)


@contextmanager
def _bar(out: "Console", label: str) -> "Iterator[Callable[[dict[str, Any]], None]]":
    """A progress bar for one step while it runs, where the output is a terminal; yields `advance(event)`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        bar = bars.add_task(label, total=None, now="starting")

        def advance(event: dict[str, Any]) -> None:
            speed = event["samples_per_second"]
            now = event["phase"] if speed is None else f"{event['phase']}  {speed:.1f} images/s"
            bars.update(bar, completed=event["done"], total=event["of"], now=now)

        yield advance
