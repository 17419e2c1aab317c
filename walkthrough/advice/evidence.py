"""What a rule finds in a trace: evidence of a cost, or something that an expert would point at.

Rules take the `Analysis` of the typical steps (`Analysis.typical`); `analysis.whole` is that of all steps.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from msgspec import Struct

from walkthrough.advice.replay import Change
from walkthrough.terminal import rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover

T = TypeVar("T")
WORTHWHILE = 0.02  # of the step: less is not worth a change


class Evidence(Struct, frozen=True):
    """What a trace shows of a cost. why: in words. share: of the steps' time, 0..1; 0 where the trace shows none of it.

    gain: at most so many times faster without the cost, Amdahl's bound; None where there is no bound.
    """

    why: str
    share: float = 0.0
    gain: float | None = None


class Finding(Struct, frozen=True):
    """Something in a trace that an expert would point at.

    id: of its rule. what: what it is. why: the evidence. us_per_step: the time it is about. do: what to do about it.
    change: what doing so would change, for `replay`; None where no trace shows that. advice: the id of the cost that is
    treated by doing the same, whose gain is then the finding's too. estimated_gain: how many times faster the steps
    would be, by a replay with either; None where it cannot tell. when: the times it is about (µs since `Trace.origin`),
    which the tab's timeline marks; none for the trace as a whole.
    """

    id: str
    what: str
    why: str
    us_per_step: float
    do: str
    change: Change | None = None
    advice: str | None = None
    estimated_gain: float | None = None
    when: Cover = Cover()


def bounded(why: str, share: float, stays: float = 0.0) -> Evidence:
    """Evidence of a cost with Amdahl's bound. stays: the part of the cost that is left at best."""
    share = min(max(share, 0.0), 1.0)
    rest = 1 - share * (1 - stays)
    return Evidence(why, share, 1 / rest if rest > 1e-9 else None)


def no_effect(why: str) -> Evidence:
    """Evidence that treating the cost would change nothing."""
    return Evidence(why, 0.0, 1.0)


def once(compute: Callable[[Analysis], T]) -> Callable[[Analysis], T]:
    """A decorator: the result is kept with the analysis, for the other rules and estimates that ask for it."""

    @wraps(compute)
    def computed(a: Analysis) -> T:
        key = f"{compute.__module__}.{compute.__qualname__}"
        if key not in vars(a):
            vars(a)[key] = compute(a)
        return vars(a)[key]

    return computed


def step_time(a: Analysis, share: float) -> str:
    """That share of the mean step as text, such as "1.23 s", "4.5 ms", "678 us"."""
    return rounded_time(share * a.steps.mean_us)


def worthwhile(a: Analysis, us_per_step: float) -> bool:
    """Whether so many µs per step deserve a line."""
    return a.share_of_steps(us_per_step) >= WORTHWHILE
