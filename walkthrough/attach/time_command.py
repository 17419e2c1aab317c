"""`time`: two training commands against each other, in interleaved rounds, without a profiler."""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from walkthrough.attach.launch import (
    Outcome,
    check_room,
    command_words,
    counted,
    is_one_training,
    reports_folder,
    run_attached,
    warmup_for,
    why_nothing,
)
from walkthrough.compare.statistics import UNLIMITED, Ratio, decided, of_pairs, of_windows, rounds_needed
from walkthrough.results.errors import InputError, add_number, printable

VERSUS = "--versus"
MOST_ROUNDS = 1000
TAIL = 20  # lines of a failed command's output


@dataclass(frozen=True)
class Run:
    """One run of a command. steps, seconds: of each window; samples: None where batches have no known size.

    Of several processes: the windows of rank 0, the samples of all. total: the training steps of a program that ended
    before all windows were timed, else None. repeated: windows that were timed again, as the program evaluated or saved
    in them.
    """

    steps: list[int]
    seconds: list[float]
    samples: list[int] | None
    happenings: dict[str, int]
    processes: int
    total: int | None = None
    repeated: int = 0

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
    add_number(parser, "--warmup", "steps before the timed ones", 1, 10**6, 10)
    add_number(parser, "--steps", "steps to time in each run", 1, 10**6, 50)
    add_number(parser, "--rounds", "runs of each command at most", 1, MOST_ROUNDS, 5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND… --versus COMMAND…", help="what starts the trainings"
    )


Runs = dict[str, list[Run]]  # {"A": one of each round, "B": …}


@dataclass(frozen=True)
class End:
    """Why no more rounds were run. why: as `time --json` names it. text: for stderr, with the reason of a failure."""

    why: str
    code: int = 0
    text: str = ""


def run(args: argparse.Namespace) -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError.

    Where one of the commands fails: the result of the rounds before, the end of its output, and its exit code. Where
    Ctrl-C ends it: the result of the rounds before, and 130.
    """
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if words.count(VERSUS) != 1:
        raise InputError(f"two commands are needed, {VERSUS} between them: time -- COMMAND A {VERSUS} COMMAND B")
    middle = words.index(VERSUS)
    texts = {"A": shlex.join(words[:middle]), "B": shlex.join(words[middle + 1 :])}
    commands = {"A": command_words(words[:middle]), "B": command_words(words[middle + 1 :])}
    runs: Runs = {"A": [], "B": []}
    with reports_folder():  # where none can be made, that is the only line
        pass
    try:
        end = _time(commands, args, runs)
    except KeyboardInterrupt:  # while none of the commands runs
        end = End("interrupted", 130)
    runs = {label: items[: min(map(len, runs.values()))] for label, items in runs.items()}
    if runs["A"]:
        result = {"commands": texts, **compared(runs["A"], runs["B"], args.rounds, end.why)}
        if args.json:
            print(json.dumps(result, indent=2, allow_nan=False))
        else:
            _print(runs, result)
    sys.stdout.flush()
    if end.why == "interrupted":
        rounds = f"interrupted after {len(runs['A'])} of {counted(args.rounds, 'round')}"
        end = End(end.why, end.code, f"walkthrough time: {rounds}\n")
    print(end.text, end="", file=sys.stderr)
    return end.code


def _time(commands: Mapping[str, list[str]], args: argparse.Namespace, runs: Runs) -> End:
    """Run the commands in rounds until the answer is settled, and say how it stands after each; adds to `runs`."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    settings = {"mode": "time", "warmup": args.warmup, "steps": args.steps, "go_on": False}
    counts = f"{counted(args.steps, 'step')} after {args.warmup} of warm-up"
    say(f"{counted(args.rounds, 'round')} at most, each a run of A and of B: {counts}")
    begin = time.monotonic()
    for number in range(1, args.rounds + 1):
        for label in ("A", "B") if number % 2 else ("B", "A"):  # neither is always the one that comes first
            outcome, output = _run(commands[label], settings)
            if outcome.signalled:
                return End("interrupted", 128 + outcome.signalled)
            timed = outcome.in_state("done")
            if not timed or ("total" in timed[0] and outcome.code):
                why = f"{label} was not timed in round {number}: {printable(_why(outcome, args.warmup, args.steps))}"
                text = f"{output}walkthrough time: {why}; {outcome.ended}\n"
                return End("failed", outcome.exit_code or 2, text)
            runs[label].append(new := _from_reports(timed, label))
            if new.total and number == 1:
                say(f"{label} ended after {new.total} training steps: {sum(new.steps)} of {args.steps} are timed")
        a, b = runs["A"], runs["B"]
        speeds = ", ".join(f"{label} {items[-1].steps_per_second:.4g} steps/s" for label, items in runs.items())
        pairs = _pairs(a, b)
        ratio = of_pairs(pairs) if number > 2 else f"{statistics.geometric_mean(pairs):.2f}x"
        say(f"round {number} of {args.rounds}: {speeds}; B is {ratio} as fast")
        if number == 1 < args.rounds:
            each, left = (time.monotonic() - begin) / 2, args.rounds - 1
            counts = f"{counted(left, 'round')} of 2 runs, {duration(each)} each"
            say(f"about {duration(2 * each * left)} more at most: {counts}")
        settled = decided(pairs, args.rounds)
        if settled is not None:
            return End("resolved" if settled else "unresolvable")
    return End("all rounds")


def compared(a: Sequence[Run], b: Sequence[Run], asked: int | None = None, ended: str = "all rounds") -> dict[str, Any]:
    """The object of `time --json` but for the commands.

    rounds: those that are complete, of `rounds_asked` at most. ended: why there are no more: "all rounds"; "resolved"
    or "unresolvable", before the last, see `compare.statistics.decided`; "interrupted"; "failed". steps: timed in each
    run. steps_per_second, samples_per_second (None where not known): {"A": [one of each round], "B": […]}. ratio: how
    many times as fast B is, with its 95 % interval `low` to `high`; `per`: "sample" where both batch sizes are known,
    else "step". Each round's two runs are a pair; of one round only, the interval is from its windows. rounds_needed:
    about how many it takes until the interval leaves 1 out; None where it does, or not even 1000 would be enough.
    batch_size: samples per step. happened: what else there was in the timed steps, and how often, over all rounds.
    timed_again: windows that held an evaluation or a checkpoint.
    """
    both = {"A": list(a), "B": list(b)}
    ratio, per_sample, asked = _ratio(a, b), _per_sample(a, b), asked or len(a)
    needed = rounds_needed(_pairs(a, b), asked) if len(a) > 2 and not ratio.resolved else MOST_ROUNDS + 1
    return {
        "rounds": len(a),
        "rounds_asked": asked,
        "ended": ended,
        "steps": {label: sum(runs[0].steps) for label, runs in both.items()},
        "steps_per_second": {label: [run.steps_per_second for run in runs] for label, runs in both.items()},
        "samples_per_second": {label: [run.samples_per_second for run in runs] for label, runs in both.items()}
        if per_sample
        else None,
        "batch_size": {label: runs[0].batch_size for label, runs in both.items()},
        "per": "sample" if per_sample else "step",
        "ratio": asdict(ratio) | {"resolved": ratio.resolved},
        "rounds_needed": needed if needed <= MOST_ROUNDS else None,
        "processes": {label: runs[0].processes for label, runs in both.items()},
        "happened": {label: _happened(runs) for label, runs in both.items()},
        "timed_again": {label: sum(run.repeated for run in runs) for label, runs in both.items()},
    }


def _per_sample(a: Sequence[Run], b: Sequence[Run]) -> bool:
    return all(run.samples_per_second for run in (*a, *b))


def _pairs(a: Sequence[Run], b: Sequence[Run]) -> list[float]:
    """How many times as fast B is, of each round."""
    per_sample = _per_sample(a, b)
    speeds = [
        [(run.samples_per_second if per_sample else None) or run.steps_per_second for run in side] for side in (a, b)
    ]
    return [new / old for old, new in zip(*speeds, strict=True)]


def _ratio(a: Sequence[Run], b: Sequence[Run]) -> Ratio:
    """Of the pairs of rounds; of one round that of the two speeds, with as wide an interval as that of the windows'."""
    pairs, per_sample = _pairs(a, b), _per_sample(a, b)
    if len(a) > 1:
        return of_pairs(pairs)

    def windows(run: Run) -> list[float]:
        counts = run.samples if per_sample and run.samples else run.steps
        return [count / seconds for count, seconds in zip(counts, run.seconds, strict=True)]

    of_median = of_windows(windows(b[0]), windows(a[0]))
    scale = pairs[0] / of_median.ratio
    high = UNLIMITED if of_median.high == UNLIMITED else of_median.high * scale
    return Ratio(pairs[0], of_median.low * scale, high, 1)


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
    """Why a command was not timed, and the numbers that would work, as far as the steps that it made are known."""
    if outcome.in_state("done"):
        return "it failed before all its steps were timed"
    counts = [
        (report["steps"], report["left"]) for report in outcome.in_state("measuring", "stepping") if "left" in report
    ]
    if outcome.in_state("failed") or outcome.stopped or not counts:
        return why_nothing(outcome, warmup)
    total, left = max(counts)
    fits = f"--steps {left}" if left > 1 else f"--warmup {warmup_for(total)} --steps {max(2, total // 2)}"
    hint = f"give {fits}, or train longer" if warmup_for(total) else "train longer"
    return f"it ended after {total} training steps, of {warmup} + {steps} asked for: {hint}"


def _from_reports(reports: Sequence[dict[str, Any]], label: str) -> Run:
    """The run of one training, of one process or several ranks. Raises InputError where there are several trainings."""
    first = reports[0]
    if not is_one_training(reports):
        raise InputError(f"{label} holds {len(reports)} trainings, in processes without ranks: time one of them")
    samples = [report["samples"] for report in reports]
    of_all = [sum(counts) for counts in zip(*samples, strict=True)] if all(samples) else None
    return Run(
        first["steps"],
        first["seconds"],
        of_all,
        first["happenings"],
        len(reports),
        first.get("total"),
        first["repeated"],
    )


def _happened(runs: Sequence[Run]) -> dict[str, int]:
    names = dict.fromkeys(name for run in runs for name in run.happenings)
    return {name: sum(run.happenings.get(name, 0) for run in runs) for name in names}


def _print(runs: Runs, result: dict[str, Any]) -> None:
    """The two speeds, and their ratio with its interval."""
    rounds, asked = result["rounds"], result["rounds_asked"]
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
        if again := result["timed_again"][label]:
            text += f"; {counted(again, 'window')} with an evaluation or a checkpoint timed again"
        print(f"{text}\n   {printable(result['commands'][label])}")
    shown = Ratio(**{name: result["ratio"][name] for name in ("ratio", "low", "high", "rounds")})
    unit = "samples/s" if result["per"] == "sample" else "steps/s"
    of = f"{rounds} rounds" if rounds > 1 else "one round: how runs vary is not in the interval"
    print(f"B is {shown} as fast as A, in {unit} (95 % interval; {of})")
    if not shown.resolved:
        needed = f"about {result['rounds_needed']}" if result["rounds_needed"] else f"more than {MOST_ROUNDS}"
        more = f"such a ratio takes {needed} rounds" if rounds > 2 else "more --rounds or --steps make it narrower"
        print(f"no measurable difference: the interval includes 1.00; {more}")
    if result["ended"] in ("resolved", "unresolvable"):
        text = "the difference is clear" if shown.resolved else "the others would most likely show none either"
        print(f"ended after {rounds} of {asked} rounds: {text}")
    if result["per"] == "step":
        print("the size of a batch is not known (no DataLoader): if the commands' batches differ, so do their steps")


def duration(seconds: float) -> str:
    """For people: "45 s", "21 min"."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
