"""How long the steps of a trace would have taken if something in them had taken another time.

The trace's own dependencies are re-timed, as Daydream (Zhu et al., USENIX ATC 2020) and Lumos (Liang et al., MLSys
2025) do. The CPU is one clock: its threads keep their order and their pauses, but where a call waits for the GPU, it
goes on when the GPU does. Device work begins once it has been launched (plus one delay) and its stream has ended what
came before (plus one gap); where that does not explain how late it began, also once another stream has ended what ended
just then. Delay and gap are medians of the trace. So what a recording does not explain is not copied into the replay:
with nothing changed, its difference from the measured steps is an error, and tells how far an estimate can be trusted.

The CPU's times hold what the profiler took to record them. It is not taken out: how much that is for each event depends
on the CPU, on torch's version and on what is recorded (stacks, shapes, memory, the driver's calls), and no trace says.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Spans, Trace, median, places
from walkthrough.trace.intervals import Cover
from walkthrough.trace.steps import Steps, launching_step

MAX_ERROR = 0.03  # of the steps' time: a replay that misses more explains nothing
LATE = 20.0  # µs after launch and stream allow it: the work waited for something else
NEAR = 60.0  # µs between the end of what was waited for and the end of the wait
LONG_CALL = 100.0  # µs: a call that is not said to wait, but does, as a launch into a full queue
LONG_COPY_CALL = 30.0  # µs: a copy's call that waits for its copy
TICK = 1.0  # µs: times of old traces are whole µs, so what follows the end of a wait may seem to begin before it
MAX_STREAMS = 64  # in whose work the end of a wait is looked for, those with the most of it
RETURN = 5.0  # µs that a call takes when it does not have to wait


class Change(Struct, frozen=True):
    """What takes another time in a replay; by default nothing does.

    cpu: (when, factor) for the CPU's time outside of waits and set-up; where several apply, the smallest factor.
    kernels, copies: a factor of each duration, float64 over `Trace.kernels` and `Trace.copies`. returns: a mask over
    `Trace.runtime`: calls that no longer wait for the GPU. at_least: µs of each step, float64, that something takes
    which goes on beside the rest. samples: how many times as many a step then trains on.
    """

    cpu: Sequence[tuple[Cover, float]] = ()
    kernels: np.ndarray | None = None
    copies: np.ndarray | None = None
    returns: np.ndarray | None = None
    at_least: np.ndarray | None = None
    samples: float = 1.0

    def __or__(self, other: "Change") -> "Change":
        """Both changes together."""
        return Change(
            (*self.cpu, *other.cpu),
            _both(np.multiply, self.kernels, other.kernels),
            _both(np.multiply, self.copies, other.copies),
            _both(np.logical_or, self.returns, other.returns),
            _both(np.maximum, self.at_least, other.at_least),
            self.samples * other.samples,
        )


def without(kernels: np.ndarray) -> Change:
    """The kernels of a mask are gone."""
    return Change(kernels=np.where(kernels, 0.0, 1.0))


class Replay:
    """The dependencies of one trace, to be re-timed.

    typical: a mask over the steps, those that count; all by default. error: the part of their measured time that the
    replay cannot explain: by how much it misses that time without a change or, if that is more, how long the device
    does nothing although work should have begun. A stall in another step proves nothing about them.
    """

    def __init__(self, trace: Trace, steps: Steps, typical: np.ndarray | None = None) -> None:
        self.trace, self.steps = trace, steps
        self.typical = np.ones(len(steps.names), bool) if typical is None else typical
        work = trace.device_work
        copying = np.repeat([False, True, False], [len(trace.kernels), len(trace.copies), len(trace.sets)])
        order = np.argsort(work.start, kind="stable")
        self._order = order[work.start[order] < steps.end[-1]]
        self._start, self._end, self._stream, self._call, self._copying, size = (
            column[self._order] for column in (work.start, work.end, work.thread, work.call, copying, work.bytes)
        )
        self._find_dependencies(np.nan_to_num(size))
        self._find_waits()
        self._launched_in = launching_step(trace, work, steps.cpu_start, steps.cpu_end)[self._order]
        self._prepare()
        self.same_us: np.ndarray = self.step_us(Change())
        measured = float(steps.duration[self.typical].sum())
        missed = abs(float(self.same_us[self.typical].sum()) - measured)
        self.error: float = max(missed, self._unexplained_us()) / measured if measured > 0 else np.inf

    def gain(self, change: Change) -> float | None:
        """How many times faster the typical steps are with `change`; None where the replay's error is too large.

        No change takes longer for a sample. So a gain below 1 is none or, by more than the replay may err, proves that
        it cannot tell: what runs between the steps' marks moves into them as the rest becomes shorter.
        """
        if self.error > MAX_ERROR:
            return None
        new = max(float(self.step_us(change)[self.typical].sum()), self._working_us(self._factors(change)))
        gain = change.samples * float(self.same_us[self.typical].sum()) / new if new > 0 else 0.0
        return max(gain, 1.0) if gain * (1 + MAX_ERROR) >= 1 else None

    def most(self, change: Change) -> float:
        """How many times faster the typical steps can be at most: as long as the device work with `change`."""
        working_us = self._working_us(self._factors(change))
        measured = float(self.steps.duration[self.typical].sum())
        return change.samples * measured / working_us if working_us > 0 else np.inf

    def _working_us(self, factors: np.ndarray) -> float:
        """For how long the device works in the typical steps, with factors of its work: no step can be shorter.

        The time of what stays, where it was recorded: what runs beside other work then may not do so more than before.
        """
        inside = np.isin(self._launched_in, np.flatnonzero(self.typical))
        begin, us = self._start[inside], ((self._end - self._start) * factors)[inside]
        return Cover(begin, begin + us).total

    def step_us(self, change: Change) -> np.ndarray:
        """µs of each step with `change`, float64 [steps], steps as `steps.steps` defines them."""
        begin, end = self._steps(*self._replayed(change))
        return np.maximum(end - begin, 0.0 if change.at_least is None else change.at_least)

    def timeline(self, change: Change) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """µs, of the replay: when steps begin; when kernels, copies and sets, in turn, begin and end (or NaN)."""
        marks, end = self._replayed(change)
        work = np.full((2, len(self.trace.device_work)), np.nan)
        work[:, self._order] = end - (self._end - self._start) * self._factors(change), end
        return self._steps(marks, end)[0], work[0], work[1]

    def _steps(self, mark: tuple[list[float], list[float]], end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When steps begin and end, of what `_replayed` returns."""
        last = np.full(len(self.steps.names), -np.inf)
        inside = self._launched_in >= 0
        np.maximum.at(last, self._launched_in[inside], end[inside])
        before = -np.inf
        if self.steps.start[0] > self.steps.cpu_start[0]:  # earlier steps' device work ends in the first one
            earlier = np.flatnonzero(self._end == self.steps.start[0])
            before = end[earlier[0]] if len(earlier) else self.steps.start[0]
        times = []
        for first, stop, work in zip(*mark, last, strict=True):
            begin = max(first, before)
            before = max(stop, work, begin)
            times.append((begin, before))
        return np.array(times)[:, 0], np.array(times)[:, 1]

    def _find_dependencies(self, size: np.ndarray) -> None:
        """For each device work: when its launch lets it begin, its predecessor, and what else it waited for."""
        start, end, call, stream = self._start, self._end, self._call, self._stream
        runtime, count = self.trace.runtime, len(start)
        in_stream = np.lexsort([start, stream])
        previous = np.full(count, -1)
        same = stream[in_stream[1:]] == stream[in_stream[:-1]]
        previous[in_stream[1:][same]] = in_stream[:-1][same]
        called = call >= 0
        call_start = np.where(called, np.append(runtime.start, 0.0)[call], -np.inf)
        first = ~((previous >= 0) & called & (call[previous] == call))  # of its call: a graph has more
        previous_end = np.where(previous >= 0, end[previous], -np.inf)

        delays = (start - call_start)[called & first & (previous_end < call_start)]
        gaps = (start - previous_end)[called & (previous_end > call_start + LATE)]
        delay = max(0.5, float(median(delays))) if len(delays) else 8.0
        gap = min(max(0.0, float(median(gaps))), 5.0) if len(gaps) else 1.5
        self._delay = np.where(first, delay, 0.0)
        staged = self._copying & called & (start - np.maximum(previous_end + gap, call_start) > NEAR)
        staging = np.minimum(start - call_start, 1000 + size / 250)  # pageable memory is copied twice
        self._delay[staged] = staging[staged]
        self._staged = staged
        self._gap, self._previous, self._call_start, self._has_call = gap, previous, call_start, called

        allowed = np.maximum(call_start + self._delay, previous_end + gap)
        self._other = np.full(count, -1)
        self._slack = np.zeros(count)
        self._by_end = np.argsort(end, kind="stable")
        ends = end[self._by_end].tolist()
        for index in np.flatnonzero(np.isfinite(allowed) & (start - allowed > LATE)).tolist():
            at = bisect_right(ends, start[index]) - 1
            while at >= 0 and start[index] - ends[at] < NEAR and stream[self._by_end[at]] == stream[index]:
                at -= 1
            if at >= 0 and start[index] - ends[at] < NEAR and ends[at] > allowed[index]:
                self._other[index], self._slack[index] = self._by_end[at], start[index] - ends[at]

        self._late_from = np.where((start - allowed > LATE) & (self._other < 0) & np.isfinite(allowed), allowed, start)

    def _unexplained_us(self) -> float:
        """How long no device work runs within the typical steps although some should have begun, for no reason.

        A replay whose CPU bounds the steps would be right all the same, and wrong once the CPU has less to do.
        """
        steps = self.steps.where(self.typical)
        idle = Cover(self._start, self._end).gaps(steps.start, steps.end)
        return (idle & Cover(self._late_from, self._start)).total

    def _find_waits(self) -> None:
        """The calls that wait for device work, in the order of their ends, and what they wait for."""
        runtime = self.trace.runtime
        syncs, copies = self.trace.calls.waits, self.trace.calls.copies
        long = runtime.duration > np.where(copies, LONG_COPY_CALL, LONG_CALL)
        own = np.full(len(runtime), -1)
        own[self._call[self._call >= 0]] = np.flatnonzero(self._call >= 0)
        ends = self._end[self._by_end].tolist()
        done = self._done_before(runtime)
        whole = self.trace.named(runtime, lambda name: "StreamSynchronize" in name or "DeviceSynchronize" in name)
        waits = []
        calls = np.flatnonzero((syncs | long) & (runtime.start < self.steps.end[-1]))
        calls = calls[np.argsort(runtime.end[calls], kind="stable")]
        ended = np.searchsorted(ends, runtime.end[calls] + 3, "right").tolist()
        launched_before = _last_at_most(self._call_start[self._by_end].tolist(), ended, runtime.start[calls].tolist())
        for index, at in zip(calls.tolist(), launched_before, strict=True):  # others were launched later
            begin, end = float(runtime.start[index]), float(runtime.end[index])
            near = max(NEAR, 0.05 * (end - begin))
            work = own[index] if copies[index] else -1
            if work < 0 or abs(float(self._end[work]) - end) >= max(3 * NEAR, 2 * near):
                if at >= 0 and ends[at] > begin and end - ends[at] < near:
                    work = self._by_end[at]
                elif whole[index] and done[index] >= 0:  # it did not have to wait, and might with other times
                    work = done[index]
                else:
                    continue
            waited = self._end[work] > begin
            rest, own_us = (end - self._end[work], RETURN) if waited else (0.0, end - begin)
            waits.append((max(end, float(self._start[work])), index, int(work), float(rest), own_us))
        waits.sort()
        self._wait_at, call, work, self._wait_rest, self._wait_own = np.array(waits).reshape(-1, 5).T
        self._wait_call, self._wait_for = call.astype(np.int64), work.astype(np.int64)

    def _done_before(self, calls: Spans) -> np.ndarray:
        """The last work of a stream that was launched before each call and ended before it does, -1 for none."""
        latest, ended = np.full(len(calls), -1), np.full(len(calls), -np.inf)
        called = np.flatnonzero(self._has_call)
        streams = sorted(places(self._stream[called]).values(), key=len, reverse=True)
        for of_stream in streams[:MAX_STREAMS]:
            work = called[of_stream]
            launched = np.maximum.accumulate(self._call_start[work])  # two threads' calls may cross
            last = np.searchsorted(launched, calls.start) - 1
            end = np.where(last >= 0, self._end[work[last]], np.inf)
            later = (end <= calls.end + TICK) & (end > ended)
            latest[later], ended[later] = work[last][later], end[later]
        return latest

    def _prepare(self) -> None:
        """What every replay needs, whatever changes, as lists."""
        runtime, steps, calls = self.trace.runtime, self.steps, self._wait_call
        self._launched = np.where(self._has_call, self._call_start, self._start)
        self._wait_begin, self._wait_end = runtime.start[calls], runtime.end[calls]
        # What no change of the program's code makes shorter: waits, which the replay ends, and setting up.
        self._staying = Cover(self._wait_begin, self._wait_end) | runtime.cover(self.trace.calls.sets_up)
        # The clock's shift changes where a wait ends: how many waits have ended before.
        self._done_at_launch, self._done_at_wait, *self._done_at_mark = (
            np.searchsorted(self._wait_at, time + TICK, "right").tolist()
            for time in (self._launched, self._wait_begin, steps.cpu_start, steps.cpu_end)
        )
        self._after = [column.tolist() for column in (self._previous, self._other, self._slack)]
        self._waits = [column.tolist() for column in (self._wait_for, self._wait_rest, self._wait_own)]
        # Device work that comes before each wait's end; there is no further wait.
        self._turns: list[int] = [*np.searchsorted(self._start, self._wait_at, "right").tolist(), -1]

    def _replayed(self, change: Change) -> tuple[tuple[list[float], list[float]], np.ndarray]:
        """When steps' marks begin and end, and when each device work ends."""
        tables = (self.trace.runtime, self.trace.kernels, self.trace.copies, self.trace.sets)
        before = min(self.steps.cpu_start[0], *(spans.start[0] for spans in tables if len(spans)), np.inf) - 1.0
        saved = _saved(change.cpu, self._staying, float(before))
        factors = self._factors(change)
        duration = (self._end - self._start) * factors
        delay = np.where(self._staged, self._delay * np.minimum(factors, 1), self._delay)
        launch = self._launched - saved(self._launched) + np.where(self._has_call, delay, 0.0)
        free = np.zeros(len(self.trace.runtime), bool) if change.returns is None else change.returns

        shifts, gap, done = [0.0], self._gap, 0
        end = [0.0] * (len(self._start) + 1)
        work = zip(launch.tolist(), self._done_at_launch, *self._after, duration.tolist(), strict=True)
        begins, ends = (time - saved(time) for time in (self._wait_begin, self._wait_end))
        returning = free[self._wait_call].tolist()
        calls = [*zip(begins.tolist(), self._done_at_wait, ends.tolist(), *self._waits, returning, strict=True)]
        nothing = (0.0, 0, -1, -1, 0.0, 0.0)  # comes after all work, and after all waits
        for index, (begin, at, previous, other, slack, length) in enumerate(chain(work, [nothing])):
            while index == self._turns[done]:
                start, seen, stop, waited, rest, own, returns = calls[done]
                new = start + shifts[min(seen, done)] + (min(own, RETURN) if returns else own)
                shifts.append((new if returns else max(new, end[waited] + rest)) - stop)
                done += 1
            begin += shifts[at if at < done else done]
            if previous >= 0 and end[previous] + gap > begin:
                begin = end[previous] + gap
            if other >= 0 and end[other] + slack > begin:
                begin = end[other] + slack
            end[index] = begin + length
        marks = []
        for time, done_at in zip((self.steps.cpu_start, self.steps.cpu_end), self._done_at_mark, strict=True):
            moved = (time - saved(time)).tolist()
            marks.append([base + shifts[min(at, done)] for base, at in zip(moved, done_at, strict=True)])
        return (marks[0], marks[1]), np.array(end[:-1])

    def _factors(self, change: Change) -> np.ndarray:
        """The factor of each device work's duration."""
        trace = self.trace
        kernels = np.ones(len(trace.kernels)) if change.kernels is None else change.kernels
        copies = np.ones(len(trace.copies)) if change.copies is None else change.copies
        return np.concatenate([kernels, copies, np.ones(len(trace.sets))])[self._order]


def _last_at_most(values: Sequence[float], counts: Sequence[int], limits: Sequence[float]) -> list[int]:
    """Of the first so many values the index of the last one up to each limit, -1 for none. counts: in order."""
    lowest, index, result, seen = [], [], [], 0  # those that no later one is as low as
    for count, limit in zip(counts, limits, strict=True):
        for at in range(seen, count):
            while lowest and lowest[-1] >= values[at]:
                lowest.pop(), index.pop()
            lowest.append(values[at])
            index.append(at)
        seen = count
        place = bisect_right(lowest, limit)
        result.append(index[place - 1] if place else -1)
    return result


def _both(combine: np.ufunc, one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    return one if other is None else other if one is None else combine(one, other)


def _saved(cpu: Sequence[tuple[Cover, float]], staying: Cover, origin: float):
    """A function from times to µs that the CPU has saved until then, outside of what stays as long."""
    parts, taken = [], staying
    for cover, factor in sorted(cpu, key=lambda part: part[1]):
        taken = taken | cover
        parts.append((taken, 1 - factor))

    def saved(time: np.ndarray) -> np.ndarray:
        total = np.zeros(len(time))
        before = staying.within(origin, time) if parts else total
        for cover, share in parts:
            until = cover.within(origin, time)
            total += share * (until - before)
            before = until
        return total

    return saved
