"""The steps that take far longer than the others, and the typical ones that remain, from which advice is computed.

One step with a gap of its own (a checkpoint, a garbage collection, another program) shifts the mean of three or six.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from common.trace.idle import CAUSES, Idle
from common.trace.ordered import median
from common.trace.steps import ROLES, Steps

FEWEST = 3  # steps: of two, neither is the odd one
FAR = 3.5  # standard deviations, by the median absolute deviation
LEAST = 0.1  # of the median: less does not matter
_SIGMA = 1.4826  # of a normal distribution, in median absolute deviations


class Outlier(Struct, frozen=True):
    """A step that takes far longer than the median. us: its time. excess_us: what it takes more than the median step.

    role: that whose time exceeds its median most, and by how much. gap_us, cause: the longest stretch inside the step
    in which a GPU ran no kernel, and mostly why; 0.0 and "" without a GPU.
    """

    name: str
    us: float
    excess_us: float
    role: str
    role_us: float
    gap_us: float
    cause: str


def is_outlier(steps: Steps) -> np.ndarray:
    """A mask over the steps: those far longer than the median, always less than half of them, and none of two.

    Far: `FAR` standard deviations, estimated from the median absolute deviation, and `LEAST` of the median. That median
    deviation is exceeded by at most half of the steps, and five times of it by fewer. A step that is long because it
    waits for the DataLoader is none: with worker processes one step in so many waits for all, and is what a faster
    loader improves.
    """
    duration = steps.duration
    if len(duration) < FEWEST:
        return np.zeros(len(duration), bool)
    middle = float(median(duration))
    spread = _SIGMA * float(median(np.abs(duration - middle)))
    far = duration - middle > max(FAR * spread, LEAST * middle)
    return far & (_excess(steps).argmax(axis=0) != ROLES.index("dataloader"))


def typical(steps: Steps) -> Steps:
    """The steps without the outliers."""
    outlying = is_outlier(steps)
    return steps.where(~outlying) if outlying.any() else steps


def outliers(steps: Steps, idle: Sequence[Idle]) -> list[Outlier]:
    """The `Outlier`s, in the order of the trace. idle: of each GPU, over all steps."""
    excess, median_us = _excess(steps), steps.median_us
    found = []
    for index in np.flatnonzero(is_outlier(steps)).tolist():
        role = int(excess[:, index].argmax())
        gap_us, cause = _longest_gap(idle, float(steps.start[index]), float(steps.end[index]))
        us = float(steps.duration[index])
        found.append(
            Outlier(steps.names[index], us, us - median_us, ROLES[role], float(excess[role, index]), gap_us, cause)
        )
    return found


def _excess(steps: Steps) -> np.ndarray:
    """µs by which each role of each step exceeds that role's median; float64 [roles, steps]."""
    return steps.breakdown - median(steps.breakdown)[:, None]


def _longest_gap(idle: Sequence[Idle], start: float, end: float) -> tuple[float, str]:
    """The longest time inside [start, end) in which one of the GPUs ran no kernel, µs, and its main cause."""
    longest, cause = 0.0, ""
    for gpu in idle:
        length = np.minimum(gpu.end, end) - np.maximum(gpu.start, start)
        gap = int(length.argmax()) if len(length) else -1
        if gap >= 0 and length[gap] > longest:
            longest, cause = float(length[gap]), CAUSES[int(gpu.by_gap[:, gap].argmax())]
    return longest, cause
