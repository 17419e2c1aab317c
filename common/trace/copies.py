"""What was copied to the device, from it, and on it. The plugin has no such figures; these are read off the copies."""

import re

import numpy as np
from msgspec import Struct

from common.trace.intervals import Cover

DIRECTIONS = {"h2d": r"HtoD|HostToDevice", "d2h": r"DtoH|DeviceToHost", "d2d": r"DtoD|PtoP|DeviceToDevice|PeerToPeer"}


class Copies(Struct, frozen=True):
    """Copies in one direction over the whole trace. us: their summed time.

    pinned_bytes, pageable_bytes: by the kind of host memory, as the copy's name tells it.
    """

    count: int
    bytes: int
    us: float
    pinned_bytes: int
    pageable_bytes: int

    @property
    def gigabytes_per_second(self):
        """Achieved bandwidth, 1e9 bytes a second, while copying; None where it took no time."""
        return self.bytes / self.us / 1e3 if self.us > 0 else None


def direction(trace, name):
    """A mask over `Trace.copies`: those of the direction "h2d", "d2h" or "d2d"."""
    return trace.named(trace.copies, re.compile(DIRECTIONS[name]).search)


def copies(trace):
    """The `Copies` of each direction, by its name."""
    found, size = {}, np.nan_to_num(trace.copies.bytes)
    pinned = trace.named(trace.copies, lambda name: "Pinned" in name)
    pageable = trace.named(trace.copies, lambda name: "Pageable" in name)
    for name in DIRECTIONS:
        these = direction(trace, name)
        found[name] = Copies(
            int(these.sum()),
            int(size[these].sum()),
            float(trace.copies.duration[these].sum()),
            int(size[these & pinned].sum()),
            int(size[these & pageable].sum()),
        )
    return found


def step_bytes(trace, steps):
    """Bytes that a mean step copies to the device: those of the copies that begin inside `steps`."""
    inside = direction(trace, "h2d") & Cover(steps.start, steps.end).holds(trace.copies.start)
    return float(np.nan_to_num(trace.copies.bytes)[inside].sum() / len(steps.names))
