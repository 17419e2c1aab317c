"""`tour`: every step in order, each in a process of its own, then the comparison."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import record
from common.ladder import runner
from common.options import add_step_options, command_line

if TYPE_CHECKING:
    from rich.console import Console

HELP = "Run every step in order, then compare them."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tour`: those of a step."""
    add_step_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run every step with the options in `args`, print the comparison, return the exit code.

    A step that fails is named and the others still run: then 1, or 2 if each that failed did so by its input; the table
    has those as not run, with the reason. Raises InputError, at once, where the input suits no step at all.
    """
    from common.run.folder import locked

    runner.prepare(args)
    busy = f"another tour is writing to {args.logdir}: wait for it, or use another --logdir"
    with locked(args.logdir / ".tour.lock", busy):
        return _run_all(args)


def _run_all(args: argparse.Namespace) -> int:
    from rich.text import Text

    from common.explain.terminal import console

    out, results, failures = console(), [], []
    words, show = command_line(args, download=False), runner.once(lambda line: out.print(Text(line, "dim")))
    for file in runner.step_files():
        with _bar(out, file.stem) as advance:
            outcome = runner.run(file, words, advance, show)
        if outcome.code == 0:
            results.append(record.read_result(args.logdir / file.stem / record.FILE))
            speed = results[-1].samples_per_second.median
            out.print(Text.assemble(("done   ", "green"), f"{file.stem:<26}{speed:10.1f} images/s"))
            continue
        if outcome.code == 2 and not results and not failures:
            runner.check_input(args)
        failures.append((file.stem, outcome))
        what = ("not run ", "yellow") if outcome.code == 2 else ("failed ", "red")
        out.print(Text.assemble(what, f"{file.stem:<26}{outcome.reason}"))
    if results:
        _print_comparison(args.logdir, results, failures, out)
    for step, outcome in failures:
        print(f"tour: {step} {'not run' if outcome.code == 2 else 'failed'}: {outcome.reason}", file=sys.stderr)
    return runner.exit_code(outcome.code for _, outcome in failures)


def _print_comparison(
    logdir: Path, results: list[record.Result], failures: list[tuple[str, runner.Outcome]], out: "Console"
) -> None:
    from common.ladder.compare import gpu_use, ladders, recorded_rounds
    from common.ladder.table import print_ladders
    from common.run.not_run import NotRun

    used, problems = gpu_use(logdir, results)
    for problem in problems:
        print(f"tour: no figures from a trace: {problem}", file=sys.stderr)
    missing = [NotRun(step, outcome.reason) for step, outcome in failures if outcome.code == 2]
    print_ladders(ladders(results, recorded_rounds(logdir, results)), out, used, missing=missing)
    python = Path(sys.executable)
    board = python.with_name("tensorboard")
    out.print(f"\nLook at the runs:  {board if board.exists() else 'tensorboard'} --logdir {logdir}", markup=False)
    again = "These rows again:  " if missing else "This table again:  "
    out.print(f"{again}{python} -m common compare {logdir}", markup=False)


@contextmanager
def _bar(out: "Console", step: str) -> "Iterator[Callable[[dict[str, Any]], None]]":
    """A progress bar for one step while it runs, where the output is a terminal; yields `advance(event)`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        bar = bars.add_task(f"{step:<26}", total=None, now="starting")

        def advance(event: dict[str, Any]) -> None:
            speed = event["samples_per_second"]
            now = event["phase"] if speed is None else f"{event['phase']}  {speed:.1f} images/s"
            bars.update(bar, completed=event["done"], total=event["of"], now=now)

        yield advance
