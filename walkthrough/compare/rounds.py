"""A ladder in rounds, A B C … A B C …: which step runs next, what is kept of it, when the intervals are narrow enough.

    NN_name/runs/1.json …                   `result.json` of each round's run
    NN_name/result.json                     all of them as one (see `merging.merged`)
    NN_name/*.pt.trace.json.gz, events.…    of one round (see `merging.traced`): TensorBoard shows one run per step

`tour --rounds` and `record` share this. A machine that drifts (heat, other load) affects every step of a round alike.
A step whose change has no effect on this device runs once, for its trace: it is the program of the step before.
"""

import argparse
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from walkthrough.compare import statistics
from walkthrough.compare.merging import merged, traced
from walkthrough.compare.pace import Pace, duration
from walkthrough.compare.runner import Outcome
from walkthrough.results.errors import InputError, whole_number
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import NOT_RUN_FILE, Result, read_runs, write_result, writing

RECORDED = 5  # rounds of a record, where nothing else is said
LIMIT = 20  # rounds at most, where `--until` is given and no number of rounds
FEWEST = 3  # rounds before `--until` ends them: the interval of two has one degree of freedom


def add_options(parser: argparse.ArgumentParser, flag: str, default: int) -> None:
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
        """Whether it is this run, not added yet, whose trace is kept of its step; see `merging.traced`."""
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
