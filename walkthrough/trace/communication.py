"""Collectives between the ranks of a training, how much of their time other work hides, and steps with them apart.

Between GPUs: kernels, which other kernels hide. The profiler plugin has no such number: it counts today's NCCL kernels
as ordinary kernels (see `steps.roles`). Between CPUs: gloo's marks, on threads of its own, which operators hide.
"""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import is_collective, is_exchange
from walkthrough.trace.steps import ROLES, Steps, is_mark, of_steps, roles

MOST_COLLECTIVES = 10_000  # of a trace, whose lengths are compared with those of other ranks: of its first steps
_EXCHANGE_ON_CPU = re.compile("gloo:(send|recv|all_to_all)")
# What runs around collectives and waits for them: it computes nothing itself, and hides nothing.
_AROUND = re.compile(
    r"gloo:|_?c10d|record_param_comms|autograd::engine::evaluate_function|torch::autograd::AccumulateGrad"
    r"|(Distributed|FullySharded)?DataParallel\.forward"
)


class Communication(Struct, frozen=True):
    """The kernels of collectives, NCCL's and others; in a trace without kernels gloo's marks on the CPU.

    count: in the steps. µs over all steps; hidden_us: while other kernels (on the CPU: operators) ran too. exchanges:
    whether most of their time is of all-to-all and the like, which no bucket joins; NCCL calls those SendRecv.
    longest_us: of one of them.
    """

    count: int
    us: float
    hidden_us: float
    exchanges: bool = False
    longest_us: float = 0.0

    @property
    def exposed_us(self) -> float:
        """µs in which only communication ran; waiting for other ranks is part of it."""
        return self.us - self.hidden_us


def communication(trace: Trace, steps: Steps) -> Communication | None:
    """The `Communication` of a trace, or None where no collective ran."""
    if not len(trace.kernels):
        return _on_cpu(trace, steps)
    collective = trace.named(trace.kernels, is_collective)
    if not collective.any():
        return None
    communicating, computing = trace.kernels.cover(collective), trace.kernels.cover(~collective)
    either = (communicating | computing).within(steps.start, steps.end)
    total = communicating.within(steps.start, steps.end)
    hidden = total - (either - computing.within(steps.start, steps.end))
    collective_of_steps = collective & of_steps(trace, steps, trace.kernels)
    exchanging = trace.named(trace.kernels, is_exchange)
    time = trace.kernels.duration
    exchanges = time[exchanging].sum() > time[collective].sum() / 2
    longest = float(time[collective_of_steps].max(initial=0.0))
    count = int(collective_of_steps.sum())
    return Communication(count, float(total.sum()), float(hidden.sum()), bool(exchanges), longest)


def marked_collectives(trace: Trace) -> Cover:
    """When a collective of gloo runs, by its marks."""
    return _gloo_marks(trace).cover()


def exposed_on_cpu(trace: Trace) -> Cover:
    """When a collective of gloo runs, and no operator of this process does."""
    operators, collectives = trace.operators, marked_collectives(trace)
    around = trace.named(operators, lambda name: is_mark(name) or _AROUND.match(name))
    return operators.cover(~around).gaps(collectives.start, collectives.end)


def _on_cpu(trace: Trace, steps: Steps) -> Communication | None:
    marks = _gloo_marks(trace)
    if not len(marks):
        return None
    own = Cover(steps.cpu_start, steps.cpu_end).holds(marks.start)
    total = float(marked_collectives(trace).within(steps.start, steps.end).sum())
    exposed = float(exposed_on_cpu(trace).within(steps.start, steps.end).sum())
    exchanging_us = marks.duration[trace.named(marks, _EXCHANGE_ON_CPU.match)].sum()
    exchanges, longest = bool(exchanging_us > marks.duration.sum() / 2), float(marks.duration[own].max(initial=0.0))
    return Communication(int(own.sum()), total, total - exposed, exchanges, longest)


def _gloo_marks(trace: Trace) -> Spans:
    return trace.spans(lambda name: name.startswith("gloo:"), trace.operators, trace.annotations)


COMPUTE, OVERLAPPED, EXPOSED = "compute", "overlapped", "exposed"


def parts_us(trace: Trace, steps: Steps) -> dict[str, float]:
    """µs of the mean step by part; they sum to it. {} where no collective ran.

    The profiler plugin counts NCCL's kernels as kernels (see `steps.roles`); here a step is divided as it would be
    without that. As there, a moment counts for the first part that covers it.

    compute: a kernel runs, and no collective's; of a CPU, "cpu_exec" is that. overlapped: a collective's kernel (on a
    CPU, gloo's mark) and other work. exposed: a collective alone. Others: as in `ROLES`.
    """
    if len(trace.kernels):
        collective = trace.named(trace.kernels, is_collective)
        if not collective.any():
            return {}
        communicating, computing = trace.kernels.cover(collective), trace.kernels.cover(~collective)
        overlapped, exposed = communicating & computing, communicating
    else:
        communicating, computing = marked_collectives(trace), Cover()
        if not len(communicating.start):
            return {}
        exposed = exposed_on_cpu(trace)
        overlapped = exposed.gaps(communicating.start, communicating.end)
    by_role = dict(zip(ROLES, roles(trace), strict=False))
    covers = {OVERLAPPED: overlapped, COMPUTE: computing, EXPOSED: exposed}
    covers |= {role: cover for role, cover in by_role.items() if role != "kernel"}
    covers["other"] = Cover(steps.start, steps.end)
    mean = shares(covers.values(), steps.start, steps.end).mean(axis=1).tolist()
    us = dict(zip(covers, mean, strict=True))
    return {name: us[name] for name in (COMPUTE, OVERLAPPED, EXPOSED, *ROLES[1:])}


def sequences(trace: Trace, steps: Steps) -> dict[str, dict[str, list[float]]]:
    """{step: {collective: µs of each, in order}}: a collective is named by its kernel and its stream.

    The streams are counted, not named: the ranks need not number them alike. On a CPU: gloo's marks. {} where the first
    step alone has more than `MOST_COLLECTIVES`.
    """
    result: dict[str, dict[str, list[float]]] = {name: {} for name in steps.names}
    spans, index = _collectives(trace, steps)
    streams = {thread: number for number, thread in enumerate(sorted(set(spans.thread.tolist())))}
    rows = zip(index.tolist(), spans.name.tolist(), spans.thread.tolist(), spans.duration.tolist(), strict=True)
    for step, name, thread, us in rows:
        if step >= 0:
            stream = streams[thread] if len(trace.kernels) else 0  # gloo's threads share the work
            key = f"{trace.names[name][:200]} {stream}"
            result[steps.names[step]].setdefault(key, []).append(round(us, 3))
    whole, seen = {}, 0
    for name, collectives in list(result.items())[:MOST_COLLECTIVES]:
        seen += sum(map(len, collectives.values()))
        if seen > MOST_COLLECTIVES:
            break
        whole[name] = collectives
    return whole


def _collectives(trace: Trace, steps: Steps) -> tuple[Spans, np.ndarray]:
    """The spans of collectives, those of one table sorted by start, and the index of the step of each, -1 for none."""
    kernels = trace.kernels
    if not len(kernels):
        marks = _gloo_marks(trace)
        return marks, _index(marks.start, steps.cpu_start, steps.cpu_end)
    collective = kernels.where(trace.named(kernels, is_collective))
    called = np.append(trace.runtime.start, np.nan)[collective.call]
    launched = _index(called, steps.cpu_start, steps.cpu_end)
    return collective, np.where(collective.call >= 0, launched, _index(collective.start, steps.start, steps.end))


def _index(time: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    at = np.searchsorted(start, time, "right") - 1
    return np.where((at >= 0) & (time < end[at]), at, -1)
