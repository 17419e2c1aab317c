"""What operators cost by name, on the CPU and on the GPU: of every trace, for the board's page."""

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.operators import launches, launching_operators
from walkthrough.trace.steps import Steps, of_steps
from walkthrough.trace.tables import own_times

OUTSIDE = "outside of any operator"


class Operator(Struct, frozen=True):
    """Operators of one name, per step. count: how many; us: on the CPU without the operators inside them.

    device_us: of the kernels that they launched themselves, no operator inside them.
    """

    name: str
    count: float
    us: float
    device_us: float


def by_operator(trace: Trace, steps: Steps) -> list[Operator]:
    """The operators of the steps, the longest on the GPU first, then the longest on the CPU.

    To a step belong the operators that begin while the CPU runs it, and the kernels that it called. Kernels that no
    recorded operator launched have a row of their own, `OUTSIDE`.
    """
    operators, names = trace.operators, len(trace.names)
    name, own_us = own_times(trace, steps)
    count = np.bincount(name, minlength=names)
    us = np.bincount(name, weights=own_us, minlength=names)
    device_us, outside_us = np.zeros(names), 0.0
    if len(trace.kernels):
        mask = of_steps(trace, steps, trace.kernels) if steps.marked else np.ones(len(trace.kernels), bool)
        kernels = trace.kernels.where(mask)
        operator = launching_operators(trace, launches(trace, kernels))
        known = operator >= 0
        device_us = np.bincount(operators.name[operator[known]], weights=kernels.duration[known], minlength=names)
        outside_us = float(kernels.duration[~known].sum())
    number = len(steps.names)
    rows = [
        Operator(trace.names[at], float(count[at]) / number, float(us[at]) / number, float(device_us[at]) / number)
        for at in np.flatnonzero((count > 0) | (device_us > 0)).tolist()
    ]
    if outside_us > 0:
        rows.append(Operator(OUTSIDE, 0.0, 0.0, outside_us / number))
    return sorted(rows, key=lambda row: (-row.device_us, -row.us, row.name))
