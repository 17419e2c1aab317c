"""Memory and CPU time of processes: by hand, of this process, and without psutil."""

import os
from types import SimpleNamespace

from studies import processes
from studies.processes import ProcessMemory


class Process:
    """A process of psutil: 1, 2 and 3 have memory, 4 has no pss, 99 is gone."""

    def __init__(self, pid):
        if pid == 99:
            raise processes.psutil.NoSuchProcess(pid)
        self.rss = {1: 100, 2: 300, 3: 200}.get(pid, 0)

    def memory_full_info(self):
        return SimpleNamespace(rss=self.rss, pss=self.rss // 2) if self.rss else SimpleNamespace(rss=5)

    def cpu_times(self):
        return SimpleNamespace(user=self.rss / 10, system=1.0)


def test_memory_is_the_median_of_the_processes_whose_memory_is_known(monkeypatch):
    monkeypatch.setattr(processes.psutil, "Process", Process)
    assert processes.process_memory([1, 2, 3, 99]) == ProcessMemory(200, 100)
    assert processes.process_memory([4]) is None
    assert processes.process_memory([99]) is None
    assert processes.process_memory([]) is None


def test_cpu_seconds_are_of_this_process_and_of_those_named(monkeypatch):
    own = processes.cpu_seconds([])
    assert own > 0
    monkeypatch.setattr(processes.psutil, "Process", Process)
    monkeypatch.setattr(os, "times", lambda: (3.0, 4.0, 100.0, 100.0, 100.0))
    assert processes.cpu_seconds([]) == 7.0
    assert processes.cpu_seconds([1, 2]) == 7.0 + 10.0 + 1.0 + 30.0 + 1.0
    assert processes.cpu_seconds([1, 99]) is None


def test_this_process_has_memory_and_cpu_time():
    memory = processes.process_memory([os.getpid()])
    assert memory is None or min(memory.pss, memory.rss) > 0  # None on a system that has no pss
    assert processes.cpu_seconds([os.getpid()]) >= processes.cpu_seconds([])


def test_without_psutil_none_of_it_is_known(monkeypatch):
    monkeypatch.setattr(processes, "psutil", None)
    assert processes.process_memory([os.getpid()]) is None
    assert processes.cpu_seconds([os.getpid()]) is None
    assert processes.cpu_seconds([]) > 0
