"""What changes over a trace and is drawn as a curve: the memory of each device."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from walkthrough.trace.memory import CPU, Memory, thinned

MAX_POINTS = 20_000  # of a counter


def counters(memories: Sequence[Memory], groups: Sequence[str], begin: float) -> list[dict[str, Any]]:
    """The counters of the memory of each device. groups: those of the GPUs that have lanes."""
    answer = []
    for memory in memories:
        name = "CPU" if memory.device == CPU else f"GPU {memory.device}"
        of_gpus = sum(other.device != CPU for other in memories)
        # ROCm numbers a GPU among all processors in its kernels, and among the GPUs in its memory events.
        alone = memory.device != CPU and of_gpus == 1 and len(set(groups)) == 1
        for what, values in (("allocated", memory.allocated), ("reserved", memory.reserved)):
            known = np.flatnonzero(np.isfinite(values))
            if not len(known) or (what == "reserved" and memory.device == CPU):
                continue
            points = known[thinned(values[known], MAX_POINTS)]
            answer.append(
                {
                    "label": f"{name} memory, {what}",
                    "unit": "bytes",
                    "group": groups[0] if alone else name,
                    "time": (memory.time[points] - begin).round(3).tolist(),
                    "value": values[points].tolist(),
                }
            )
    return answer
