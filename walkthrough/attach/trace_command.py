"""`trace`: any training command under torch.profiler, without a change to it; then `explain`."""

import argparse
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from walkthrough.attach.launch import Outcome, command_words, is_one_training, reports_folder, run_attached, why_nothing
from walkthrough.results import result
from walkthrough.results.errors import InputError, folder, printable, whole_number
from walkthrough.results.folder import traces_in

HELP = "Trace the training in any command, unchanged: walkthrough trace -- python train.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `trace`."""
    parser.add_argument(
        "--warmup", type=whole_number(1, 10**6), default=10, metavar="N", help="steps before that (default: 10)"
    )
    parser.add_argument(
        "--steps", type=whole_number(1, 1000), default=3, metavar="N", help="steps to trace (default: 3)"
    )
    parser.add_argument("--stacks", action="store_true", help="record Python's functions too (larger, slower)")
    parser.add_argument("--memory", action="store_true", help="record every allocation too (larger, slower)")
    parser.add_argument("--go-on", action="store_true", help="let the program go on after the traced steps")
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="where the traces go (default: a new folder logs/NAME or logs/NAME-2, of the program)",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND…", help="what starts the training")


def run(args: argparse.Namespace) -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError.

    Traced: 0, or with --go-on the command's own. Else the command's own, 2 where that is 0.
    """
    words = command_words(args.words)
    out = Path(args.out) if args.out else _new_folder(words)
    is_new = not out.exists()
    with result.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        result.check_writable(out)
        earlier = set(traces_in(out))
        settings = {
            "mode": "trace",
            "out": str(out.resolve()),
            **{name: getattr(args, name) for name in ("warmup", "steps", "stacks", "memory", "go_on")},
        }
        with reports_folder(out) as reports:
            outcome = run_attached(words, settings, reports)
    traced = outcome.in_state("done")
    if not traced:
        if is_new and not any(out.iterdir()):
            out.rmdir()
        _last_line(f"not traced: {why_nothing(outcome, args.warmup)}; {outcome.ended}")
        return outcome.exit_code or 2
    _explain(out, traced)
    _last_line(_result(out, outcome, traced, len(earlier), args.warmup))
    return outcome.exit_code if args.go_on else 0


def _new_folder(words: list[str]) -> Path:
    """logs/<name of the program>, with a number where that holds something."""
    programs = [word for word in words if word.endswith((".py", ".sh"))]
    modules = [after for before, after in pairwise(words) if before == "-m"]
    name = Path(programs[0]).stem if programs else modules[-1] if modules else Path(words[0]).name
    candidates = [Path("logs") / name, *(Path("logs") / f"{name}-{number}" for number in range(2, 1000))]
    return next((path for path in candidates if not path.exists()), candidates[0])


def _explain(out: Path, traced: list[dict[str, Any]]) -> None:
    """Print what `explain` says about these traces; what it cannot read is one line."""
    from walkthrough.explain.command import print_traces

    sys.stderr.flush()
    print(flush=True)
    try:
        shown = traced if is_one_training(traced) else traced[:1]
        print_traces({report.get("rank"): out / report["trace"] for report in shown})
        sys.stdout.flush()
    except InputError as error:
        print(printable(error), file=sys.stderr)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _result(out: Path, outcome: Outcome, traced: list[dict[str, Any]], earlier: int, warmup: int) -> str:
    counts = sorted({report["traced"] for report in traced})
    steps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    processes = f" of {len(traced)} processes" if len(traced) > 1 else ""
    how = "ended after them" if any(report.get("ended_by_us") for report in traced) else "went on to its end"
    text = f"traced {steps} step{'s' * (steps != '1')}{processes} into {out}; the program {how}, {outcome.ended}"
    if outcome.stopped:
        text += f" ({outcome.stopped})"
    if others := outcome.in_state("failed", "measuring", "stepping"):
        rest = replace(outcome, reports=others)
        text += f"; {len(others)} more not: {why_nothing(rest, warmup)}"
    if earlier:
        text += f"; that folder holds {earlier} earlier trace{'s' * (earlier != 1)} too"
    if not is_one_training(traced):
        text += f"; explained is {traced[0]['trace']}, of the first of several trainings"
    return text


def _last_line(text: str) -> None:
    print(f"walkthrough trace: {printable(text)}", file=sys.stderr)
