"""Findings about the trace as a whole: what it is a trace of, and what it can be used for."""

from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import COLLECTIVE
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.units import counted, time_text

MANY_COLLECTIVES = 50  # of a step: DDP has one for 25 MB of gradients, so 50 for a model of 300 million parameters
SHORT_COLLECTIVE = 250.0  # µs: ten times what the smallest takes between GPUs of one machine


def exposed_collectives(look: Look) -> Finding | None:
    """Collectives with no kernel beside them."""
    collectives = look.communication
    if collectives is None:
        return None
    us = collectives.exposed_us / look.step_count
    if not look.worthwhile(us):
        return None
    count = collectives.count / look.step_count
    each = collectives.us / max(collectives.count, 1)
    do = "larger buckets (bucket_cap_mb) if they are many, smaller ones if they begin late"
    if collectives.exchanges:
        do = "exchange fewer bytes (16 bits), or exchange beside layers that do not need the result"
    elif look.nature.training is False:
        do = "products fused with their collectives, or fewer GPUs for each answer"
    elif count >= MANY_COLLECTIVES and each < SHORT_COLLECTIVE:
        do = (
            f"join them in buckets, as DDP does with gradients: one takes {time_text(each)}, of which a launch and a "
            "wait for the other ranks are the same for any size"
        )
    communicating = look.while_running(look.of_kind(COLLECTIVE))
    return Finding(
        "exposed_collectives",
        "collectives that nothing hides",
        f"{counted(count, 'collective per step takes', 'collectives per step take')} "
        f"{time_text(collectives.us / look.step_count)}, {time_text(us)} of it "
        "with no other kernel beside them; waiting for the slowest rank is part of it",
        us,
        f"compare the ranks first; then {do}",
        advice="overlap communication",
        when=look.while_running(~look.of_kind(COLLECTIVE)).gaps(communicating.start, communicating.end),
    )


def graph_capture(look: Look) -> Finding | None:
    """A CUDA graph is captured: what is recorded is not how the program runs."""
    if not look.nature.capturing:
        return None
    us = look.nature.capturing * look.total_us / look.step_count
    if not look.worthwhile(us):
        return None
    return Finding(
        "graph_capture",
        "a CUDA graph is captured",
        "kernels are recorded meanwhile, and run when the graph is launched",
        us,
        "trace the launches of the graph, after its capture",
    )


def startup(look: Look) -> Finding | None:
    """Memory is allocated, code is loaded, the GPU starts."""
    us = look.idle_us_per_step("setup")
    if not look.worthwhile(us):
        return None
    return Finding(
        "startup",
        "set-up inside the traced steps",
        "the GPU waits while memory is allocated, code is loaded or it starts",
        us,
        "trace after a warm-up: schedule(wait, warmup, active); see that no step has larger tensors than those before",
        when=look.while_idle("setup"),
    )


def outlier_steps(look: Look) -> Finding | None:
    """Steps that take far longer than the others."""
    if not look.outliers:
        return None
    worst = max(look.outliers, key=lambda step: step.excess_us)
    gap = (
        f"; no kernel runs for {time_text(worst.gap_us)} of it in one stretch, mostly {worst.cause}"
        if worst.cause
        else ""
    )
    names = ", ".join(step.name for step in look.outliers[:5])
    longest = f"step {worst.name}"
    if len(look.outliers) > 1:
        longest = f"steps {names}; the longest, {longest},"
    doing = f", and {worst.doing}" if worst.doing else ""
    do = "see in the Trace view what happens there: a garbage collection, a larger batch, another program"
    if doing:
        do = worst.remedy or "see how often it does; to trace training alone, trace other steps"
    steps, far = look.all_steps, is_outlier(look.all_steps)
    return Finding(
        "outlier_steps",
        "steps that take far longer than the others",
        f"{longest} takes {time_text(worst.excess_us)} more than the median step, {time_text(worst.role_us)} of it "
        f"{worst.role}{gap}{doing}. Other findings and advice leave them out",
        sum(step.excess_us for step in look.outliers) / len(steps.names),
        do,
        when=Cover(steps.start[far], steps.end[far]),
    )
