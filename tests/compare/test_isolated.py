"""Programs in processes of their own: followed, and ended with all that they started."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import ROOT, is_running, still_there

from walkthrough.compare import isolated

TRAINING = """
import multiprocessing, os, sys, time
from common.options import step_options
from common.session import run_step
from torch.utils.data import DataLoader

def train_step(*batch):
    [worker] = multiprocessing.active_children()
    print("begun", os.getpid(), worker.pid, flush=True)
    time.sleep(600)  # as if it compiled

def main():
    args = step_options("")
    run_step(__file__, args, DataLoader([0.0] * 40, batch_size=4, num_workers=1), train_step)

if __name__ == "__main__":
    main()
"""
COMMAND = """
from pathlib import Path
from walkthrough.compare import isolated

isolated.run(Path({file!r}), {words!r}, lambda event: None, lambda line: print(line, flush=True))
"""


@pytest.fixture
def step(tmp_path):
    """step(body): the file of a small step."""

    def make(body):
        file = tmp_path / "00_step.py"
        file.write_text(body)
        return file

    return make


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
def test_with_a_command_that_is_killed_its_step_and_what_that_started_end(step, tmp_path):
    words = ["--device", "cpu", "--logdir", str(tmp_path / "logs"), "--data", str(tmp_path)]
    code = COMMAND.format(file=str(step(TRAINING)), words=words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()[1:]]
        assert [is_running(pid) for pid in pids] == [True, True]
        command.kill()
        assert still_there(pids) == []


def run(file, *words):
    """A step's outcome, its events, its lines."""
    events, lines = [], []
    return isolated.run(file, words, events.append, lines.append), events, lines


def test_what_a_step_prints_is_followed_line_by_line(step, monkeypatch):
    monkeypatch.setenv("WALKTHROUGH_TEST", "one")
    file = step(
        "import os, subprocess, sys\n"
        "from walkthrough.results import progress\n"
        "print(__name__, os.environ['WALKTHROUGH_TEST'], *sys.argv[1:])\n"
        "progress.report('warm-up', 1, 3)\nprogress.report('w', 2, 3, 12.5)\n"
        "print('{hi', file=sys.stderr)\n"
        "subprocess.run(['echo', 'of a child'])\n"
    )
    outcome, events, lines = run(file, "--quick", "a b")
    assert outcome == isolated.Outcome(0, "")
    assert lines == ["__main__ one --quick a b", "{hi", "of a child"]
    assert [tuple(event.values()) for event in events] == [("warm-up", 1, 3, None), ("w", 2, 3, 12.5)]


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("print('00_step: no such model', file=sys.stderr)\nsys.exit(2)", 2, "no such model"),
        ("print('00_step.py: no --such', file=sys.stderr)\nprint('more')\nsys.exit(2)", 2, "no --such"),
        ("raise RuntimeError('a defect')", 1, "RuntimeError: a defect"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL (most likely for lack of memory)"),
    ],
    ids=["its input", "its options", "a defect", "killed"],
)
def test_how_a_step_ends_reaches_the_one_who_started_it(step, body, code, reason):
    assert run(step(f"import os, signal, sys\n{body}"))[0] == isolated.Outcome(code, reason)


def test_a_compiler_is_asked_to_clean_up_before_it_is_killed(monkeypatch):
    """g++ removes what it had half written; left in torch's cache, that would break every later compile."""
    happened = []
    monkeypatch.setattr(isolated, "time", SimpleNamespace(sleep=happened.append))
    monkeypatch.setattr(isolated.os, "killpg", lambda *killed: happened.append(killed))
    isolated.end_with_children(SimpleNamespace(pid=7))
    assert happened == [(7, signal.SIGTERM), isolated.TERMINATE_SECONDS, (7, signal.SIGKILL)]
