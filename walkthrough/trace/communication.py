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
    spans, is_exchanging = collectives(trace), is_exchange if len(trace.kernels) else _EXCHANGE_ON_CPU.match
    if not len(spans):
        return None
    if len(trace.kernels):
        own, computing = of_steps(trace, steps, spans), _computing(trace)
        exposed = (spans.cover() | computing).within(steps.start, steps.end) - computing.within(steps.start, steps.end)
    else:
        own = Cover(steps.cpu_start, steps.cpu_end).holds(spans.start)
        exposed = alone(trace).within(steps.start, steps.end)
    total = spans.cover().within(steps.start, steps.end)
    return Communication(
        count=int(own.sum()),
        us=float(total.sum()),
        hidden_us=float((total - exposed).sum()),
        exchanges=bool(trace.spans(is_exchanging, spans).duration.sum() > spans.duration.sum() / 2),
        longest_us=float(spans.duration[own].max(initial=0.0)),
    )


def collectives(trace: Trace) -> Spans:
    """The kernels of collectives; in a trace without kernels gloo's marks."""
    return trace.spans(is_collective, trace.kernels) if len(trace.kernels) else gloo_marks(trace)


def alone(trace: Trace) -> Cover:
    """When a collective runs and no other kernel; in a trace without kernels, no operator of this process."""
    running = collectives(trace).cover()
    return _computing(trace).gaps(running.start, running.end)


def gloo_marks(trace: Trace) -> Spans:
    """The marks of gloo's collectives, on the CPU."""
    return trace.spans(lambda name: name.startswith("gloo:"), trace.operators, trace.annotations)


def _computing(trace: Trace) -> Cover:
    """When kernels run that are no collectives; in a trace without kernels, operators that compute."""
    if len(trace.kernels):
        return trace.spans(lambda name: not is_collective(name), trace.kernels).cover()
    return trace.spans(lambda name: not is_mark(name) and not _AROUND.match(name)).cover()


COMPUTE, OVERLAPPED, EXPOSED = "compute", "overlapped", "exposed"


def parts_us(trace: Trace, steps: Steps) -> dict[str, float]:
    """µs of the mean step by part; they sum to it. {} where no collective ran.

    The profiler plugin counts NCCL's kernels as kernels (see `steps.roles`); here a step is divided as it would be
    without that. As there, a moment counts for the first part that covers it.

    compute: a kernel runs, and no collective's; of a CPU, "cpu_exec" is that. overlapped: a collective's kernel (on a
    CPU, gloo's mark) and other work. exposed: a collective alone. Others: as in `ROLES`.
    """
    running, computing = collectives(trace).cover(), _computing(trace)
    if not len(running.start):
        return {}
    overlapped, exposed = running & computing, running
    if not len(trace.kernels):  # what computes then is of the role "cpu_exec"
        exposed, computing = alone(trace), Cover()
        overlapped = exposed.gaps(running.start, running.end)
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
    spans = collectives(trace)
    index = _index(spans.start, steps.cpu_start, steps.cpu_end)
    if len(trace.kernels):
        called = _index(np.append(trace.runtime.start, np.nan)[spans.call], steps.cpu_start, steps.cpu_end)
        index = np.where(spans.call >= 0, called, _index(spans.start, steps.start, steps.end))
    streams = {thread: number for number, thread in enumerate(sorted(set(spans.thread.tolist())))}
    rows = zip(index.tolist(), spans.name.tolist(), spans.thread.tolist(), spans.duration.tolist(), strict=True)
    for step, name, thread, us in rows:
        if step >= 0:
            stream = streams[thread] if len(trace.kernels) else 0  # gloo's threads share the work
            key = f"{trace.names[name][:200]} {stream}"
            result[steps.names[step]].setdefault(key, []).append(round(us, 3))
    whole, seen = {}, 0
    for name, of_step in list(result.items())[:MOST_COLLECTIVES]:
        seen += sum(map(len, of_step.values()))
        if seen > MOST_COLLECTIVES:
            break
        whole[name] = of_step
    return whole


def _index(time: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    at = np.searchsorted(start, time, "right") - 1
    return np.where((at >= 0) & (time < end[at]), at, -1)
