"""`tour`: every step in order, each in a process of its own, once or in several rounds; then the comparison.

    NN_name/runs/1.json …                   `result.json` of each round's run
    NN_name/result.json                     all of them as one (see `rounds.merged`)
    NN_name/*.pt.trace.json.gz, events.…    of one round (see `rounds.traced`): TensorBoard shows one run per step

Rounds are interleaved, A B C … A B C …, which `record` does as well: a machine that drifts (heat, other load) affects
every step of a round alike. A step whose change has no effect on this device runs once, for its trace: it is the
program of the step before.
"""

import argparse
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from walkthrough.compare import isolated
from walkthrough.compare.isolated import Outcome
from walkthrough.compare.rounds import comparisons, gpu_use, merged, traced
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, folder, whole_number
from walkthrough.results.folder import drop_runs, locked, own_folder, publish
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import (
    NOT_RUN_FILE,
    NotRun,
    Result,
    check_writable,
    read_result,
    read_runs,
    write_result,
    writing,
)

if TYPE_CHECKING:
    from rich.console import Console

MOST_MINUTES = 10_080  # a week


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tour`."""
    add_ladder_options(parser, "--rounds", 1, ROOT / "logs")


def add_ladder_options(parser: argparse.ArgumentParser, flag: str, rounds: int, logdir: Path) -> None:
    """Add what a command that runs the ladder needs itself; every other word goes on to the steps: `args.passed_on`.

    flag: of the number of rounds, `args.rounds`. rounds, logdir: defaults.
    """
    parser.set_defaults(passed_on=[])
    parser.epilog = "Every other option is passed on to the steps: see `python steps/00_baseline.py --help`."
    parser.add_argument("--logdir", type=folder, default=logdir, metavar="DIR", help=f"of all runs (default: {logdir})")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    help_text = f"rounds of the ladder, interleaved (default: {rounds})"
    parser.add_argument(flag, dest="rounds", type=whole_number(1, 100), default=rounds, metavar="N", help=help_text)
    help_text = "begin nothing that would end later than M minutes from now, by the longest run so far"
    parser.add_argument("--minutes", type=_minutes, metavar="M", help=help_text)
    parser.add_argument("--quick", action="store_true", help="smoke runs: few steps, still five windows and a trace")


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0, at most {MOST_MINUTES}")
    return value


def step_files(folder: str | Path | None = None) -> list[Path]:
    """The steps: the scripts `NN_name.py` of a folder (default: `steps/`), sorted. InputError where there are none."""
    folder = Path(folder or ROOT / "steps")
    files = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not files:
        raise InputError(
            f"no steps in {folder}: run from a clone of the project, with `common` installed by pip install -e ."
        )
    return files


@dataclass
class Schedule:
    """Which step is to run in which round, and what the runs so far gave. Iterate: (round, script) of each next run.

    scripts: the steps. rounds: how many. minutes: begin nothing that would end later than that after the first run
    begins, by the longest run so far; None for no limit. runs: {step: {round: its result}}; what is there is not run
    again. not_run: {step: why it cannot be run here}.
    """

    scripts: Sequence[Path]
    rounds: int
    minutes: float | None = None
    runs: dict[str, dict[int, Result]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[int, Path]]:
        end, longest = monotonic() + 60 * (self.minutes or math.inf), 0.0
        for number in range(1, self.rounds + 1):
            for script in self.missing(number):
                begin = monotonic()
                if begin + longest > end:
                    print(f"--minutes {self.minutes:g}: next is {self.label(number, script.stem)}", flush=True)
                    return
                yield number, script
                longest = max(longest, monotonic() - begin)

    def missing(self, number: int) -> list[Path]:
        """The scripts whose run of a round is not there, without those that cannot be run here or ran once, enough."""
        scripts = ((script, self.runs.get(script.stem, {})) for script in self.scripts)
        left = (script for script, runs in scripts if number not in runs and not ran_enough(runs))
        return [script for script in left if script.stem not in self.not_run]

    @property
    def whole_rounds(self) -> int:
        """How many runs there are of every step that can be run here; of one that runs once only if there are none."""
        steps = [self.runs.get(script.stem, {}) for script in self.scripts if script.stem not in self.not_run]
        return min((len(runs) for runs in steps if not ran_enough(runs)), default=min(map(len, steps), default=0))

    def label(self, number: int, step: str) -> str:
        """How a line about a run begins."""
        return f"round {number}/{self.rounds}  {step:<26}"

    def add(self, number: int, result: Result) -> None:
        """Note a run that succeeded."""
        self.runs.setdefault(result.step, {})[number] = result

    def is_traced(self, number: int, result: Result) -> bool:
        """Whether it is this run, not added yet, whose trace is kept of its step; see `rounds.traced`."""
        runs = self.runs.get(result.step, {}) | {number: result}
        return traced([runs[round_] for round_ in sorted(runs)]) is result

    def add_failure(self, step: str, outcome: Outcome) -> str:
        """Note a run that failed: "failed", or "not run" for a step that cannot be run here and is not tried again.

        Raises InputError, the step's own line, where it is the input that no step can use, as none has run yet.
        """
        if outcome.code == 2 and not self.runs:
            raise InputError(outcome.reason)
        if outcome.code != 2 or self.runs.get(step):
            return "failed"
        self.not_run[step] = outcome.reason
        return "not run"


def acts(results: Iterable[Result]) -> bool:
    """Whether a step's change has an effect on this device, by its runs."""
    return all(result.acts for result in results)


def ran_enough(runs: Mapping[int, Result]) -> bool:
    """Whether these runs of a step are all that it needs: its change has no effect here, and a trace is there."""
    return not acts(runs.values()) and not all(result.lacks_kernels for result in runs.values())


def keep(folder: Path, number: int, result: Result) -> None:
    """Add a round's run to its step's folder, which holds a trace already, and sum the step up. Raises InputError."""
    trace = next(folder.glob("*.pt.trace.json.gz"), None)
    if trace is None:
        raise InputError(f"{folder} holds no trace: move it away and run this again")
    with writing(folder):
        (folder / "runs").mkdir(exist_ok=True)
    write_result(folder / "runs" / f"{number}.json", replace(result, trace=trace.name))
    sum_up(folder)


def sum_up(folder: Path) -> None:
    """Write a step's `result.json` anew from the runs of its rounds, if there are any."""
    if results := read_runs(folder):
        (folder / NOT_RUN_FILE).unlink(missing_ok=True)  # an earlier call could not run it
        write_result(folder / RESULT_FILE, merged(results))


def words_of(args: argparse.Namespace, logdir: Path) -> list[str]:
    """The options that each step gets, which writes below `logdir`."""
    device = ["--device", args.device] if args.device else []
    return ["--logdir", str(logdir), *device, *(["--quick"] if args.quick else []), *args.passed_on]


def once(on_line: Callable[[str], None]) -> Callable[[str], None]:
    """An `on_line` for several runs: each line only the first time, since every step prints the same banner.

    Without a step's losses, which are for whoever runs it alone.
    """
    seen = set()

    def show(line: str) -> None:
        if line not in seen and not line.startswith("loss: "):
            seen.add(line)
            on_line(line)

    return show


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of several steps together: 0, 2 if each that failed did so by its input, otherwise 1."""
    failed = [code for code in codes if code]
    return 0 if not failed else 2 if all(code == 2 for code in failed) else 1


def run(args: argparse.Namespace) -> int:
    """Run every step with the options in `args`, print the comparison, return the exit code.

    A step that fails is named and the others still run: then 1, or 2 if each that failed did so by its input; the table
    has those as not run, with the reason. Raises InputError where the input suits no step at all.
    """
    schedule = Schedule(step_files(), args.rounds, args.minutes)
    check_writable(args.logdir)
    busy = f"another tour is writing to {args.logdir}: wait for it, or use another --logdir"
    with locked(args.logdir / ".tour.lock", busy), ExitStack() as held:
        staging = {}
        if schedule.rounds > 1:
            for script in schedule.scripts:
                _, staging[script.stem] = held.enter_context(own_folder(args.logdir, script.stem))
        return _run_all(args, schedule, staging)


def _run_all(args: argparse.Namespace, schedule: Schedule, staging: Mapping[str, Path]) -> int:
    """staging: {step: where a run of several rounds is written before it is kept}; {} for one round."""
    from rich.text import Text

    from walkthrough.terminal import console

    out, failures = console(), []
    show = once(lambda line: out.print(Text(line, "dim")))
    for number, script in schedule:
        step, folder = script.stem, args.logdir / script.stem
        label = schedule.label(number, step) if staging else f"{step:<26}"
        logdir = staging.get(step, args.logdir)
        with _bar(out, label) as advance:
            outcome = isolated.run(script, words_of(args, logdir), advance, show)
        if outcome.code == 0:
            result = read_result(logdir / step / RESULT_FILE)
            if staging:
                is_first, is_traced = step not in schedule.runs, schedule.is_traced(number, result)
                _keep(logdir / step, folder, number, result, is_first, is_traced)
            schedule.add(number, result)
            speed = result.samples_per_second.median
            out.print(Text.assemble(("" if staging else "done   ", "green"), f"{label}{speed:10.1f} images/s"))
            continue
        what = schedule.add_failure(step, outcome)
        failures.append((step, what, outcome))
        if staging and step not in schedule.runs:
            drop_runs(folder)
        out.print(Text.assemble((f"{what} ", "red" if what == "failed" else "yellow"), f"{label}{outcome.reason}"))
    if schedule.runs:
        _print_comparison(args.logdir, schedule, out)
    for step, what, outcome in dict.fromkeys(failures):  # once, what failed in every round
        print(f"tour: {step} {what}: {outcome.reason}", file=sys.stderr)
    return exit_code(outcome.code for _, _, outcome in failures)


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
    keep(folder, number, result)
    shutil.rmtree(source)  # TensorBoard would show it


def _print_comparison(logdir: Path, schedule: Schedule, out: "Console") -> None:
    from walkthrough.compare.ladder import print_ladders

    compared, problems = comparisons(logdir, schedule.runs)
    for problem in problems:
        print(f"tour: skipped: {problem}", file=sys.stderr)
    used, problems = gpu_use(logdir, compared)
    for problem in problems:
        print(f"tour: no figures from a trace: {problem}", file=sys.stderr)
    missing = [NotRun(step, reason) for step, reason in schedule.not_run.items()]
    print_ladders([replace(compared[0], missing=missing), *compared[1:]], out, used)
    python = Path(sys.executable)
    board = python.with_name("tensorboard")
    board = board if board.exists() else "tensorboard"
    out.print(f"\nLook at the runs:  {board} --logdir {logdir}", markup=False, soft_wrap=True)
    again = "These rows again:  " if missing else "This table again:  "
    out.print(f"{again}{python} -m walkthrough compare {logdir}", markup=False, soft_wrap=True)


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
