"""What to do next: each cost that a step of the walkthrough treats, its size here, and the largest possible gain.

The predicted gain is Amdahl's bound: how many times faster the mean step (of the typical ones, see `typical`) would be
with that cost gone, or hidden behind other work. The measured gain is at most that, as long as only this cost changes.
(A bigger batch changes more: work that is done once per step, such as the optimizer's, is then done less often per
image.) Where more may change than the trace shows, there is no bound, and the cost's share ranks it.
`bottlenecks` looks for the costs. The estimated gain takes into account what else bounds the step: `estimates` replays
the trace for it.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from common.trace.columns import Trace
from common.trace.idle import Idle
from common.trace.nature import Nature
from common.trace.steps import Steps
from common.trace.tensor_cores import TensorCores

WORTHWHILE = 0.02  # of the step: less is not worth a change
STALLED = 0.05  # of the step: where the GPU waits for itself so long, and mostly for itself, that comes first
COMPUTE_BOUND = 0.9  # of the step: on a CPU, with more than that left at best, computing bounds it


MOST = 100  # times faster: a gain beyond that means that nothing else is in the step


class Advice(Struct, frozen=True):
    """step: the script in steps/ that treats this, or None. title: what to do. why: the evidence.

    share_of_step: the cost, or what it slows down, as a share of the mean step, 0..1. predicted_gain: at most this many
    times faster; None where there is no bound. estimated_gain: so many times faster by a replay of the trace, see
    `estimates`; None where that cannot tell.
    """

    step: str | None
    title: str
    why: str
    share_of_step: float
    predicted_gain: float | None
    estimated_gain: float | None = None


def bounded(step: str | None, title: str, why: str, share: float, remaining: float = 0.0) -> Advice:
    """The `Advice` for a cost of that share of a step, with Amdahl's bound. remaining: the part of it that stays."""
    share = min(max(share, 0.0), 1.0)
    rest = 1 - share * (1 - remaining)
    return Advice(step, title, why, share, 1 / rest if rest > 1e-9 else None)


def gain_text(advice: Advice) -> str:
    """The gain in words: "about 1.50x as fast (at most 2.05x)"."""
    bound, estimate = advice.predicted_gain, advice.estimated_gain
    if (estimate or bound or 0) >= MOST:
        return "the step is nothing else"
    most = "" if bound is None or bound >= MOST else f"at most {bound:.2f}x"
    if estimate is None:
        return f"{most} as fast" if most else "gain unknown"
    about = f"about {estimate:.2f}x as fast"
    return f"{about} ({most})" if most and most != f"at most {estimate:.2f}x" else about


def ranked(bottlenecks: Iterable[Advice]) -> list[Advice]:
    """The advice worth following, the largest gain first: the estimated one, else the bound, else without its share."""
    worthwhile = [advice for advice in bottlenecks if advice.share_of_step >= WORTHWHILE]
    return sorted(worthwhile, key=_remaining)


def _remaining(advice: Advice) -> float:
    """The share of the step that is left: by the estimate, else at best."""
    gain = advice.estimated_gain or advice.predicted_gain
    return 1 / gain if gain else 1 - advice.share_of_step


def step_time(steps: Steps, share: float) -> str:
    """That share of the mean step as text, such as "1.23 s", "4.5 ms", "678 us"."""
    us = share * steps.mean_us
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.0f} us"


def stalled(steps: Steps, idle: Sequence[Idle]) -> float:
    """The share of the steps' time in which the GPUs wait for themselves (`queued`); 0.0 where that is little."""
    total, count = max(float(steps.duration.sum()), 1e-9), max(len(idle), 1)
    queued = sum(gpu.causes_us["queued"] for gpu in idle) / count
    waiting = sum(gpu.total_us for gpu in idle) / count
    return queued / total if queued >= max(waiting / 2, STALLED * total) else 0.0


def verdict(
    trace: Trace,
    steps: Steps,
    bottlenecks: Iterable[Advice],
    tensor_cores: TensorCores,
    idle: Sequence[Idle],
    nature: Nature,
) -> str:
    """One sentence on what bounds this program, and on what is left to try where no advice remains."""
    if trace.partial:
        return "the file is cut off or damaged, and what is missing may be what matters: record it again"
    if nature.is_capture:
        return (
            f"a CUDA graph is captured here, for {nature.capturing:.0%} of the time: its kernels run when it is "
            "launched, so trace launches of it instead"
        )
    if nature.is_startup:
        return (
            f"a start-up, not a step: {nature.setting_up:.0%} of the time goes into allocating GPU memory, loading "
            "code and starting the GPU; trace after a warm-up"
        )
    parts, total = steps.mean_breakdown_us, max(steps.mean_us, 1e-9)
    advice = ranked(bottlenecks)
    first = ""
    if advice:
        known = (advice[0].estimated_gain or advice[0].predicted_gain) is not None
        first = f"{'the most to gain' if known else 'to try first, the gain unknown'}: {advice[0].title}"
    if not len(trace.kernels):
        share = (parts["cpu_exec"] + parts["runtime"]) / total
        bound = f"{share:.0%} of the step is operators on the CPU"
        if (waiting := parts["dataloader"] / total) > share:
            bound = f"{waiting:.0%} of the step waits for the DataLoader"
        if advice and (share < 0.5 or _remaining(advice[0]) <= COMPUTE_BOUND):
            return f"{bound}; {first}"
        if not advice and share < 0.5:
            return f"{bound}, and nothing stands out"
        left = "".join(f"{item.title}, " for item in advice)
        fewer = "fewer or smaller images" if nature.images else "smaller inputs"
        return f"compute-bound: {bound}; left to try: {left}a GPU, a smaller model, or {fewer}"
    share = parts["kernel"] / total
    if queued := stalled(steps, idle):
        text = (
            f"for {queued:.0%} of the step the GPU runs no kernel although its next work is launched already: it waits "
            "between the kernels of a CUDA graph, for another stream or GPU, or for work that the trace lacks, and "
            "nothing that the CPU does will change that"
        )
        return f"{text}; {first}" if first else text
    if first:
        return f"kernels fill {share:.0%} of the step; {first}"
    if share < 0.5:
        return f"kernels fill {share:.0%} of the step, and nothing stands out"
    matrix = tensor_cores.eligible_share or 0.0
    ways = ["" if nature.compiled else "fused kernels (torch.compile)", "channels_last" if nature.images else ""]
    named = " and ".join(filter(None, ways))
    left = "a model that computes less, or lower precision still"
    if matrix <= 0.5:
        left = f"fewer passes over memory{': ' if named else ''}{named}"
    bound = f"{share:.0%} of the step is kernels, {matrix:.0%} of their time matrix work"
    return f"compute-bound: {bound}; left to try: {left}"
