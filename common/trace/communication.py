"""Collectives between GPUs, and how much of their time other kernels hide.

The plugin has no such number: it counts today's NCCL kernels as ordinary kernels (see `steps.roles`).
"""

import re

from msgspec import Struct

from common.trace.columns import Trace
from common.trace.intervals import Cover
from common.trace.kinds import COLLECTIVE, kind
from common.trace.steps import Steps, of_steps

_EXCHANGE = re.compile("send_?recv|all_?to_?all")


class Communication(Struct, frozen=True):
    """The kernels of collectives, NCCL's and others.

    count: in the steps. µs over all steps; hidden_us: while other kernels ran too. exchanges: whether most of their
    time is of all-to-all and the like, which no bucket joins; NCCL calls those SendRecv.
    """

    count: int
    us: float
    hidden_us: float
    exchanges: bool = False

    @property
    def exposed_us(self) -> float:
        """µs in which only communication ran."""
        return self.us - self.hidden_us


def is_collective(name: str) -> bool:
    """True for the name of a collective's kernel."""
    return kind(name) == COLLECTIVE


def is_exchange(name: str) -> bool:
    """True for a collective that exchanges what ranks computed of their batches: all-to-all, send and receive."""
    return is_collective(name) and _EXCHANGE.search(name.lower()) is not None


def communication(trace: Trace, steps: Steps) -> Communication | None:
    """The `Communication` of a trace, or None where no collective ran."""
    collective = trace.named(trace.kernels, is_collective)
    if not collective.any():
        return None
    communicating, computing = (
        Cover(trace.kernels.start[mask], trace.kernels.end[mask]) for mask in (collective, ~collective)
    )
    either = (communicating | computing).within(steps.start, steps.end)
    total = communicating.within(steps.start, steps.end)
    hidden = total - (either - computing.within(steps.start, steps.end))
    count = int((collective & of_steps(trace, steps, trace.kernels)).sum())
    exchanging = trace.named(trace.kernels, is_exchange)
    time = trace.kernels.duration
    exchanges = time[exchanging].sum() > time[collective].sum() / 2
    return Communication(count, float(total.sum()), float(hidden.sum()), bool(exchanges))
