"""What an expert would point at in a trace: `findings(look)`, one rule a function, by where it looks."""

from collections.abc import Callable

from walkthrough.advice.findings import host, kernels, moves, whole
from walkthrough.advice.findings.finding import Finding, Look

RULES: tuple[Callable[[Look], Finding | None], ...] = (
    whole.graph_capture,
    whole.startup,
    whole.outlier_steps,
    host.device_queue_stall,
    kernels.unfused_attention,
    kernels.misaligned_matmul,
    kernels.fusable_elementwise,
    moves.layout_conversions,
    kernels.precision_mix,
    kernels.recomputation,
    kernels.depthwise,
    host.unfused_optimizer,
    host.host_python,
    host.blocking_copies,
    host.many_small_launches,
    whole.exposed_collectives,
)


WHOLE_TRACE = ("graph_capture", "startup", "outlier_steps")


def findings(look: Look) -> list[Finding]:
    """All findings of a trace, the longest time first, those about the trace as a whole before all others.

    Only those of a trace that shows no step of a running program: what its kernels do, they do once.
    """
    found = [finding for rule in RULES if (finding := rule(look))]
    of_the_trace = [finding for finding in found if finding.id in WHOLE_TRACE]
    if not look.nature.has_steps:
        return of_the_trace
    others = [finding for finding in found if finding.id not in WHOLE_TRACE]
    return of_the_trace + sorted(others, key=lambda finding: -finding.us_per_step)
