"""Memory and CPU time of processes, such as a loader's workers. Without psutil none of it is known."""

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

try:
    import psutil
except ImportError:  # a recording needs no more than torch, torchvision and tensorboard
    psutil = None


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process: rss is all that it has in memory; pss divides pages shared with others among their users."""

    rss: int
    pss: int


def process_memory(pids: Iterable[int]) -> ProcessMemory | None:
    """The medians over these processes; those that have ended are left out.

    None where there are none, and where the system does not report pss (only Linux does).
    """
    if psutil is None:
        return None
    sizes = []
    for pid in pids:
        try:
            memory = psutil.Process(pid).memory_full_info()
        except psutil.Error:
            continue
        if hasattr(memory, "pss"):
            sizes.append((memory.rss, memory.pss))
    if not sizes:
        return None
    rss, pss = zip(*sizes, strict=True)
    return ProcessMemory(int(statistics.median(rss)), int(statistics.median(pss)))


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """CPU seconds, user and system, that this process and these took so far; None where one of them is not known."""
    total = sum(os.times()[:2])
    for pid in pids:
        if psutil is None:
            return None
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return None
        total += times.user + times.system
    return total
