"""A measurement in a process of its own."""

import os
import signal
import subprocess
import sys

import pytest
from support import ROOT, is_running, still_there

CHILD = """
import os, subprocess, time
from walkthrough.results.progress import end_with_reader

end_with_reader()
own = subprocess.Popen(["sleep", "600"])
print("begun", os.getpid(), own.pid, flush=True)
time.sleep(600)
"""
COMMAND = f"""
import sys
from walkthrough.compare import isolated

isolated.answer((sys.executable, "-c", {CHILD!r}), {{}}, 600, lambda line, child: print(line, flush=True))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
def test_with_a_command_that_is_killed_its_process_ends_and_all_that_it_started():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True, env=environment
    ) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()[1:]]
        assert [is_running(pid) for pid in pids] == [True, True]
        command.send_signal(signal.SIGKILL)
        assert still_there(pids) == []


@pytest.mark.parametrize("name", ["overhead", "sweep", "switches", "fastest"])
def test_every_program_that_measures_ends_with_its_command(name):
    path = ROOT / "studies" / f"{name.replace('.', '/')}.py"
    assert 'if __name__ == "__main__":\n    end_with_reader()\n' in path.read_text(encoding="utf-8")
