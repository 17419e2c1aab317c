"""A step's time with what communicates apart: alone, overlapped by other work, and the rest by role.

The profiler plugin counts NCCL's kernels as kernels (see `steps.roles`); here a step is divided as it would be without
that. As there, a moment counts for the first part that covers it.
"""

from walkthrough.trace.columns import Trace
from walkthrough.trace.communication import exposed_on_cpu, is_collective, marked_collectives
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.steps import ROLES, Steps, roles

COMPUTE, OVERLAPPED, EXPOSED = "compute", "overlapped", "exposed"


def parts_us(trace: Trace, steps: Steps) -> dict[str, float]:
    """µs of the mean step by part; they sum to it. {} where no collective ran.

    compute: a kernel runs, and no collective's; of a CPU, "cpu_exec" is that. overlapped: a collective's kernel (on a
    CPU, gloo's mark) and other work. exposed: a collective alone. Others: as in `ROLES`.
    """
    if len(trace.kernels):
        collective = trace.named(trace.kernels, is_collective)
        if not collective.any():
            return {}
        communicating, computing = trace.kernels.cover(collective), trace.kernels.cover(~collective)
        overlapped, exposed = communicating & computing, communicating
    else:
        communicating, computing = marked_collectives(trace), Cover()
        if not len(communicating.start):
            return {}
        exposed = exposed_on_cpu(trace)
        overlapped = exposed.gaps(communicating.start, communicating.end)
    by_role = dict(zip(ROLES, roles(trace), strict=False))
    covers = {OVERLAPPED: overlapped, COMPUTE: computing, EXPOSED: exposed}
    covers |= {role: cover for role, cover in by_role.items() if role != "kernel"}
    covers["other"] = Cover(steps.start, steps.end)
    mean = shares(covers.values(), steps.start, steps.end).mean(axis=1).tolist()
    us = dict(zip(covers, mean, strict=True))
    return {name: us[name] for name in (COMPUTE, OVERLAPPED, EXPOSED, *ROLES[1:])}
