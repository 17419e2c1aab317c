"""Copies to the device, from it, and on it. The plugin has no such numbers; these come from the copies' events."""

import re

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.steps import Steps, of_steps

DIRECTIONS = {"h2d": r"HtoD|HostToDevice", "d2h": r"DtoH|DeviceToHost", "d2d": r"DtoD|PtoP|DeviceToDevice|PeerToPeer"}


class Copies(Struct, frozen=True):
    """Copies in one direction. us: their summed time.

    pinned_bytes, pageable_bytes: by the kind of host memory, which is part of the copy's name.
    """

    count: int
    bytes: int
    us: float
    pinned_bytes: int
    pageable_bytes: int

    @property
    def gigabytes_per_second(self) -> float | None:
        """Achieved bandwidth while copying, 1e9 bytes per second; None where it took no time."""
        return self.bytes / self.us / 1e3 if self.us > 0 else None


def direction(trace: Trace, name: str) -> np.ndarray:
    """A mask over `Trace.copies`: those of the direction "h2d", "d2h" or "d2d"."""
    return trace.named(trace.copies, re.compile(DIRECTIONS[name]).search)


def copies(trace: Trace, selected: np.ndarray) -> dict[str, Copies]:
    """The `Copies` of each direction, by its name, among the `selected` ones (a mask over `Trace.copies`)."""
    result, size = {}, np.nan_to_num(trace.copies.bytes)
    pinned = trace.named(trace.copies, lambda name: "Pinned" in name)
    pageable = trace.named(trace.copies, lambda name: "Pageable" in name)
    for name in DIRECTIONS:
        mask = direction(trace, name) & selected
        result[name] = Copies(
            int(mask.sum()),
            int(size[mask].sum()),
            float(trace.copies.duration[mask].sum()),
            int(size[mask & pinned].sum()),
            int(size[mask & pageable].sum()),
        )
    return result


def step_bytes(trace: Trace, steps: Steps) -> float:
    """Bytes that a mean step copies to the device."""
    inside = direction(trace, "h2d") & of_steps(trace, steps, trace.copies)
    return float(np.nan_to_num(trace.copies.bytes)[inside].sum() / len(steps.names))
