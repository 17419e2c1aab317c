"""The command `compare`: the runs of a folder side by side."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from walkthrough.compare import roofs
from walkthrough.compare.rounds import Ladder, comparison, gpu_use, ladders, readable_rounds
from walkthrough.compare.summary import short_name
from walkthrough.results.environment import ROOT, project_folder
from walkthrough.results.errors import InputError, folder, printable
from walkthrough.results.result import FILE, Result, read_results, steps_not_run

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    logs = project_folder("logs")
    parser.add_argument(
        "logdir", nargs="?", type=folder, default=logs, metavar="LOGDIR", help="default: logs/ of this project"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw what each step gains: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Print the comparison of the runs in `args.logdir`, as a table or as JSON; the exit code.

    Raises InputError for a folder without results, and for a file that cannot be drawn.
    """
    results, problems = read_results(args.logdir)
    if problems and not results:
        raise InputError(problems[0] + (f" ({len(problems) - 1} more are broken)" if problems[1:] else ""))
    for problem in problems:
        print(printable(f"skipped: {problem}"), file=sys.stderr)
    if not results:
        below = sorted({file.parent.parent.name for file in args.logdir.glob(f"*/*/{FILE}")})
        fix = f"its folders have: {', '.join(below[:6])}" if below else "run `make tour`"
        raise InputError(f"no results in {args.logdir}: it should have a folder per step with {FILE} in it; {fix}")
    runs, problems = readable_rounds(args.logdir, results)
    for problem in problems:
        print(printable(f"skipped: {problem}"), file=sys.stderr)
    compared = ladders(results, runs)
    if foreign := of_other_versions(compared):
        print(
            f"{', '.join(foreign)}: of another version of the steps, with numbers that are used twice here; remove "
            "their folders, or use another --logdir",
            file=sys.stderr,
        )
    if len(compared) > 1:
        print(f"{len(compared)} ladders: the runs differ in device, data, model or image size", file=sys.stderr)
    if args.plot:
        from walkthrough.compare.figures import plot

        if len(compared) > 1:
            print(f"only the first is drawn, from {compared[0].baseline.device}", file=sys.stderr)
        plot(compared[0], args.plot)
        print(f"drawn: {args.plot}", file=sys.stderr)
    if args.json:
        print(json.dumps(comparison(compared, _unless_broken(roofs.read, args.logdir)), indent=2))
    else:
        _print(args.logdir, results, compared)
    return 0


def of_other_versions(compared: Sequence[Ladder]) -> list[str]:
    """The steps that are none of `steps/`, but share their number with another step of their ladder."""
    steps = []
    for ladder in compared:
        numbers = Counter(short_name(row.result.step) for row in ladder.rows)
        steps += [step for step in (row.result.step for row in ladder.rows) if numbers[short_name(step)] > 1]
    return [printable(step) for step in steps if not (ROOT / "steps" / f"{step}.py").exists()]


def _print(logdir: Path, results: list[Result], compared: list[Ladder]) -> None:
    from walkthrough.compare.ladder import print_ladders
    from walkthrough.terminal import console

    used, problems = gpu_use(logdir, results)
    for problem in problems:
        print(printable(f"no figures from a trace: {problem}"), file=sys.stderr)
    limit = _unless_broken(roofs.read, logdir)
    missing = _unless_broken(steps_not_run, logdir) or []
    print_ladders(compared, console(), used, limit, missing)


def _unless_broken(read: Callable[[Path], T], logdir: Path) -> T | None:
    """What `read` returns for a folder; None, and a line on stderr, where that is broken."""
    try:
        return read(logdir)
    except InputError as error:
        print(printable(f"skipped: {error}"), file=sys.stderr)
        return None
