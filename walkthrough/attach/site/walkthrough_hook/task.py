"""What the two tasks, tracing and timing, have in common: they end the program when they have what they need."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Any

from .report import Report

TRIES = 5  # a program that catches SystemExit so often goes on to its own end


class Task:
    """Called by a `Watch` at the end of each training step after the warm-up.

    running: whether steps are being measured. done: whether no further step matters.
    """

    def __init__(self, settings: dict[str, Any], report: Report) -> None:
        self.settings, self.report = settings, report
        self.running = self.done = self.finished = False
        self._tries = 0

    def end_program(self) -> None:
        """End the program as `sys.exit()` in its own code would: `finally` blocks and exit handlers run.

        Never by `os._exit`, which leaves loader workers and fork servers behind. From another thread than the main one
        as Ctrl-C would, or SIGTERM where Ctrl-C is ignored.
        """
        self.finished = True
        self._tries += 1
        if self.settings["go_on"] or self._tries > TRIES:
            self.done = True
            return
        self.report.update(ended_by_us=True)
        with contextlib.suppress(Exception):  # it may be closed, or None
            sys.stdout.flush()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        self.done = True
        heeds = callable(signal.getsignal(signal.SIGINT))
        os.kill(os.getpid(), signal.SIGINT if heeds else signal.SIGTERM)
        raise SystemExit(0)  # ends this thread

    def fail(self, reason: str) -> None:
        """Measure no more, for a reason that the user is told, and end the program."""
        self.running = False
        self.report.update(state="failed", reason=reason)
        self.end_program()

    def restart(self) -> None:
        """Another marker marks the steps from now on."""

    def foreign_profiler(self, profiler: Any) -> None:
        """The program starts a profiler of its own."""

    def foreign_profiler_ends(self, profiler: Any) -> None:
        """That profiler ends."""


def rank() -> int | None:
    """The rank of this process: torch.distributed's, else what a launcher has set; None for a single process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def world_size() -> int:
    """How many processes train together, as far as torch.distributed knows."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity mask, and its cgroup's quota rounded up where it has one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="utf-8") as file:
            quota, period = file.read().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)
