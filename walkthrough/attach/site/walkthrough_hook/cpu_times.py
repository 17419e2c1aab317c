"""How busy the CPU is in some of the steps: by this process, by its training thread, and by what loads its data."""

from __future__ import annotations

import contextlib
import os
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")  # per second, of the times in /proc/<process>/stat


class CpuTimes:
    """Sums over stretches of steps, each between `begin` and `end`, which the training thread calls: where another one
    does, its waits are not known.

    workers: the ids of the processes that load data; those that are there at both ends count.
    """

    def __init__(self) -> None:
        self.wall = self.process = self.running = self.waiting = self.workers = self.workers_wall = 0.0  # s
        self.waits_known = True
        self._begun: tuple[float, float, tuple[float, float] | None, dict[int, float]] | None = None
        self._thread = 0

    def begin(self, workers: list[int]) -> None:
        self._begun, self._thread = _now(workers), threading.get_ident()

    @property
    def begun(self) -> bool:
        """Whether a stretch has begun and not ended."""
        return self._begun is not None

    def end(self) -> None:
        if self._begun is None:
            return
        before, self._begun = self._begun, None
        now = _now(list(before[3]))
        wall = now[0] - before[0]
        self.wall += wall
        self.process += now[1] - before[1]
        known = now[2] is not None and before[2] is not None and self._thread == threading.get_ident()
        self.waits_known = self.waits_known and known
        self.running += (now[2] or (0.0, 0.0))[0] - (before[2] or (0.0, 0.0))[0]
        self.waiting += (now[2] or (0.0, 0.0))[1] - (before[2] or (0.0, 0.0))[1]
        self.workers += sum(seconds - before[3][worker] for worker, seconds in now[3].items())
        self.workers_wall += wall * len(now[3])

    def shares(self) -> dict[str, float | None]:
        """Per s of these steps: CPUs that this process used; how long the thread waited for one, and how long it slept;
        how long a worker had work for one. None where that is not known.
        """
        known = self.wall if self.waits_known else 0.0
        return {
            "cpus_used": _share(self.process, self.wall),
            "cpu_waiting": _share(self.waiting, known),
            "asleep": _share(max(0.0, known - self.running - self.waiting), known),
            "workers_cpu": _share(self.workers, self.workers_wall),
        }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _now(workers: list[int]) -> tuple[float, float, tuple[float, float] | None, dict[int, float]]:
    """Seconds: the clock, this process's CPU time, this thread's and its waits for a CPU, and of each worker both: of
    too many workers for the cores, each computes for little of its time.
    """
    times = {}
    for worker in workers:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{worker}/stat") as file:
            fields = file.read().rpartition(")")[2].split()  # a name may hold spaces
            times[worker] = (int(fields[11]) + int(fields[12])) / TICK + (_scheduled(str(worker)) or (0.0, 0.0))[1]
    return time.perf_counter(), time.process_time(), _scheduled("thread-self"), times


def _scheduled(process: str) -> tuple[float, float] | None:
    """How long a process's main thread, or "thread-self", ran, and could run and had no CPU, s; None where unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/schedstat") as file:
        running, waiting, _ = map(int, file.read().split())
        return running / 1e9, waiting / 1e9
    return None
