"""Collectives between GPUs, and how much of them the GPU's other kernels hide.

Goes beyond the plugin, which takes today's NCCL kernels for ordinary ones (see `steps.roles`).
"""

from msgspec import Struct

from common.trace.intervals import Cover


class Communication(Struct, frozen=True):
    """NCCL's and RCCL's kernels. count: in the trace. µs over all steps: some ran (`us`), others too (`hidden_us`)."""

    count: int
    us: float
    hidden_us: float

    @property
    def exposed_us(self):
        """µs in which nothing but communication ran."""
        return self.us - self.hidden_us


def is_collective(name):
    return name.startswith(("nccl", "rccl", "void nccl", "mscclKernel"))


def communication(trace, steps):
    """The `Communication` of a trace, or None where no collective ran."""
    mine = trace.named(trace.kernels, is_collective)
    if not mine.any():
        return None
    talk, work = (Cover(trace.kernels.start[mask], trace.kernels.end[mask]) for mask in (mine, ~mine))
    both = (talk | work).within(steps.start, steps.end)
    total = talk.within(steps.start, steps.end)
    hidden = total - (both - work.within(steps.start, steps.end))
    return Communication(int(mine.sum()), float(total.sum()), float(hidden.sum()))
