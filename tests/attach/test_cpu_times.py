"""How busy processes are, by what Linux writes about them."""

import io
import sys
import threading

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook import watch
from walkthrough_hook.watch import TICK, CpuTimes


@pytest.fixture
def files(monkeypatch):
    """What is in /proc, by the end of its path; the clock goes on by 10 s each time."""
    contents, clock = {}, iter(range(0, 100, 10))
    monkeypatch.setattr(watch, "open", lambda path: io.StringIO(contents[path]), raising=False)
    monkeypatch.setattr(watch.time, "perf_counter", lambda: float(next(clock)))
    return contents


def write(files, computed, waited, own_waited=0.0):
    """Seconds of worker 7 and of this thread since they began."""
    files["/proc/7/stat"] = f"7 (a b) c) S {'0 ' * 10}{int(computed * TICK)} 0 0"
    files["/proc/7/schedstat"] = f"0 {int(waited * 1e9)} 1"
    files["/proc/thread-self/schedstat"] = f"0 {int(own_waited * 1e9)} 1"


@pytest.mark.parametrize(("computed", "waited", "share"), [(1.0, 0.0, 0.1), (1.0, 8.0, 0.9), (9.0, 0.0, 0.9)])
def test_a_worker_that_waits_for_a_core_has_work(files, computed, waited, share):
    times = CpuTimes()
    write(files, 100.0, 50.0)
    times.begin([7])
    write(files, 100.0 + computed, 50.0 + waited, own_waited=2.0)
    times.end()
    assert times.shares()["workers_cpu"] == share
    assert times.shares()["cpu_waiting"] == 0.2


def test_the_waits_of_two_threads_are_no_difference(files):
    times = CpuTimes()
    write(files, 0.0, 0.0, own_waited=5.0)
    times.begin([])
    thread = threading.Thread(target=times.end)
    thread.start()
    thread.join()
    assert times.shares()["cpu_waiting"] is None
