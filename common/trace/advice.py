"""What to do next: each cost that a step of the walkthrough treats, how large it is here, and the most it can return.

The predicted gain is Amdahl's bound: how many times faster the mean step would be with that cost gone, or hidden behind
other work. Nothing comes for free, so what is measured afterwards is at most that, as far as the cost is all that
changes: a bigger batch, say, also does what is once a step, such as the optimizer's, less often for an image.
The costs themselves are looked for in `levers`.
"""

from msgspec import Struct

WORTHWHILE = 0.02  # of the step: less is not worth a change


class Advice(Struct, frozen=True):
    """step: the script in steps/ that treats this, or None where none does yet. title: what to do. why: the evidence.

    share_of_step: the cost in a mean step, 0..1. predicted_gain: at most so many times faster; None where the trace
    cannot tell.
    """

    step: str | None
    title: str
    why: str
    share_of_step: float
    predicted_gain: float | None


def bounded(step, title, why, share, kept=0.0):
    """The `Advice` for a cost of that share of a step, with Amdahl's bound. kept: the part of the cost that stays."""
    share = min(max(share, 0.0), 1.0)
    left = 1 - share * (1 - kept)
    return Advice(step, title, why, share, 1 / left if left > 1e-9 else None)


def ranked(found):
    """The advice worth following, the largest gain first; where it is unknown, last."""
    worth = [each for each in found if each.share_of_step >= WORTHWHILE]
    return sorted(worth, key=lambda each: (-(each.predicted_gain or 0.0), -each.share_of_step))


def verdict(trace, steps, found, tensor):
    """One sentence on what bounds this training, and the next lever where no advice is left."""
    if trace.partial:
        return "the file is cut off or damaged, and what is missing may be what matters: record it again"
    parts, total = steps.mean_breakdown_us, max(steps.mean_us, 1e-9)
    first = ranked(found)[0].title if ranked(found) else None
    if not len(trace.kernels):
        share = (parts["cpu_exec"] + parts["runtime"]) / total
        bound = f"{share:.0%} of the step is operators on the CPU"
        lever = "the next lever is a GPU, a smaller model, or fewer or smaller images"
        return f"{bound}; the most to gain: {first}" if first else f"compute-bound: {bound}; {lever}"
    share = parts["kernel"] / total
    if first:
        return f"kernels fill {share:.0%} of the step; the most to gain: {first}"
    if share < 0.5:
        return f"kernels fill {share:.0%} of the step, and nothing stands out"
    matrix = tensor.eligible_share or 0.0
    lever = (
        "a model that computes less, or lower precision still"
        if matrix > 0.5
        else "fewer passes over memory: fused kernels (torch.compile) and channels_last"
    )
    return f"compute-bound: {share:.0%} of the step is kernels, {matrix:.0%} of their time matrix work; next is {lever}"
