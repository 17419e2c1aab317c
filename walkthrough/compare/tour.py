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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.compare import forked, runner, statistics
from walkthrough.compare.pace import Pace, duration
from walkthrough.compare.rounds import merged, traced
from walkthrough.compare.runner import Outcome
from walkthrough.results.errors import InputError, whole_number
from walkthrough.results.folder import drop_runs, locked, own_folder, publish
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import NOT_RUN_FILE, NotRun, Result, read_result, read_runs, write_result, writing

if TYPE_CHECKING:
    from rich.console import Console

RECORDED = 5  # rounds of a record, where nothing else is said
LIMIT = 20  # rounds at most, where `--until` is given and no number of rounds
FEWEST = 3  # rounds before `--until` ends them: the interval of two has one degree of freedom


def add_round_options(parser: argparse.ArgumentParser, flag: str, default: int) -> None:
    """Add `--until`, and the number of rounds as `flag`, "--rounds": `args.rounds`, None where it is not given."""
    parser.add_argument(
        flag,
        dest="rounds",
        type=whole_number(1, 100),
        metavar="N",
        help=f"rounds of the ladder, interleaved (default: {default}; with --until at most {LIMIT})",
    )
    parser.add_argument(
        "--until",
        type=_percent,
        metavar="PERCENT",
        help="go on with rounds until every interval, of a step against the step before and against the baseline, "
        f"reaches at most that far to either side; {FEWEST} rounds at least",
    )


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage above 0, at most 100")
    return value


@dataclass
class Schedule:
    """Which step is to run in which round, and what the runs so far gave. Iterate: (round, script) of each next run.

    scripts: the steps. limit: rounds at most. until: the goal of `--until` in percent, None to make all rounds.
    runs: {step: {round: its result}}; what is there is not run again. not_run: {step: why it cannot be run here}.
    pace: times each run that succeeds, from one `next` to the following one; with a limit, `--minutes` may end the
    rounds as well. without_effect: steps that will run once, as far as it is known before their first run; only the
    time to go depends on it.
    """

    scripts: Sequence[Path]
    limit: int
    until: float | None = None
    pace: Pace = field(default_factory=Pace)
    runs: dict[str, dict[int, Result]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    without_effect: Collection[str] = ()

    @classmethod
    def of(
        cls, args: argparse.Namespace, scripts: Sequence[Path], default: int, pace: Pace | None = None
    ) -> "Schedule":
        """The schedule that the options of `add_options` ask for.

        Raises InputError for `--until` with fewer rounds than it needs.
        """
        if args.until is not None and args.rounds is not None and args.rounds < FEWEST:
            raise InputError(f"--until needs {FEWEST} rounds at least, not {args.rounds}: more, or none")
        return cls(scripts, args.rounds or (default if args.until is None else LIMIT), args.until, pace or Pace())

    def __iter__(self) -> Iterator[tuple[int, Path]]:
        announced = False
        for number in range(1, self.limit + 1):
            missing = self.missing(number)
            # A later round begins as a whole, unless it is too long for that in any call.
            whole = number > 1 and self.pace.fits([script.stem for script in missing], now=False)
            for script in missing:
                begun = [script] if not whole else missing if script is missing[0] else []
                if begun and not self._in_time(number, begun, whole):
                    return
                if self.pace.seconds and not announced:
                    self._announce()
                    announced = True
                begin = self.pace.elapsed()
                yield number, script
                if number in self.runs.get(script.stem, {}):  # one that failed at once does not tell
                    self.pace.add(script.stem, self.pace.elapsed() - begin)
            if self.until is not None and self._narrow_enough(number, self.until):
                return
            to_go = self.to_go()
            if missing and to_go:
                self.pace.say(
                    f"round {number} is over; {self._at_most}about {duration(self.pace.expected(to_go))} to go"
                )

    def missing(self, number: int) -> list[Path]:
        """The scripts whose run of a round is not there, without those that cannot be run here or ran once, enough."""
        scripts = ((script, self.runs.get(script.stem, {})) for script in self.scripts)
        left = (script for script, runs in scripts if number not in runs and not ran_enough(runs))
        return [script for script in left if script.stem not in self.not_run]

    def to_go(self) -> list[str]:
        """The step of every run that is to be made."""
        left = [script.stem for number in range(1, self.limit + 1) for script in self.missing(number)]
        single = [step for step in dict.fromkeys(left) if step in self.without_effect]
        return [step for step in left if step not in single] + single

    @property
    def whole_rounds(self) -> int:
        """How many runs there are of every step that can be run here; of one that runs once only if there are none."""
        steps = [self.runs.get(script.stem, {}) for script in self.scripts if script.stem not in self.not_run]
        return min((len(runs) for runs in steps if not ran_enough(runs)), default=min(map(len, steps), default=0))

    @property
    def _at_most(self) -> str:
        return "" if self.until is None else "at most "

    def _announce(self) -> None:
        """Say how long the rounds will take."""
        to_go = self.to_go()
        steps, seconds = len(self.scripts) - len(self.not_run), self.pace.expected(to_go)
        limit = "" if self.pace.minutes is None else f", at most {self.pace.minutes:g} min of it now"
        self.pace.say(
            f"{steps} steps x {self._at_most}{self.limit} rounds, {len(to_go)} runs to go: {self._at_most}about "
            f"{duration(seconds)}{limit}; finished runs are kept if it is interrupted"
        )

    def _in_time(self, number: int, scripts: Sequence[Path], whole: bool) -> bool:
        """Whether runs of these scripts will be over within `--minutes`. Says so where not, and what would be next.

        whole: whether they are all that is missing of the round.
        """
        steps = [script.stem for script in scripts]
        if self.pace.fits(steps):
            return True
        seconds = self.pace.expected(steps)
        what = f"round {number}" if whole else f"{steps[0]} of round {number}" if number > 1 else steps[0]
        how = "the same command goes on" if self.pace.fits(steps, now=False) else "that needs more --minutes"
        self.pace.say(
            f"--minutes {self.pace.minutes:g}: {self.whole_rounds} of {self._at_most}{self.limit} rounds made; next is "
            f"{what}{f', about {duration(seconds)}' if seconds else ''}: {how}"
        )
        return False

    def label(self, number: int, step: str) -> str:
        """How a line about a run begins."""
        return f"round {number}/{self.limit}  {step:<26}"

    def add(self, number: int, result: Result) -> None:
        """Note a run that succeeded."""
        self.runs.setdefault(result.step, {})[number] = result

    def is_traced(self, number: int, result: Result) -> bool:
        """Whether it is this run, not added yet, whose trace is kept of its step; see `rounds.traced`."""
        runs = self.runs.get(result.step, {}) | {number: result}
        return traced([runs[round_] for round_ in sorted(runs)]) is result

    def add_failure(self, step: str, outcome: Outcome) -> str:
        """Note a run that failed: "failed", or "not run" for a step that cannot be run here and is not tried again."""
        if outcome.code != 2 or self.runs.get(step):
            return "failed"
        self.not_run[step] = outcome.reason
        return "not run"

    def _narrow_enough(self, number: int, goal: float) -> bool:
        """Whether the rounds may end after this one. Prints how wide the intervals are still."""
        if number < max([2, *(round_ for runs in self.runs.values() for round_ in runs)]):
            return False  # one round has no pairs; later ones are there from an earlier call
        speeds = {
            script.stem: {round_: run.samples_per_second.windows for round_, run in runs.items()}
            for script in self.scripts
            if (runs := self.runs.get(script.stem)) and acts(runs.values())
        }
        reach, step = widest(speeds)
        if step:
            width = f"±{100 * reach:.1f} %" if reach < 1 else "over ±100 %"
            print(f"round {number}: widest {width} ({step}); goal ±{goal:g} %", flush=True)
        return number >= FEWEST and 100 * reach <= goal


def acts(results: Iterable[Result]) -> bool:
    """Whether a step's change has an effect on this device, by its runs."""
    return all(result.acts for result in results)


def ran_enough(runs: Mapping[int, Result]) -> bool:
    """Whether these runs of a step are all that it needs: its change has no effect here, and a trace is there."""
    return not acts(runs.values()) and not all(result.lacks_kernels for result in runs.values())


def widest(speeds: Mapping[str, statistics.Rounds]) -> tuple[float, str]:
    """How far the widest interval reaches to either side, as a share of its ratio, and of which step it is.

    Over each step against the step before it and against the first. (0.0, "") for a single step.
    """
    names = list(speeds)
    reaches = [(0.0, "")]
    for before, step in pairwise(names):
        for other in {before, names[0]}:
            ratio = statistics.ratio(speeds[step], speeds[other])
            reaches.append((max(ratio.high / ratio.ratio - 1, 1 - ratio.low / ratio.ratio), step))
    return max(reaches)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tour`: those of a step, and how many rounds."""
    from common.options import add_step_options

    add_step_options(parser)
    add_round_options(parser, "--rounds", default=1)


def run(args: argparse.Namespace) -> int:
    """Run every step with the options in `args`, print the comparison, return the exit code.

    A step that fails is named and the others still run: then 1, or 2 if each that failed did so by its input; the table
    has those as not run, with the reason. Raises InputError, at once, where the input suits no step at all.
    """
    schedule = Schedule.of(args, runner.step_files(), default=1)
    runner.prepare(args)
    busy = f"another tour is writing to {args.logdir}: wait for it, or use another --logdir"
    with locked(args.logdir / ".tour.lock", busy), ExitStack() as held:
        staging = {}
        if schedule.limit > 1:
            for script in schedule.scripts:
                _, staging[script.stem] = held.enter_context(own_folder(args.logdir, script.stem))
        return _run_all(args, schedule, staging)


def _run_all(args: argparse.Namespace, schedule: Schedule, staging: Mapping[str, Path]) -> int:
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
    keep(folder, number, result)
    shutil.rmtree(source)  # TensorBoard would show it


def _print_comparison(logdir: Path, results: list[Result], missing: list[NotRun], out: "Console") -> None:
    from walkthrough.compare.ladder import print_ladders
    from walkthrough.compare.rounds import gpu_use, ladders, readable_rounds

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
