"""Steps that take far longer than the others, and why; the typical ones that remain are those that advice is about.

One step with a gap of its own (a checkpoint, a garbage collection, another program) shifts the mean of three or six. So
does a first step that is far shorter, because the GPU was still busy with earlier work when the CPU began it. Long ones
that come again and again, traced or not, are a part of the program's time that typical steps do not show.
"""

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from walkthrough.trace.columns import Trace, median
from walkthrough.trace.idle import CAUSES, Idle
from walkthrough.trace.reader import CHECKPOINT, EVALUATION, NEW_EPOCH, Recording
from walkthrough.trace.steps import ROLES, Steps, is_backward, is_loading

FEWEST = 3  # steps: of two, neither is the odd one
FAR = 3.5  # standard deviations, by the median absolute deviation
LEAST = 0.1  # of the median: less does not matter
UNKNOWN = 0.25  # of the median: less needs a reason to be unusual; pairs of public traces agree by this the best
PART = 0.25  # of what most of the long steps' time is of: what takes less longer is noise, unless its reason is known
FIRST = 3  # steps of a program, which compile and allocate
NOTICEABLE = 0.1  # of the time: what long steps take less is within the error of any gain
MANIFOLD = 3  # times as long: two steps that differ so much are not of one kind
_SIGMA = 1.4826  # of a normal distribution, in median absolute deviations
MORE = 1.5  # times the usual: so many products that only a further forward pass explains them
UNEXPLAINED = 0.1  # of the usual step: what takes less longer needs no explanation
EXPLAINED = 0.5  # of what a step takes longer than usual: so much of it explains it
CUT = "cut"  # see `_is_cut`
FORWARD = "forward passes"  # without gradients, of an evaluation or a rollout: no trace tells which
REASONS = (EVALUATION, FORWARD, CHECKPOINT, NEW_EPOCH)
# Of each product one operator; those of attention count as well.
_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|baddbmm|_convolution|\w*convolution_overrideable|_scaled_dot_product_\w+)")
_SAVING = re.compile(r"torch[/\\]serialization\.py\(\d+\): save$|torch[/\\]distributed[/\\]checkpoint[/\\].*: \w*save$")


class Outlier(Struct, frozen=True):
    """A step that takes far longer than the median, or is `CUT`. us: its time. excess_us: that less the median step's.

    role: that whose time exceeds its median most, and by how much. gap_us, cause: the longest stretch inside the step
    in which a GPU ran no kernel, and mostly why; 0.0 and "" without a GPU. reasons: see `with_reasons`. wait_us,
    usual_wait_us: of a step that begins an epoch, how long it waits for its first batch, and how long the median
    typical step waits for its DataLoader. workers: "" where no processes load; "kept" or "anew" where the recording
    tells whether an epoch keeps those of the one before, else "yes".
    """

    name: str
    us: float
    excess_us: float
    role: str
    role_us: float
    gap_us: float
    cause: str
    reasons: tuple[str, ...] = ()
    wait_us: float = 0.0
    usual_wait_us: float = 0.0
    workers: str = ""


class LongSteps(Struct, frozen=True):
    """The steps far longer than typical ones, of all whose times are known, traced or not, but for a program's first.

    count: of them, among `of` steps. share: of the time of all these, 0..1, what the long ones take longer; longer_us:
    what one does, on average, without the profiler where steps were timed without it. every: steps from one to the
    next; 0 where that varies, or is not seen twice. traced: whether one is in the trace. reasons: those of at least
    half of them, as far as the steps tell.
    """

    count: int = 0
    of: int = 0
    share: float = 0.0
    longer_us: float = 0.0
    every: int = 0
    traced: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def weight(self) -> float:
        """The share of the time that typical steps stand for: 1.0 where long ones do not recur, or take little."""
        return 1 - self.share if self.count > 1 and self.share >= NOTICEABLE else 1.0


def is_outlier(steps: Steps) -> np.ndarray:
    """A mask over the steps: those far longer than the usual ones, which are those without a known reason; and `CUT`.

    Without reasons, less than half of the steps are outliers, and none of two; see `_far`. A step that is long because
    it waits for the DataLoader is none, unless it begins an epoch: with worker processes one step in so many waits for
    all, and is what a faster loader improves.
    """
    known = _has_reason(steps)
    far = _far(steps.duration, known) & (known | (_excess(steps).argmax(axis=0) != ROLES.index("dataloader")))
    return far | np.array([CUT in reasons for reasons in steps.reasons])


def _far(duration: np.ndarray, known: np.ndarray) -> np.ndarray:
    """A mask: steps that take far longer than the usual ones. known: which have a known reason (a mask).

    Far: `FAR` standard deviations, estimated from the median absolute deviation, and `UNKNOWN` of the median, with a
    reason `LEAST`. That median deviation is exceeded by at most half of the steps, and five times of it by fewer.
    Beside one or two usual steps, only steps with a reason are far longer.
    """
    usual = duration if known.all() else duration[~known]
    middle = float(median(usual))
    spread = _SIGMA * float(median(np.abs(usual - middle)))
    far = duration - middle > np.maximum(FAR * spread, np.where(known, LEAST, UNKNOWN) * middle)
    return far & known if len(usual) < FEWEST else far


def long_steps(trace: Trace, steps: Steps) -> LongSteps:
    """The `LongSteps` of a program, by its trace and by the times of the steps before and after that.

    An untraced step is long if it also takes far longer than any typical traced one: what is in some of those, such as
    each fourth one's wait for its batch, is typical. Where a CPU runs ahead of a GPU, the untraced steps take longer
    than typical traced ones only in sum.
    """
    recording = trace.recording or Recording()
    before, after = len(recording.untraced_step_ms), len(recording.untraced_after_ms)
    untraced_us = np.array([*recording.untraced_step_ms, *recording.untraced_after_ms]) * 1e3
    happened: dict[str, list[str]] = {}
    for happening in recording.untraced_happenings:
        happened.setdefault(happening.step, []).append(happening.what)
    untraced_reasons = [tuple(happened.get(str(index), ())) for index in range(before + after)]
    outlying = is_outlier(steps)
    traced_us, typical_us, runs_ahead = steps.duration, steps.duration[~outlying], len(trace.device_work) > 0
    long = np.empty(0, bool)
    if len(untraced_us):
        known = np.array([bool(reasons) for reasons in untraced_reasons])
        long = _far(untraced_us, known) & (untraced_us > typical_us.max() * np.where(known, 1, 1 + UNKNOWN))
        if not runs_ahead:  # else the median untraced step only launches, and others wait for the GPU
            traced_us = traced_us * (median(untraced_us[~long]) / max(median(typical_us), 1e-9))
    # The untraced ones begin with the second step of the program; of a trace from elsewhere nobody knows.
    count, begin = len(traced_us), max(recording.warmup or 0, before + 1) if trace.recording else FIRST - 1
    if recording.total_steps is not None:  # one or more steps are the profiler's own
        begin = max(begin, recording.total_steps - count - after)
    position = np.concatenate([1 + np.arange(before), begin + np.arange(count + after)])
    us = np.concatenate([untraced_us[:before], traced_us, untraced_us[before:]])
    long = np.concatenate([long[:before], outlying, long[before:]])
    reasons = [*untraced_reasons[:before], *steps.reasons, *untraced_reasons[before:]]
    seen = (position >= FIRST) & np.array([CUT not in step for step in reasons])
    seen[before + count :][:1] = False  # what the profiler leaves behind lengthens the next step
    long &= seen
    if not long.any() or (long == seen).all():
        return LongSteps(of=int(seen.sum()))
    more_us = us - median(us[seen & ~long])
    ordered = np.sort(more_us[long])
    ordered = ordered[:-1] if len(ordered) > FEWEST else ordered  # the longest may be a single accident
    much = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)] * PART
    long &= (more_us >= much) | np.array([bool(step) for step in reasons])
    found, total_us, apart = np.flatnonzero(long).tolist(), float(us[seen].sum()), np.diff(position[long])
    longer_us, traced = float(more_us[long].sum()), [step for step in found if before <= step < before + count]
    if runs_ahead:
        longer_us = max(0.0, min(longer_us, total_us - float(typical_us.mean()) * int(seen.sum())))
    return LongSteps(
        count=len(found),
        of=int(seen.sum()),
        share=longer_us / max(total_us, 1e-9),
        longer_us=longer_us / len(found),
        every=int(apart.min()) if len(apart) > 1 and apart.min() > 1 and not (apart % apart.min()).any() else 0,
        traced=bool(traced),
        reasons=tuple(
            reason
            for reason in REASONS
            for told in [traced if reason == FORWARD else found]  # which no untraced step tells
            if told and 2 * sum(reason in reasons[step] for step in told) >= len(told)
        ),
    )


def typical(steps: Steps) -> Steps:
    """The steps without the outliers."""
    outlying = is_outlier(steps)
    return steps.where(~outlying) if outlying.any() else steps


def is_undecided(typical: Steps) -> bool:
    """True for two steps of which one takes `MANIFOLD` times as long: nobody can tell which is the usual one."""
    duration = typical.duration
    return len(duration) == 2 and float(duration.max()) > MANIFOLD * float(duration.min())


def outliers(trace: Trace, steps: Steps, idle: Sequence[Idle]) -> list[Outlier]:
    """The `Outlier`s, in the order of the trace. idle: of each GPU, over all steps."""
    outlying = is_outlier(steps)
    if not outlying.any():
        return []
    excess, usual_us = _excess(steps), float(median(steps.duration[_usual(steps)]))
    loading = trace.spans(is_loading).cover()
    usual_wait_us = float(median(loading.within(steps.cpu_start[~outlying], steps.cpu_end[~outlying])))
    waits_us, by_workers = first_batches(trace, steps.cpu_start, steps.cpu_end)
    loaders = trace.recording.loaders if trace.recording else []
    persistent = {loader.persistent_workers for loader in loaders if loader.num_workers}
    workers = "yes"  # of several loaders, which one begins anew is not known
    if len(persistent) == 1:
        workers = "kept" if persistent.pop() else "anew"
    found = []
    for index in np.flatnonzero(outlying).tolist():
        role = int(excess[:, index].argmax())
        gap_us, cause = _longest_gap(idle, float(steps.start[index]), float(steps.end[index]))
        us, reasons = float(steps.duration[index]), steps.reasons[index]
        outlier = Outlier(
            steps.names[index], us, us - usual_us, ROLES[role], float(excess[role, index]), gap_us, cause, reasons
        )
        if NEW_EPOCH in reasons:
            of_workers = workers if by_workers[index] else ""
            outlier = replace(outlier, wait_us=float(waits_us[index]), usual_wait_us=usual_wait_us, workers=of_workers)
        found.append(outlier)
    return found


def _has_reason(steps: Steps) -> np.ndarray:
    return np.array([bool(reasons) for reasons in steps.reasons])


def _usual(steps: Steps) -> np.ndarray:
    """A mask: the steps that others are compared with, those without a reason; all where each has one."""
    known = _has_reason(steps)
    return np.ones(len(known), bool) if known.all() else ~known


def _excess(steps: Steps) -> np.ndarray:
    """µs by which each role of each step exceeds that role's median; float64 [roles, steps]."""
    return steps.breakdown - median(steps.breakdown[:, _usual(steps)])[:, None]


def _longest_gap(idle: Sequence[Idle], start: float, end: float) -> tuple[float, str]:
    """The longest time inside [start, end) in which one of the GPUs ran no kernel, µs, and its main cause."""
    longest, cause = 0.0, ""
    for gpu in idle:
        first, stop = np.searchsorted(gpu.end, start, "right"), np.searchsorted(gpu.start, end)
        length = np.minimum(gpu.end[first:stop], end) - np.maximum(gpu.start[first:stop], start)
        if length.max(initial=0.0) > longest:
            gap = int(length.argmax())
            longest, cause = float(length[gap]), CAUSES[int(gpu.by_gap[:, first + gap].argmax())]
    return longest, cause


def with_reasons(trace: Trace, steps: Steps) -> Steps:
    """The steps with their `reasons`: those of `REASONS` that the recording names, or that explain what a step takes.

    A step that begins an epoch asks its DataLoader once more than usual: for the batch that there was none of. That one
    holds an evaluation, only the recording tells: it has more forward passes without gradients than usual, as a rollout
    of reinforcement learning has. The first may be `CUT`.
    """
    start, end, duration = steps.cpu_start, steps.cpu_end, steps.duration
    recorded: dict[str, set[str]] = {}
    for happening in trace.recording.happenings if trace.recording else ():
        recorded.setdefault(happening.step, set()).add(happening.what)
    found = [recorded.get(name, set()) & set(REASONS) for name in steps.names]
    usual = _lower_median(duration)
    longer = np.flatnonzero(duration - usual > UNEXPLAINED * usual).tolist()
    evaluates = _evaluates(trace, start, end) if longer else []
    asked = _counts(trace.spans(is_loading).start, start, end)
    begins_epoch = (asked > 1) & (asked == _lower_median(asked) + 1)  # not where it usually asks none
    saving_us = trace.spans(_SAVING.search, trace.python).cover().within(start, end)  # with stacks only
    waits_us, by_workers = first_batches(trace, start, end)
    for index in longer:
        excess = float(duration[index]) - usual
        if saving_us[index] >= EXPLAINED * excess:
            found[index].add(CHECKPOINT)
        if evaluates[index] and EVALUATION not in found[index]:
            found[index].add(FORWARD)
        if begins_epoch[index] and not found[index] and (by_workers[index] or waits_us[index] >= EXPLAINED * excess):
            found[index].add(NEW_EPOCH)
    reasons = [tuple(reason for reason in REASONS if reason in step) for step in found]
    if _is_cut(steps):
        reasons[0] = (CUT,)
    return replace(steps, reasons=reasons)


def _is_cut(steps: Steps) -> bool:
    """Whether the first step is far shorter than all others because the GPU was busy with earlier work as it began.

    It then begins where that work ends (see `steps.end_of_earlier_work`), and what the CPU launched until then runs
    without a gap: the GPU catches up. Where the GPU is behind in all steps alike, all take the same time, and none is.
    """
    shortest = float(steps.duration[1:].min(initial=np.inf))
    shorter = shortest - float(steps.duration[0])
    moved = float(steps.start[0] - steps.cpu_start[0])
    return len(steps.names) > 1 and shorter > LEAST * shortest and moved >= EXPLAINED * shorter


def first_batches(trace: Trace, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The longest wait for a batch in each of the intervals [start, end), in order, µs; and whether processes load it.

    Two waits with nothing computed between them are one: a new epoch's is from the call that finds the last one's end
    to the end of the call that returns the first batch. The time between them starts the worker processes.
    """
    waits = trace.spans(is_loading)
    step = np.searchsorted(start, waits.start, "right") - 1
    waits, step = waits.where(inside := (step >= 0) & (waits.start < end[step])), step[inside]
    longest, by_workers = np.zeros(len(start)), np.zeros(len(start), bool)
    np.maximum.at(longest, step, waits.duration)
    by_workers[step[trace.named(waits, lambda name: "MultiProcessing" in name)]] = True
    computing = trace.spans(
        lambda name: _PRODUCT.fullmatch(name) or is_backward(name) or name.startswith("Optimizer.")
    ).start
    between = np.searchsorted(computing, waits.start[1:]) > np.searchsorted(computing, waits.end[:-1])
    one = ~between & (step[1:] == step[:-1])
    np.maximum.at(longest, step[1:][one], (waits.end[1:] - waits.start[:-1])[one])
    return longest, by_workers


def _counts(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many of the times `at`, sorted, lie in each interval."""
    return np.searchsorted(at, end) - np.searchsorted(at, start)


def _lower_median(values: np.ndarray) -> float:
    """The median; of an even count, the lower of the two in the middle: of two steps, the one that does less."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _evaluates(trace: Trace, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A mask: steps with more forward passes than usual, most of them without gradients; by their products, or else by
    their batches.

    As many more backward passes belong to as many forward passes. An operator that gradients are recorded for has a
    sequence number, and so has a compiled or custom function around others; in a trace without any, none has gradients.
    """
    operators = trace.operators
    backward = trace.named(operators, is_backward)
    passes = _counts(operators.start[backward], start, end)
    usual_passes = _lower_median(passes)
    if not usual_passes:
        return np.zeros(len(start), bool)
    product = trace.named(operators, _PRODUCT.fullmatch) & ~operators.cover(backward).holds(operators.start)
    with_gradients = operators.cover(~backward & (operators.sequence >= 0)).holds(operators.start)
    forward, alone = (_counts(operators.start[mask], start, end) for mask in (product, product & ~with_gradients))
    more = np.maximum(passes / usual_passes, 1.0) * MORE
    if usual := _lower_median(forward):
        return (forward >= usual * more) & (alone - _lower_median(alone) >= (forward - usual) / 2)
    batches = _counts(trace.spans(is_loading).start, start, end)
    return batches >= max(_lower_median(batches), 1.0) * more + 1
