"""The training steps of a trace: their marks, their ends, and the time of each by role.

Definitions: torch-tb-profiler 0.4.3, event_parser.py (steps and their ends) and overall_parser.py (the breakdown), but
for the begin of the first step, see `end_of_earlier_work`, and marks of optimizers that wrap a closure, see `Passes`:
the plugin counts all of such a mark as operators.
"""

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from walkthrough.results.errors import printable
from walkthrough.trace.columns import MAX_GPUS, MemoryEvents, Spans, Trace, calls_of, distinct, joined, median, once
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import is_matrix_work

MAX_SERIES = 16  # of marks that overlap: no program is profiled by so many profilers at once
MAX_DIGITS = 20  # of a step's number; Python refuses to read some thousands of them
ROUNDING = 0.05  # of the shorter of two marks: they follow one another although they overlap by so much


PROFILER, OPTIMIZER, LOADER = "ProfilerStep", "Optimizer.step", "DataLoader"
ROUNDS = 3  # of a loop: so many calls of Optimizer.step, or waits for a DataLoader, mark steps


class Marks(Struct, frozen=True):
    """The steps as a trace marks them. names: the text after "ProfilerStep#". start, end: µs, float64 [steps].

    marked_by: `PROFILER`; without its marks `OPTIMIZER` or `LOADER`, see `_rounds`, whose steps are named "1", "2", …;
    "" for a trace without any of them, which counts as one step, "0". whole: False where the only step that is marked
    was not over when the profiler stopped.
    """

    names: list[str]
    start: np.ndarray
    end: np.ndarray
    marked_by: str
    whole: bool = True


def is_step(name: str) -> bool:
    """True for the mark of a training step."""
    return name.startswith("ProfilerStep#")


def is_optimizer_step(name: str) -> bool:
    """True for the mark around a call of an optimizer's `step`."""
    return name.startswith("Optimizer.step")


def is_mark(name: str) -> bool:
    """True for what marks a step or an optimizer's call, and is in part Python."""
    return is_step(name) or name.startswith("Optimizer.")


def is_loading(name: str) -> bool:
    """True for the mark around the training loop's wait for its DataLoader's next batch."""
    loader = name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__")
    return loader or name.startswith("enumerate(DataPipe)#")


COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo")
_BACKWARD = re.compile(
    r"autograd::engine|torch::autograd::AccumulateGrad|Backward\d*$|_backward(?![a-z])|## backward ##"
)


def is_backward(name: str) -> bool:
    """True for an operator, or a mark, of a backward pass."""
    return _BACKWARD.search(name) is not None


class Passes(Struct, frozen=True):
    """When the model runs with gradients and when its optimizers update parameters, on the CPU.

    training: each pass, from its first operator with a gradient to the end of its backward pass. Empty where the trace
    has no sequence numbers. own: when parameters are updated: in `Optimizer.step`, without what runs in the closures
    that it is given (LBFGS needs one, and PyTorch Lightning gives one to every optimizer): its passes, and all before
    the first of them. In a program without `Optimizer.step`, as with an optimizer that is compiled or not torch's: from
    the first operator after a backward pass to the last one that changes a tensor in place, or is compiled, before the
    next wait for a batch, pass or matrix product.
    per_step: `own`, and `Optimizer.zero_grad`. marked: whether `Optimizer.step` marks them. wrapping: a mask over
    `Trace.operators`, the marks that wrap a closure: an operator of a backward pass begins inside.
    """

    training: Cover
    own: Cover
    per_step: Cover
    marked: bool
    wrapping: np.ndarray


@once
def passes(trace: Trace) -> Passes:
    """The `Passes` of a trace; computed once."""
    operators = trace.operators
    steps = trace.named(operators, is_optimizer_step)
    zeroing = operators.cover(trace.named(operators, lambda name: name.startswith("Optimizer.")) & ~steps)
    nodes = trace.named(operators, is_backward)
    training, thread = _training(trace, nodes)
    start, end, wrapping = operators.start[steps], operators.end[steps], np.zeros(len(operators), bool)
    backward = operators.where(nodes)  # sorted by start, as all spans are
    own = Cover(start, end)
    if not len(start):
        own = _updates(trace, training, thread)
    elif len(backward):
        last = np.searchsorted(backward.start, end) - 1
        wraps = (last >= 0) & (backward.start[last] >= start)
        wrapping[steps] = wraps
        first = np.append(training.end, np.inf)[np.searchsorted(training.end, start, "right")]
        begin = np.minimum(first, np.maximum.accumulate(backward.end)[last])
        begin = np.where(wraps, np.clip(begin, start, end), start)
        runs = training & Cover(start[wraps], end[wraps])
        own = (runs | zeroing | Cover(start[wraps], begin[wraps])).gaps(begin, end)
    return Passes(training, own, own | zeroing, len(start) > 0, wrapping)


def _training(trace: Trace, nodes: np.ndarray) -> tuple[Cover, int]:
    """See `Passes`; and the thread of the forward passes. nodes: a mask, operators of backward passes.

    A node has the sequence number of the operator that made it, the last with that number before the node runs; the
    operators around that, and those before since the last node was made, have the number too.
    """
    operators, sequence, backward = trace.operators, trace.operators.sequence, trace.operators.where(nodes)
    making, nodes = np.flatnonzero((sequence >= 0) & ~nodes), np.flatnonzero((sequence >= 0) & nodes)
    if not len(making) or not len(nodes):
        return Cover(), -1
    thread = int(np.bincount(operators.thread[making]).argmax())  # each thread counts for itself
    making = making[operators.thread[making] == thread]
    numbers, count = distinct(sequence[making]), len(operators)
    keys = np.sort(np.searchsorted(numbers, sequence[making]) * count + making)
    maker = keys[np.searchsorted(keys, np.searchsorted(numbers, sequence[nodes]) * count + nodes) - 1] % count
    known = (sequence[maker] == sequence[nodes]) & (maker < nodes)
    begins = _outermost(operators.where(making)).start
    begin = begins[np.searchsorted(begins, operators.start[maker[known]], "right") - 1]
    made = Cover(begin, operators.end[nodes[known]])
    last = np.searchsorted(backward.start, np.append(made.start[1:], np.inf)) - 1  # nodes without a number follow
    return Cover(made.start, np.maximum.accumulate(backward.end)[last]), thread


def _updates(trace: Trace, training: Cover, thread: int) -> Cover:
    """When parameters are updated after each pass of a program without `Optimizer.step`, see `Passes`."""
    operators, passed = trace.operators, training.end
    computing = trace.named(operators, lambda name: not is_mark(name) and not is_loading(name))
    computing = _outermost(operators.where(computing & (operators.thread == thread)))
    stops = operators.start[trace.named(operators, lambda name: is_loading(name) or is_matrix_work(name))]
    if trace.recording and trace.recording.mark == "backward":  # what the first step begins with follows a pass, too
        passed = np.append(trace.annotations.start[trace.named(trace.annotations, is_step)][:1], passed)
    stop = np.append(np.sort(np.append(stops, training.start)), np.inf)
    stop = stop[np.searchsorted(stop, passed)]
    changing = computing.where(trace.named(computing, lambda name: name.endswith("_") or COMPILED.search(name)))
    first, last = np.searchsorted(computing.start, passed), np.searchsorted(changing.start, stop) - 1
    end = np.append(changing.end, -np.inf)[last]
    return Cover(np.append(computing.start, np.inf)[first], end)


def _outermost(operators: Spans) -> Spans:
    """Of the operators of one thread those that lie in no other."""
    before = np.maximum.accumulate(np.append(-np.inf, operators.end))[:-1]
    return operators.where(operators.start >= before)


def one_process(trace: Trace) -> Trace:
    """The trace without other processes that mark steps, as in a file that is merged from the traces of several ranks.

    Of those that do, the one with the most marks is kept, of equals the first in the file; a warning names it. Of the
    device work its streams are kept: those of which no other process's calls explain more, as ids of calls may be the
    same in all ranks.
    """
    names = list(dict.fromkeys(process for process, _ in trace.threads))
    number = {process: at for at, process in enumerate(names)}
    process = np.array([number[name] for name, _ in trace.threads])
    on_cpu = np.ones(len(process), bool)
    on_cpu[trace.device_work.thread] = False
    if len(distinct(process[on_cpu])) < 2:
        return trace
    marks = np.zeros(len(names), np.int64)
    for test in (is_step, is_optimizer_step, is_loading):
        for spans in (trace.operators, trace.annotations):
            thread = spans.thread[trace.named(spans, test)]
            marks += np.bincount(process[thread[on_cpu[thread]]], minlength=len(names))
        if marks.any():
            break
    if (marks > 0).sum() < 2:
        return trace
    kept, *others = np.argsort(-marks, kind="stable")[: min(MAX_GPUS, (marks > 0).sum())].tolist()
    which = f"only process {printable(names[kept], 40)} is used"
    trace.warnings.append(f"{(marks > 0).sum()} processes mark steps, as in a file of several ranks: {which}")
    own = (process == kept) | (marks[process] == 0)
    count, wait = _explained(trace, process == kept)
    for other in others:
        more, sooner = _explained(trace, process == other)
        own &= (more < count) | ((more == count) & (sooner >= wait))
    tables = {name: spans.where(own[spans.thread]) for name, spans in asdict(trace).items() if isinstance(spans, Spans)}
    for name in ("kernels", "copies", "sets"):
        tables[name] = replace(tables[name], call=calls_of(tables["runtime"], tables[name].correlation))
    inside = own[trace.memory.thread.astype(np.int64)]  # empty without events, and of floats
    memory = MemoryEvents(**{name: column[inside] for name, column in asdict(trace.memory).items()})
    return replace(trace, memory=memory, **tables)


def _explained(trace: Trace, threads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By stream: how much of its work follows a call of the same id on some threads (a mask), and µs until it does."""
    work, runtime = trace.device_work, trace.runtime.where(threads[trace.runtime.thread])
    since = work.start - np.append(runtime.start, np.inf)[calls_of(runtime, work.correlation)]
    after, most = since >= 0, len(trace.threads)
    return np.bincount(work.thread[after], minlength=most), np.bincount(work.thread[after], since[after], most)


def step_marks(trace: Trace) -> Marks:
    """The `Marks` of a trace: of one thread, and no two at the same time.

    A step that was not over when the profiler stopped (today's Kineto writes `"finished": false`) is left out, unless
    no other is marked. What is left out is said in `Trace.warnings`.
    """
    marks = [spans.where(trace.named(spans, is_step)) for spans in (trace.operators, trace.annotations)]
    both = joined(marks)
    name, start, end, thread = both.name, both.start, both.end, both.thread
    if not len(both):
        return _rounds(trace) or _whole_trace(trace)
    finished = np.concatenate([np.ones(len(marks[0]), bool), marks[1].finished])
    mask = ~np.isin(thread, trace.device_work.thread)  # marks in a device's row repeat the CPU's
    if not mask.any():
        mask[:] = True
    threads, count = np.unique(thread[mask], return_counts=True)
    if len(threads) > 1:
        trace.warnings.append(f"{len(threads)} threads mark steps: those with the most marks are used")
        mask &= thread == threads[np.argmax(count)]
    whole = bool((mask & finished).any())
    open_marks = name[mask & ~finished & whole].tolist()
    if open_marks:
        one, more = trace.names[open_marks[0]], len(open_marks) - 1
        left_out = f"{one} was not over when the profiler stopped: it is left out"
        trace.warnings.append(left_out + (f", and so are {more} more" if more else ""))
        mask &= finished
    rows = sorted(set(zip(start[mask].tolist(), end[mask].tolist(), name[mask].tolist(), strict=True)))
    used = _one_series([(begin, stop, trace.names[number].split("#", 1)[1]) for begin, stop, number in rows])
    if len(used) < len(rows):
        first, last = used[0][2], used[-1][2]
        trace.warnings.append(
            f"steps are marked twice, by two profilers most likely, and their marks overlap: {len(used)} of "
            f"{len(rows)} marks are used, ProfilerStep#{first} to ProfilerStep#{last}"
        )
    starts, ends, names = zip(*used, strict=True)
    return Marks(list(names), np.array(starts), np.array(ends), PROFILER, whole)


def _rounds(trace: Trace) -> Marks | None:
    """Steps by the rounds of a training loop, from the end of one `Optimizer.step` to the end of the next.

    Without optimizers from one wait for the DataLoader to the next. What is before the first and after the last is in
    no step. None where the loop went round less than `ROUNDS` times.
    """
    waits, calls = _first_waits(trace), _last_calls(trace)
    batch = np.searchsorted(waits, calls)
    last = np.append(batch[1:] != batch[:-1], True)[: len(calls)]
    if last.sum() >= max(ROUNDS, len(waits) - 1) and len(waits) >= ROUNDS:  # with each batch several optimizers step
        calls = calls[last]
    for edges, marked_by in ((calls, OPTIMIZER), (waits, LOADER)):
        if len(edges) >= ROUNDS:
            names = [str(number) for number in range(1, len(edges))]
            return Marks(names, edges[:-1], edges[1:], marked_by)
    return None


def _last_calls(trace: Trace) -> np.ndarray:
    """When `Optimizer.step` ends, µs, sorted: once for all optimizers that follow one backward pass.

    Of optimizers of several classes only that which is called least counts, of equals the last in a round, as it marks
    the steps of `walkthrough trace`. Calls inside another's, and inside a backward pass, do not count.
    """
    backward, calls = trace.spans(is_backward), _of_one_thread(trace.spans(is_optimizer_step))
    inside = backward.cover(backward.thread == calls.thread[0]) if len(calls) else Cover()
    before = np.maximum.accumulate(np.append(-np.inf, calls.end[:-1]))
    calls = calls.where((calls.start >= before[: len(calls)]) & ~inside.holds(calls.start))
    number, count = np.unique(calls.name, return_counts=True)
    number, count = number[count >= ROUNDS], count[count >= ROUNDS]
    if not len(number):
        return np.empty(0)
    rarest = number[count == count.min()]
    ends = calls.end[calls.name == calls.name[np.isin(calls.name, rarest)][-1]]
    passes = np.searchsorted(backward.start, ends)
    return ends[np.append(passes[1:] > passes[:-1], True)] if len(backward) else ends


def _first_waits(trace: Trace) -> np.ndarray:
    """When waits for a DataLoader begin, µs, sorted: once for all waits between which no operator runs."""
    waits, operators = _of_one_thread(trace.spans(is_loading)), trace.operators
    begun = np.searchsorted(operators.start, waits.start[1:]) > np.searchsorted(operators.start, waits.end[:-1])
    return waits.start[np.append(True, begun)[: len(waits)]]


def _of_one_thread(marks: Spans) -> Spans:
    """The marks of the thread that has most of them."""
    return marks.where(marks.thread == np.bincount(marks.thread).argmax()) if len(marks) else marks


def _whole_trace(trace: Trace) -> Marks:
    events = trace.operators
    if not len(events):
        events = joined([trace.runtime, trace.annotations, trace.device_work])
    if not len(events):  # memory events alone
        return Marks(["0"], trace.memory.time[:1], trace.memory.time[-1:], "")
    launches = trace.runtime.end[trace.calls.launches]  # a CUDA graph is often launched outside of any operator
    end = max(float(events.end.max()), float(launches.max(initial=-np.inf)))
    return Marks(["0"], np.array([events.start.min()]), np.array([end]), "")


def _one_series(rows: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Of marks (start, end, number), sorted, those of the longest series without overlap; of equals, the first.

    Where a mark may continue several series, it continues that whose last number is one less, else the one that ended
    last.
    """
    series: list[list[tuple[float, float, str]]] = []
    for row in rows:
        possible = [before for before in series if not _overlap(before[-1], row)]
        if possible:
            max(possible, key=lambda before: (_follows(before[-1][2], row[2]), before[-1][1])).append(row)
        elif len(series) < MAX_SERIES:
            series.append([row])
    return max(series, key=len)


def _overlap(before: tuple[float, float, str], after: tuple[float, float, str]) -> bool:
    shorter = min(before[1] - before[0], after[1] - after[0])
    return min(before[1], after[1]) - after[0] > ROUNDING * shorter


def _follows(before: str, after: str) -> bool:
    numbers = before.isdecimal() and after.isdecimal() and max(len(before), len(after)) < MAX_DIGITS
    return numbers and int(after) == int(before) + 1


ROLES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_exec", "other")
COLLECTIVES = {
    f"{library}:{name}"
    for library in ("nccl", "gloo")
    for name in (
        *("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter"),  # those in the plugin
        *("_all_gather_base", "_reduce_scatter_base", "all_to_all", "send", "recv", "coalesced", "barrier"),  # newer
    )
}


class Steps(Struct, frozen=True):
    """names, marked_by: see `Marks`. start, end: µs, float64 [steps].

    cpu_start, cpu_end: µs, float64 [steps]: its mark, so when the CPU ran it. Where the CPU is ahead of the GPU, start
    is later than cpu_start, or even than cpu_end.
    breakdown: µs, float64 [roles, steps], in the order of `ROLES`; a column sums to that step's time.
    whole: see `Marks`. reasons: what each step does besides training, if `outliers.with_reasons` has looked for it.
    """

    names: list[str]
    start: np.ndarray
    end: np.ndarray
    cpu_start: np.ndarray
    cpu_end: np.ndarray
    breakdown: np.ndarray
    marked_by: str
    whole: bool
    reasons: list[tuple[str, ...]]

    def where(self, mask: np.ndarray) -> "Steps":
        """The steps that a boolean mask selects."""
        chosen = np.flatnonzero(mask).tolist()
        return replace(
            self,
            names=[self.names[index] for index in chosen],
            breakdown=self.breakdown[:, mask],
            reasons=[self.reasons[index] for index in chosen],
            **{name: getattr(self, name)[mask] for name in ("start", "end", "cpu_start", "cpu_end")},
        )

    @property
    def marked(self) -> bool:
        """False for a trace that marks no steps and counts as one."""
        return bool(self.marked_by)

    @property
    def duration(self) -> np.ndarray:
        """µs, float64 [steps]."""
        return self.end - self.start

    @property
    def mean_us(self) -> float:
        """Mean duration of a step."""
        return float(self.duration.mean())

    @property
    def median_us(self) -> float:
        """Median duration of a step."""
        return float(median(self.duration))

    @property
    def mean_breakdown_us(self) -> dict[str, float]:
        """µs of the mean step by role."""
        return dict(zip(ROLES, self.breakdown.mean(axis=1).tolist(), strict=True))


def steps(trace: Trace) -> Steps:
    """The `Steps` of a trace.

    A step begins where its ProfilerStep mark begins, or where the step before it ends, if that is later; the first one
    where the device work of steps before the trace ends (`end_of_earlier_work`), if that is later. It ends with its
    mark, or with the last device work that was launched inside the mark, if that is later. Last steps are left out if
    the profiler missed part of their device work: all that launched none, and then one that launched less than 80 % of
    what the step before it did. Without its marks, those of `_rounds` count; without any, the time from the first CPU
    operator to the last is the one step.
    """
    marks = step_marks(trace)
    start, end = _with_device_work(trace, marks.start, marks.end)
    count, breakdown = len(start), shares([*roles(trace), Cover(start, end)], start, end)
    names, cpu_start, cpu_end, reasons = marks.names[:count], marks.start[:count], marks.end[:count], [()] * count
    return Steps(names, start, end, cpu_start, cpu_end, breakdown, marks.marked_by, marks.whole, reasons)


def of_steps(trace: Trace, steps: Steps, work: Spans) -> np.ndarray:
    """A mask over device work: what was called in a step; without a recorded call, what begins in one.

    A copy in a stream of its own may run long before the kernels of the step that calls it.
    """
    called = np.append(Cover(steps.cpu_start, steps.cpu_end).holds(trace.runtime.start), False)[work.call]
    return np.where(work.call >= 0, called, Cover(steps.start, steps.end).holds(work.start))


def launching_step(trace: Trace, work: Spans, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which of the intervals [start, end), a step's marks, holds the whole call of each device work; -1 for none."""
    runtime = trace.runtime
    step = np.searchsorted(start, runtime.start, "right") - 1
    step = np.where((step >= 0) & (runtime.end <= end[step]), step, -1)
    return np.append(step, -1)[work.call]


def end_of_earlier_work(start: np.ndarray, end: np.ndarray, stream: np.ndarray, step: np.ndarray) -> float:
    """When the device has ended what was launched before the first step, µs; -inf if there is nothing of that.

    start, end: µs of all device work, of any kind. stream: a number for its stream. step: the index of the step that
    launched it, -1 for none. Work of no step is from before the first one if it begins before that step's own work in
    the same stream, since a stream runs in order; in a stream without own work, if it ends before any of that begins.

    The plugin looks for the latter in every stream. So where the CPU runs ahead and a step copies the next batch in a
    stream of its own, at once, it counts the kernels of earlier steps, which run after that copy, for the first step.
    """
    own = step == 0
    first = np.full(stream.max(initial=-1) + 1, np.inf)
    np.minimum.at(first, stream[own], start[own])
    in_order = start < first[stream]
    earlier = (step < 0) & np.where(np.isfinite(first[stream]), in_order, end < first.min(initial=np.inf))
    return float(end[earlier].max(initial=-np.inf))


def roles(trace: Trace) -> list[Cover]:
    """The covers of all roles but "other", in order of precedence: a moment counts for the first that covers it.

    Communication is defined as in the plugin: the time inside collectives' marks on the CPU, and kernels with the id of
    such a mark. Today's NCCL kernels have another id and count as kernels here; see `communication.py`.
    """
    operators, annotations = trace.operators, trace.annotations
    loading = trace.named(operators, is_loading)
    collective = trace.named(operators, COLLECTIVES.__contains__)
    marks = trace.named(annotations, COLLECTIVES.__contains__)
    ids = np.concatenate([operators.external[collective], annotations.external[marks]])
    communicating = np.isin(trace.kernels.external, ids[ids >= 0])
    training = passes(trace)
    working = ~loading & ~collective & ~trace.named(operators, is_step) & ~training.wrapping

    return [
        trace.kernels.cover(~communicating),
        trace.copies.cover(),
        trace.sets.cover(),
        trace.kernels.cover(communicating) | operators.cover(collective) | annotations.cover(marks),
        trace.runtime.cover(),
        operators.cover(loading),
        operators.cover(working) | training.own,
    ]


def _with_device_work(trace: Trace, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps' starts and ends with the device work that they launched, of the steps for which it is complete."""
    work = trace.device_work
    step = launching_step(trace, work, start, end)
    launched = np.bincount(step[step >= 0], minlength=len(start))
    if not launched.any():
        return start, end
    last = np.full(len(start), -np.inf)
    np.maximum.at(last, step[step >= 0], work.end[step >= 0])
    before = start[0]
    if launched[0]:
        before = max(before, end_of_earlier_work(work.start, work.end, work.thread, step))
    start, end = start.copy(), end.copy()
    for index in range(len(start)):
        start[index] = max(before, start[index])
        end[index] = before = max(end[index], last[index], start[index])
    stop = int(np.flatnonzero(launched)[-1])
    count = stop if stop > 0 and launched[stop - 1] * 0.8 > launched[stop] else stop + 1
    return start[:count], end[:count]
