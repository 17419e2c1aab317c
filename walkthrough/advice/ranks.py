"""The ranks of one training side by side: which one the others wait for, and how long each waits."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from walkthrough.advice.summary import Summary
from walkthrough.trace.columns import Spans, Trace
from walkthrough.trace.communication import ways_to_communicate_less
from walkthrough.trace.kernel_names import is_collective, is_gloo
from walkthrough.trace.steps import Steps
from walkthrough.trace.units import fine_time_text

WAITING = 0.05  # of the step: ranks that wait for another so long are worth a line
ALIKE = 0.005  # of the step: step times that differ by less are the same
MOST_COLLECTIVES = 10_000  # of a trace, that are compared: those of its first steps

Sequences = Mapping[str, Mapping[str, Sequence[float]]]  # {step: {collective: µs of each, in order}}


class Rank(Struct, frozen=True):
    """One rank's numbers: µs per step of the typical steps. parts: by role, see `steps.ROLES`.

    communicates: False where no collective ran; collectives_us, exposed_us, hidden_us: see `Communication`. ways: what
    to do about collectives that nothing hides.
    """

    rank: int
    step_us: float
    parts: dict[str, float]
    has_gpu: bool
    communicates: bool = False
    collectives_us: float = 0.0
    exposed_us: float = 0.0
    hidden_us: float = 0.0
    ways: str = ""


class Waits(Struct, frozen=True):
    """us: {rank: µs per step that it waits in collectives for others}, {} where that is not known, and `why` not."""

    us: dict[int, float]
    why: str = ""


def of(summary: Summary, rank: int) -> Rank:
    """The `Rank` of a trace."""
    collectives, count = summary.analysis.typical.communication, len(summary.analysis.typical.steps.names)
    return Rank(
        rank=rank,
        step_us=summary.analysis.typical.steps.mean_us,
        parts=summary.analysis.typical.steps.mean_breakdown_us,
        has_gpu=bool(summary.analysis.gpus),
        communicates=collectives is not None,
        collectives_us=collectives.us / count if collectives else 0.0,
        exposed_us=collectives.exposed_us / count if collectives else 0.0,
        hidden_us=collectives.hidden_us / count if collectives else 0.0,
        ways=ways_to_communicate_less(collectives, summary.analysis.typical.workload.training),
    )


def difference(ranks: Iterable[Rank]) -> str:
    """How much longer the slowest rank's step takes than the fastest one's, in words."""
    times = {rank.rank: rank.step_us for rank in ranks}
    slowest, fastest = max(times, key=lambda rank: times[rank]), min(times, key=lambda rank: times[rank])
    spread = (times[slowest] - times[fastest]) / max(times[fastest], 1e-9)
    if spread < ALIKE:
        return "their steps take the same time to within 0.5 %"
    return f"rank {slowest} takes {spread:.1%} longer per step than rank {fastest}"


def straggler(ranks: Iterable[Rank]) -> Rank | None:
    """The rank that the others wait for in collectives; None if there is none.

    It is less in collectives than any other, and what others wait longer than it is `WAITING` of a step or more.
    """
    communicating = [rank for rank in ranks if rank.communicates]
    if len(communicating) < 2:
        return None
    least = min(communicating, key=lambda rank: rank.collectives_us)
    return least if waiting_us(ranks, least) >= WAITING * least.step_us else None


def waiting_us(ranks: Iterable[Rank], straggler: Rank) -> float:
    """µs of a step that the other ranks, on average, spend more in exposed collectives than that one."""
    waits = [rank.exposed_us for rank in ranks if rank.rank != straggler.rank]
    return sum(waits) / len(waits) - straggler.exposed_us


def advice(ranks: Sequence[Rank]) -> str:
    """What to do about the ranks' exposed collectives: of the rank that others wait for, then of all; "" if little."""
    sentences, last = [], straggler(ranks)
    if last is not None:
        waiting = waiting_us(ranks, last)
        share = waiting / max(last.step_us, 1e-9)
        longer = _longer_role(last, [rank for rank in ranks if rank.rank != last.rank])
        text = f"the others wait {fine_time_text(waiting)} of a step ({share:.0%}) for rank {last.rank}{longer}"
        sentences.append(text)
    plain = min(ranks, key=lambda rank: rank.exposed_us)
    share = plain.exposed_us / max(plain.step_us, 1e-9)
    if share >= WAITING:
        exposed = f"on every rank collectives run at least {fine_time_text(plain.exposed_us)} of a step ({share:.0%})"
        sentences.append(f"{exposed} with nothing beside them: {plain.ways}")
    return "; ".join(sentences)


def _longer_role(rank: Rank, others: Sequence[Rank]) -> str:
    """The role that takes longest beyond what it takes on the other ranks, in words; "" if none does."""
    work, other_work = _work_us(rank), [_work_us(other) for other in others]
    excess = {role: us - sum(other[role] for other in other_work) / len(others) for role, us in work.items()}
    role = max(excess, key=lambda name: excess[name])
    return f', which has {fine_time_text(excess[role])} more of "{role}"' if excess[role] > 0 else ""


def _work_us(rank: Rank) -> dict[str, float]:
    """µs of the mean step by role, without what only communicates, with what runs while collectives do."""
    parts = dict(rank.parts)
    del parts["communication"]
    if rank.has_gpu:
        parts["kernel"] -= rank.exposed_us  # NCCL's kernels are of that role
    elif rank.communicates:
        parts["cpu_exec"] += rank.hidden_us
    return parts


def sequences(trace: Trace, steps: Steps) -> dict[str, dict[str, list[float]]]:
    """The `Sequences` of a trace: a collective is named by its kernel and its stream, NCCL's groups have one each.

    The streams are counted, not named: the ranks need not number them alike. On a CPU: gloo's marks. {} where the first
    step alone has more than `MOST_COLLECTIVES`.
    """
    result: dict[str, dict[str, list[float]]] = {name: {} for name in steps.names}
    seen = 0
    for spans, index in _collectives(trace, steps):
        streams = {thread: number for number, thread in enumerate(sorted(set(spans.thread.tolist())))}
        rows = zip(index.tolist(), spans.name.tolist(), spans.thread.tolist(), spans.duration.tolist(), strict=True)
        for step, name, thread, us in rows:
            if step >= 0:
                stream = streams[thread] if len(trace.kernels) else 0  # gloo's threads share the work
                key = f"{trace.names[name][:200]} {stream}"
                result[steps.names[step]].setdefault(key, []).append(round(us, 3))
    whole = {}
    for name, collectives in result.items():
        seen += sum(map(len, collectives.values()))
        if seen > MOST_COLLECTIVES:
            break
        whole[name] = collectives
    return whole


def _collectives(trace: Trace, steps: Steps) -> Iterable[tuple[Spans, np.ndarray]]:
    """The spans of collectives, sorted by start, and the index of the step of each, -1 for none."""
    kernels = trace.kernels
    if not len(kernels):
        for spans in (trace.operators, trace.annotations):
            marks = spans.where(trace.named(spans, is_gloo))
            yield marks, _index(marks.start, steps.cpu_start, steps.cpu_end)
        return
    collective = kernels.where(trace.named(kernels, is_collective))
    called = np.append(trace.runtime.start, np.nan)[collective.call]
    launched = _index(called, steps.cpu_start, steps.cpu_end)
    yield collective, np.where(collective.call >= 0, launched, _index(collective.start, steps.start, steps.end))


def _index(time: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    at = np.searchsorted(start, time, "right") - 1
    return np.where((at >= 0) & (time < end[at]), at, -1)


def waits(ranks: Mapping[int, Sequences]) -> Waits:
    """How long each rank waits for others: its k-th collective lasts longer than on the rank that comes to it last.

    By durations, since the ranks' clocks differ. Of the steps that all have; of collectives that all ranks join.
    """
    if len(ranks) < 2:
        return Waits({}, "there is one rank only")
    if not all(ranks.values()):
        return Waits({}, f"a step has more than {MOST_COLLECTIVES} collectives, too many to compare")
    common = set.intersection(*(set(steps) for steps in ranks.values()))
    if not common:
        return Waits({}, "the traces have no step in common")
    total, compared = dict.fromkeys(ranks, 0.0), 0
    for step in common:
        counts = [{name: len(us) for name, us in steps[step].items()} for steps in ranks.values()]
        if any(count != counts[0] for count in counts[1:]):
            return Waits({}, f"the ranks' collectives do not match: they ran others, or more of them, in step {step}")
        for name in counts[0]:
            us = np.array([steps[step][name] for steps in ranks.values()])
            compared += us.shape[1]
            for rank, wait in zip(ranks, (us - us.min(axis=0)).sum(axis=1).tolist(), strict=True):
                total[rank] += wait
    if not compared:
        return Waits({}, "no collective is in the steps that all ranks have")
    return Waits({rank: us / len(common) for rank, us in total.items()})
