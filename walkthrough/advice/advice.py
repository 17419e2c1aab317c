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

from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import COMPUTE, EXPOSED, OVERLAPPED, parts_us
from walkthrough.trace.idle import Idle, longest_stall
from walkthrough.trace.kernels import TensorCores
from walkthrough.trace.operators import between_operators
from walkthrough.trace.steps import Steps
from walkthrough.trace.units import time_text
from walkthrough.trace.workload import Nature

WORTHWHILE = 0.02  # of the step: less is not worth a change
STALLED = 0.05  # of the step: where the GPU waits for itself so long, and mostly for itself, that comes first
MENTIONED = 0.01  # of the step: collectives' kernels that take less are counted as other kernels in the verdict
MUCH = 0.1  # of the step: with collectives alone for longer, a GPU is not bound by computing
COMPUTE_BOUND = 0.9  # of the step: on a CPU, with more than that left at best, computing bounds it
ALIKE = 1.05  # times faster: no replay tells gains apart that are closer
# What shortens the GPU's own work: by the step, or the title where none treats it.
ON_THE_GPU = ("01_amp", "09_channels_last", "11_fused_optimizer", "fuse attention", "overlap communication")
BIGGER_BATCH = "02_bigger_batch"
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
    """The advice worth following, the largest gain first: the estimated one, else the bound, else without its share.

    Estimates as good as equal (see `ALIKE`) are in the walkthrough's order, so the simpler and surer comes first: the
    later steps are against launches, which tracing makes slower than they are. Not those of gains that small.
    A bigger batch is ranked by the cost that the trace shows, and after what is alike: its estimate is for twice the
    batch, which gains where the trace shows hardly a cost, but trains something else.
    """
    left = sorted((advice for advice in bottlenecks if advice.share_of_step >= WORTHWHILE), key=_remaining)
    result = []
    while left:
        limit = min(ALIKE * _remaining(left[0]), 1 / ALIKE)
        alike = [item for item in left if _remaining(item) <= limit]
        if not alike or any(item.estimated_gain is None for item in alike):
            alike = left[:1]
        result += sorted(alike, key=lambda item: (item.step == BIGGER_BATCH, item.step or "99"))
        left = left[len(alike) :]
    return result


def _remaining(advice: Advice) -> float:
    """The share of the step that is left: by the estimate, else at best; see `ranked` on a bigger batch."""
    gain = advice.estimated_gain or advice.predicted_gain
    left = 1 / gain if gain else 1 - advice.share_of_step
    return max(left, 1 - advice.share_of_step) if advice.step == BIGGER_BATCH else left


def step_time(steps: Steps, share: float) -> str:
    """That share of the mean step as text, such as "1.23 s", "4.5 ms", "678 us"."""
    return time_text(share * steps.mean_us)


def stalled(steps: Steps, idle: Sequence[Idle]) -> float:
    """The share of the steps' time in which the GPUs wait for themselves (`queued`); 0.0 where that is little."""
    total, count = max(float(steps.duration.sum()), 1e-9), max(len(idle), 1)
    queued = sum(gpu.causes_us["queued"] for gpu in idle) / count
    waiting = sum(gpu.total_us for gpu in idle) / count
    return queued / total if queued >= max(waiting / 2, STALLED * total) else 0.0


def despite_a_stall(advice: Iterable[Advice]) -> list[Advice]:
    """The advice for a trace whose GPU mostly waits for itself: bounds over what the CPU does say nothing then.

    What a replay estimated stays: it has explained the waits.
    """
    return [item for item in advice if item.estimated_gain or (item.step or item.title) in ON_THE_GPU]


def verdict(
    trace: Trace,
    steps: Steps,
    advice: Sequence[Advice],
    tensor_cores: TensorCores,
    idle: Sequence[Idle],
    nature: Nature,
    one_step: str = "the step",
) -> str:
    """One sentence on what bounds this program, and on what is left to try where no advice (ranked) remains.

    one_step: what the steps are called, where they are not all.
    """
    if trace.partial:
        return "the file is cut off or damaged, and what is missing may be what matters: record it again"
    if not nature.has_steps:
        return nature.why_no_steps
    parts, total = steps.mean_breakdown_us, max(steps.mean_us, 1e-9)
    first = ""
    if advice:
        gains = [item.estimated_gain or item.predicted_gain or 0.0 for item in advice]
        most = "the most to gain" if gains[0] >= max(gains) else "to do first"
        at_best = "" if len(trace.kernels) else "at best "  # on a CPU, what replaces a cost may cost more
        first = f"{at_best + most if gains[0] else 'to try first, the gain unknown'}: {advice[0].title}"
    if not len(trace.kernels):
        waiting, exchanging = parts["dataloader"] / total, parts["communication"] / total
        python = float(between_operators(trace, steps).total) / max(float(steps.duration.sum()), 1e-9)
        share = max(0.0, 1 - waiting - exchanging - python)  # also what a closure in Optimizer.step does
        bound = f"{share:.0%} of {one_step} is operators on the CPU"
        unseen = "there is a GPU, and nothing of it is recorded; " if trace.properties else ""
        if exchanging > max(share, waiting):
            bound = f"for {exchanging:.0%} of {one_step} a collective runs"
        elif waiting > share:
            bound = f"{waiting:.0%} of {one_step} waits for the DataLoader"
        if advice and (share < 0.5 or _remaining(advice[0]) <= COMPUTE_BOUND):
            return f"{unseen}{bound}; {first}"
        if not advice and share < 0.5:
            return f"{unseen}{bound}, and nothing stands out"
        left = "".join(f"{item.title}, " for item in advice)
        fewer = "fewer or smaller images" if nature.images else "smaller inputs"
        if unseen:
            return f"{unseen}compute-bound: {bound}"
        return f"compute-bound: {bound}; left to try: {left}a GPU, a smaller model, or {fewer}"
    share, alone = _computing(trace, steps)
    computing = "kernels" if alone is None else "kernels that compute"
    communicating = "" if alone is None else f", communication alone {alone:.0%}"
    filled = f"{computing} fill {share:.0%} of {one_step}{communicating}"
    if queued := stalled(steps, idle):
        text = (
            f"for {queued:.0%} of {one_step} the GPU runs no kernel although the next one is launched already, and "
            "nothing that the CPU does will change that"
        )
        longest, total_us = longest_stall(trace, idle), float(steps.duration.sum())
        if longest and longest.first and longest.us >= 0.9 * queued * total_us:
            rest = max(1e-9, 1 - longest.us / total_us)
            matrix = tensor_cores.eligible_share or 0.0
            of_rest = f"{computing} run {min(1.0, share / rest):.0%} of the time"
            if alone is not None:
                of_rest += f", communication alone {min(1.0, alone / rest):.0%}"
            of_what = "that" if alone is None else "all kernels' time"
            text = (
                f"for the first {longest.us / 1e3:.1f} ms the GPU most likely still runs what was launched before the "
                f"trace; in the rest {of_rest}, and {matrix:.0%} of {of_what} is matrix work"
            )
        return f"{text}; {first}" if first else text
    if first:
        return f"{filled}; {first}"
    if (alone or 0.0) > MUCH:
        return f"{filled}, and nothing else stands out"
    if share < 0.5:
        return f"{filled}, and nothing stands out"
    matrix = tensor_cores.eligible_share or 0.0
    ways = ["" if nature.compiled else "fused kernels (torch.compile)", "channels_last" if nature.images else ""]
    named = " and ".join(filter(None, ways))
    left = "a model that computes less, or lower precision still"
    if matrix <= 0.5:
        left = f"fewer passes over memory{': ' if named else ''}{named}"
    whose = "their" if alone is None else "all kernels'"
    bound = f"{share:.0%} of {one_step} is {computing}{communicating}, {matrix:.0%} of {whose} time matrix work"
    return f"compute-bound: {bound}; left to try: {left}"


def _computing(trace: Trace, steps: Steps) -> tuple[float, float | None]:
    """The share of the mean step in which kernels compute, and that in which only collectives run.

    Of all kernels, and None, where collectives' kernels take less than `MENTIONED` of the step.
    """
    total, parts = max(steps.mean_us, 1e-9), parts_us(trace, steps)
    if not parts or parts[OVERLAPPED] + parts[EXPOSED] < MENTIONED * total:
        return steps.mean_breakdown_us["kernel"] / total, None
    return (parts[COMPUTE] + parts[OVERLAPPED]) / total, parts[EXPOSED] / total
