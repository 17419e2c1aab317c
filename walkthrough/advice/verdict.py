"""What a trace comes down to, in words: one sentence on what bounds the program, and gains as text."""

from collections.abc import Sequence

from walkthrough.advice.catalogue import Advice
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.communication import COMPUTE, EXPOSED, OVERLAPPED
from walkthrough.trace.idle import longest_stall

STALLED = 0.05  # of the step: where the GPU waits for itself so long, and mostly for itself, that comes first
MENTIONED = 0.01  # of the step: collectives' kernels that take less are counted as other kernels in the verdict
MUCH = 0.1  # of the step: with collectives alone for longer, a GPU is not bound by computing
COMPUTE_BOUND = 0.9  # of the step: on a CPU, with more than that left at best, computing bounds it
MOST = 100  # times faster: a gain beyond that means that nothing else is in the step


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


def verdict(a: Analysis, advice: Sequence[Advice]) -> str:
    """One sentence on what bounds the typical steps, and on what is left to try where no advice (ranked) remains."""
    if a.trace.partial:
        return "the file is cut off or damaged, and what is missing may be what matters: record it again"
    if not a.workload.has_steps:
        return a.workload.why_no_steps
    one_step = "a typical step" if a.outliers else "the step"
    return _of_gpu(a, advice, one_step) if len(a.trace.kernels) else _of_cpu(a, advice, one_step)


def _first(advice: Sequence[Advice], at_best: str = "") -> str:
    """What to do first; "" without advice. at_best: before a gain that may be none."""
    if not advice:
        return ""
    gains = [item.estimated_gain or item.predicted_gain or 0.0 for item in advice]
    if not gains[0]:
        return f"to try first, the gain unknown: {advice[0].title}"
    return f"{at_best}{'the most to gain' if gains[0] >= max(gains) else 'to do first'}: {advice[0].title}"


def _of_cpu(a: Analysis, advice: Sequence[Advice], one_step: str) -> str:
    parts, total = a.steps.mean_breakdown_us, max(a.steps.mean_us, 1e-9)
    waiting, exchanging = parts["dataloader"] / total, parts["communication"] / total
    python = float(a.between_operators.total) / a.total_us
    share = max(0.0, 1 - waiting - exchanging - python)  # also what a closure in Optimizer.step does
    bound = f"{share:.0%} of {one_step} is operators on the CPU"
    unseen = "there is a GPU, and nothing of it is recorded; " if a.trace.properties else ""
    if exchanging > max(share, waiting):
        bound = f"for {exchanging:.0%} of {one_step} a collective runs"
    elif waiting > share:
        bound = f"{waiting:.0%} of {one_step} waits for the DataLoader"
    if advice and (share < 0.5 or advice[0].remaining <= COMPUTE_BOUND):
        return f"{unseen}{bound}; {_first(advice, 'at best ')}"  # what replaces a cost on a CPU may cost more
    if share < 0.5:
        return f"{unseen}{bound}, and nothing stands out"
    if unseen:
        return f"{unseen}compute-bound: {bound}"
    left = "".join(f"{item.title}, " for item in advice)
    fewer = "fewer or smaller images" if a.workload.images else "smaller inputs"
    return f"compute-bound: {bound}; left to try: {left}a GPU, a smaller model, or {fewer}"


def _of_gpu(a: Analysis, advice: Sequence[Advice], one_step: str) -> str:
    share, alone = _computing(a)
    matrix, first = a.tensor_cores.eligible_share or 0.0, _first(advice)
    computing = "kernels" if alone is None else "kernels that compute"
    communicating = "" if alone is None else f", communication alone {alone:.0%}"
    if stalled(a):
        text = _of_stall(a, share, alone, one_step)
        return f"{text}; {first}" if first else text
    filled = f"{computing} fill {share:.0%} of {one_step}{communicating}"
    if first:
        return f"{filled}; {first}"
    if (alone or 0.0) > MUCH:
        return f"{filled}, and nothing else stands out"
    if share < 0.5:
        return f"{filled}, and nothing stands out"
    left = "a model that computes less, or lower precision still"
    if matrix <= 0.5:
        fused = "" if a.workload.compiled else "fused kernels (torch.compile)"
        named = " and ".join(filter(None, [fused, "channels_last" if a.workload.images else ""]))
        left = f"fewer passes over memory{': ' if named else ''}{named}"
    whose = "their" if alone is None else "all kernels'"
    bound = f"{share:.0%} of {one_step} is {computing}{communicating}, {matrix:.0%} of {whose} time matrix work"
    return f"compute-bound: {bound}; left to try: {left}"


def _computing(a: Analysis) -> tuple[float, float | None]:
    """The share of the mean step in which kernels compute, and that in which only collectives run.

    Of all kernels, and None, where collectives' kernels take less than `MENTIONED` of the step.
    """
    total, parts = max(a.steps.mean_us, 1e-9), a.parts_us
    if not parts or parts[OVERLAPPED] + parts[EXPOSED] < MENTIONED * total:
        return a.steps.mean_breakdown_us["kernel"] / total, None
    return (parts[COMPUTE] + parts[OVERLAPPED]) / total, parts[EXPOSED] / total


def stalled(a: Analysis) -> float:
    """The share of the steps' time in which the GPUs wait for themselves (`queued`); 0.0 where that is little."""
    count = max(len(a.idle), 1)
    queued = sum(gpu.causes_us["queued"] for gpu in a.idle) / count
    waiting = sum(gpu.total_us for gpu in a.idle) / count
    return queued / a.total_us if queued >= max(waiting / 2, STALLED * a.total_us) else 0.0


def _of_stall(a: Analysis, share: float, alone: float | None, one_step: str) -> str:
    """On a GPU that mostly waits for itself. share, alone: see `_computing`."""
    queued, longest, total_us = stalled(a), longest_stall(a.trace, a.idle), float(a.steps.duration.sum())
    if not longest or not longest.first or longest.us < 0.9 * queued * total_us:
        return (
            f"for {queued:.0%} of {one_step} the GPU runs no kernel although the next one is launched already, and "
            "nothing that the CPU does will change that"
        )
    rest = max(1e-9, 1 - longest.us / total_us)
    computing = "kernels" if alone is None else "kernels that compute"
    of_rest = f"{computing} run {min(1.0, share / rest):.0%} of the time"
    if alone is not None:
        of_rest += f", communication alone {min(1.0, alone / rest):.0%}"
    of_what = "that" if alone is None else "all kernels' time"
    return (
        f"for the first {longest.us / 1e3:.1f} ms the GPU most likely still runs what was launched before the "
        f"trace; in the rest {of_rest}, and {a.tensor_cores.eligible_share or 0.0:.0%} of {of_what} is matrix work"
    )
