"""What a rule finds of a cost in a trace: the evidence that advice and what stands out are both made of.

Rules take the `Analysis` of the typical steps (`Analysis.typical`); `analysis.whole` is that of all steps.
"""

from typing import Any

from msgspec import Struct

from walkthrough.terminal import rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover

WORTHWHILE = 0.02  # of the step: less is not worth a change


class Evidence(Struct, frozen=True):
    """What a trace shows of a cost.

    why: one line. share: of the steps' time, 0..1, that the cost takes; 0 where the trace shows none of it. gain: at
    most so many times faster without it, Amdahl's bound; None where there is no bound. do: what to do about it. title:
    what to do in a few words, where that is not the title of the cost.

    what: what stands out because of it; "" where nothing does. detail: more of the evidence than one line; `why` where
    that is all. us_per_step: the time of what stands out, where that is a part of the cost. when: the times that it is
    about (µs since `Trace.origin`), which the tab's timeline marks; none for the trace as a whole.
    """

    why: str
    share: float = 0.0
    gain: float | None = None
    do: str = ""
    title: str = ""
    what: str = ""
    detail: str = ""
    us_per_step: float | None = None
    when: Cover = Cover()


def bounded(why: str, share: float, stays: float = 0.0, **more: Any) -> Evidence:
    """Evidence of a cost with Amdahl's bound. stays: the part of the cost that is left at best. more: other fields."""
    share = min(max(share, 0.0), 1.0)
    rest = 1 - share * (1 - stays)
    return Evidence(why, share, 1 / rest if rest > 1e-9 else None, **more)


def per_step(a: Analysis) -> str:
    """What follows a count or a time of one step; the whole trace counts as one where nothing marks steps."""
    return "per step" if a.steps.marked else "in this trace"


def of_step(a: Analysis) -> str:
    """What follows a part of the time of one step; see `per_step`."""
    return "of a step" if a.steps.marked else "of this trace"


def step_time(a: Analysis, share: float) -> str:
    """That share of the mean step as text, such as "1.23 s", "4.5 ms", "678 us"."""
    return rounded_time(share * a.steps.mean_us)


def worthwhile(a: Analysis, us_per_step: float) -> bool:
    """Whether so many µs per step deserve a line."""
    return a.share_of_steps(us_per_step) >= WORTHWHILE
