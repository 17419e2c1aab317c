"""How long a ladder takes, by what its runs took here, and what of it fits into `--minutes`."""

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from walkthrough.results import result
from walkthrough.results.errors import InputError

FILE = ".seconds.json"  # {step: seconds of its last run}, next to a record and no part of it
MOST_MINUTES = 10_080  # a week


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--minutes`: `args.minutes`, None where it is not given."""
    parser.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help="begin nothing that would end later than M minutes from now: no step of the first round, no further round "
        "as a whole (of one that takes longer than M minutes: no step); the same command goes on",
    )


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0, at most {MOST_MINUTES}")
    return value


@dataclass
class Pace:
    """How long each step's run takes, in seconds of wall time, with all that is done to keep it.

    minutes: the limit, from when this object is made; None for none. path: a file that keeps the times for the next
    call. say: gets a line each time that something is known of how long the rest takes.
    """

    minutes: float | None = None
    say: Callable[[str], None] = lambda _: None
    path: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin = monotonic()

    def elapsed(self) -> float:
        """Seconds since this object was made."""
        return monotonic() - self.begin

    def go_on_from(self, path: Path) -> None:
        """Keep the times in `path`, and begin with those that an earlier call left there, if they can be read."""
        self.path = path
        try:
            self.seconds = {step: float(seconds) for step, seconds in result.read_json(path).items()}
        except (InputError, TypeError, ValueError):  # none yet; or not ours, and then the runs tell anew
            self.seconds = {}

    def add(self, step: str, seconds: float) -> None:
        """Note what a run of a step took, if it succeeded."""
        self.seconds[step] = seconds
        if self.path:
            result.write_json(self.path, self.seconds)

    def expected(self, steps: Iterable[str]) -> float:
        """Seconds that a run of each of these steps will take; 0.0 where nothing is known.

        A step without a run that succeeded counts as the one that took longest.
        """
        longest = max(self.seconds.values(), default=0.0)
        return sum(self.seconds.get(step, longest) for step in steps)

    def fits(self, steps: Iterable[str], now: bool = True) -> bool:
        """Whether a run of each of these steps will be over when the minutes are. Not now: in another call."""
        elapsed = self.elapsed() if now else 0.0
        return self.minutes is None or elapsed + self.expected(steps) <= 60 * self.minutes


def duration(seconds: float) -> str:
    """For people: "45 s", "21 min"."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
