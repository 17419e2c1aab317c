"""`time`: two training commands against each other, in interleaved rounds, without a profiler."""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from walkthrough.attach.launch import (
    Outcome,
    check_room,
    command_words,
    is_one_training,
    reports_folder,
    run_attached,
    why_nothing,
)
from walkthrough.compare.statistics import Ratio, of_pairs, of_windows
from walkthrough.results.errors import InputError, printable, whole_number

VERSUS = "--versus"
TAIL = 20  # lines of a failed command's output


@dataclass(frozen=True)
class Run:
    """One run of a command. steps, seconds: of each window; samples: None where batches have no known size.

    Of several processes: the windows of rank 0, the samples of all.
    """

    steps: list[int]
    seconds: list[float]
    samples: list[int] | None
    happenings: dict[str, int]
    processes: int

    @property
    def steps_per_second(self) -> float:
        """Over all windows together: what begins an epoch is part of it."""
        return sum(self.steps) / sum(self.seconds)

    @property
    def samples_per_second(self) -> float | None:
        return None if self.samples is None else sum(self.samples) / sum(self.seconds)

    @property
    def batch_size(self) -> float | None:
        """Samples per step of all processes, on average."""
        return None if self.samples is None else sum(self.samples) / sum(self.steps)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `time`."""
    parser.add_argument(
        "--warmup", type=whole_number(1, 10**6), default=10, metavar="N", help="steps before that (default: 10)"
    )
    parser.add_argument(
        "--steps", type=whole_number(1, 10**6), default=50, metavar="N", help="steps to time in each run (default: 50)"
    )
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=5, metavar="N", help="runs of each command (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND… --versus COMMAND…", help="what starts the trainings"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError.

    Where one of the commands fails: the result of the rounds before, the end of its output, and its exit code.
    """
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if words.count(VERSUS) != 1:
        raise InputError(f"two commands are needed, {VERSUS} between them: time -- COMMAND A {VERSUS} COMMAND B")
    middle = words.index(VERSUS)
    texts = {"A": shlex.join(words[:middle]), "B": shlex.join(words[middle + 1 :])}
    commands = {"A": command_words(words[:middle]), "B": command_words(words[middle + 1 :])}
    settings = {"mode": "time", "warmup": args.warmup, "steps": args.steps, "go_on": False}
    runs: dict[str, list[Run]] = {"A": [], "B": []}
    for number in range(1, args.rounds + 1):
        for label in ("A", "B") if number % 2 else ("B", "A"):  # neither is always the one that comes first
            outcome, text = _run(commands[label], settings)
            timed = outcome.in_state("done")
            if not timed or outcome.signalled:
                whole = min(map(len, runs.values()))
                if whole:
                    _show(texts, {label: items[:whole] for label, items in runs.items()}, args.json)
                sys.stdout.flush()
                print(text, end="", file=sys.stderr)
                why = f"{label} was not timed in round {number}: {printable(_why(outcome, args.warmup, args.steps))}"
                print(f"walkthrough time: {why}; {outcome.ended}", file=sys.stderr)
                return outcome.exit_code or (130 if outcome.signalled else 2)
            runs[label].append(_from_reports(timed, label))
        speeds = ", ".join(f"{label} {items[-1].steps_per_second:.4g} steps/s" for label, items in runs.items())
        print(f"round {number} of {args.rounds}: {speeds}", file=sys.stderr, flush=True)
    _show(texts, runs, args.json)
    return 0


def compared(a: Sequence[Run], b: Sequence[Run]) -> dict[str, Any]:
    """The object of `time --json` but for the commands.

    steps_per_second, samples_per_second (None where not known): {"A": [one of each round], "B": […]}. ratio: how many
    times as fast B is, with its 95 % interval `low` to `high`; `per`: "sample" where both batch sizes are known, else
    "step". Each round's two runs are a pair; of one round only, the interval is from its windows. batch_size: samples
    per step. happened: what else there was in the timed steps, and how often, over all rounds.
    """
    both = {"A": list(a), "B": list(b)}
    per_sample = all(run.samples_per_second for runs in both.values() for run in runs)
    return {
        "rounds": len(a),
        "steps": sum(a[0].steps),
        "steps_per_second": {label: [run.steps_per_second for run in runs] for label, runs in both.items()},
        "samples_per_second": {label: [run.samples_per_second for run in runs] for label, runs in both.items()}
        if per_sample
        else None,
        "batch_size": {label: runs[0].batch_size for label, runs in both.items()},
        "per": "sample" if per_sample else "step",
        "ratio": asdict(ratio := _ratio(a, b, per_sample)) | {"resolved": ratio.resolved},
        "processes": {label: runs[0].processes for label, runs in both.items()},
        "happened": {label: _happened(runs) for label, runs in both.items()},
    }


def _ratio(a: Sequence[Run], b: Sequence[Run], per_sample: bool) -> Ratio:
    def speed(run: Run) -> float:
        return (run.samples_per_second or 0.0) if per_sample else run.steps_per_second

    if len(a) > 1:
        return of_pairs([speed(new) / speed(old) for old, new in zip(a, b, strict=True)])

    def windows(run: Run) -> list[float]:
        counts = run.samples if per_sample and run.samples else run.steps
        return [count / seconds for count, seconds in zip(counts, run.seconds, strict=True)]

    return of_windows(windows(b[0]), windows(a[0]))


def _run(words: Sequence[str], settings: dict[str, Any]) -> tuple[Outcome, str]:
    """One run of a command, and the end of its output."""
    with reports_folder() as reports, tempfile.TemporaryFile(dir=reports) as output:
        outcome = run_attached(words, settings, reports, output)
        if not outcome.in_state("done"):
            check_room(reports)  # else the program could not print, and may have ended by that
        output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL * 1000))
        lines = output.read().decode(errors="replace").splitlines()[-TAIL:]
    return outcome, "".join(f"{printable(line)}\n" for line in lines)


def _why(outcome: Outcome, warmup: int, steps: int) -> str:
    if outcome.signalled:
        return "interrupted"
    if measuring := outcome.in_state("measuring"):
        counts = [report["steps"] for report in measuring if report.get("steps")]
        if counts:
            return (
                f"it ended after {max(counts)} training steps, and {warmup} + {steps} are needed: give smaller "
                "--warmup or --steps, or train longer"
            )
    return why_nothing(outcome, warmup)


def _from_reports(reports: Sequence[dict[str, Any]], label: str) -> Run:
    """The run of one training, of one process or several ranks. Raises InputError where there are several trainings."""
    first = reports[0]
    if not is_one_training(reports):
        raise InputError(f"{label} holds {len(reports)} trainings, in processes without ranks: time one of them")
    samples = [report["samples"] for report in reports]
    of_all = [sum(counts) for counts in zip(*samples, strict=True)] if all(samples) else None
    return Run(first["steps"], first["seconds"], of_all, first["happenings"], len(reports))


def _happened(runs: Sequence[Run]) -> dict[str, int]:
    names = dict.fromkeys(name for run in runs for name in run.happenings)
    return {name: sum(run.happenings.get(name, 0) for run in runs) for name in names}


def _show(texts: dict[str, str], runs: dict[str, list[Run]], as_json: bool) -> None:
    result = compared(runs["A"], runs["B"])
    if as_json:
        print(json.dumps({"commands": texts, **result}, indent=2, allow_nan=False))
    else:
        _print(texts, runs, result)


def _print(texts: dict[str, str], runs: dict[str, list[Run]], result: dict[str, Any]) -> None:
    """The two speeds, and their ratio with its interval."""
    rounds = result["rounds"]
    for label, items in runs.items():
        steps = statistics.geometric_mean(run.steps_per_second for run in items)  # whose ratio is that of the pairs
        text = f"{label}  {steps:.4g} steps/s"
        samples = [run.samples_per_second for run in items if run.samples_per_second]
        if len(samples) == len(items):
            text += f", {statistics.geometric_mean(samples):.4g} samples/s ({items[0].batch_size:.4g} per step)"
        if items[0].processes > 1:
            text += f", {items[0].processes} processes"
        if happened := _happened(items):
            text += "; in its timed steps " + ", ".join(f"{name} {count} times" for name, count in happened.items())
        print(f"{text}\n   {printable(texts[label])}")
    shown = Ratio(**{name: result["ratio"][name] for name in ("ratio", "low", "high", "rounds")})
    unit = "samples/s" if result["per"] == "sample" else "steps/s"
    of = f"{rounds} rounds" if rounds > 1 else "one round: how runs vary is not in the interval"
    print(f"B is {shown} as fast as A, in {unit} (95 % interval; {of})")
    if not shown.resolved:
        print("no measurable difference: the interval includes 1.00; more --rounds or --steps make it narrower")
    if result["per"] == "step":
        print("the size of a batch is not known (no DataLoader): if the commands' batches differ, so do their steps")
