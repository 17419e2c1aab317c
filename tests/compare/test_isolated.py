"""Programs in processes of their own: followed, and ended with all that they started."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import ROOT, is_running, start_program, still_there

from walkthrough.compare import isolated

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
    program = (ROOT / "studies" / f"{name}.py").read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')[2]
    assert program.strip().startswith(("end_with_reader()", "study.serve("))  # which calls it


@pytest.fixture
def step(tmp_path):
    """step(body): the file of a small step."""

    def make(body, name="00_step"):
        file = tmp_path / f"{name}.py"
        file.write_text(body)
        return file

    return make


def run(file, *words):
    """A step's outcome, its events, its lines."""
    events, lines = [], []
    return isolated.run(file, words, events.append, lines.append), events, lines


def test_what_a_step_prints_is_followed_line_by_line(step):
    file = step(
        "import os, subprocess, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from walkthrough.results import progress\n"
        "print(__name__, os.path.basename(__file__), *sys.argv[1:])\n"
        "progress.report('warm-up', 1, 3)\n"
        "print('on stderr', file=sys.stderr)\n"
        "subprocess.run(['echo', 'of a child'])\n"
    )
    outcome, events, lines = run(file, "--quick", "a b")
    assert (outcome.code, outcome.reason) == (0, "")
    assert lines == ["__main__ 00_step.py --quick a b", "on stderr", "of a child"]
    assert [(event["phase"], event["done"]) for event in events] == [("warm-up", 1)]


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("import sys\nprint('00_step: no such model', file=sys.stderr)\nsys.exit(2)", 2, "no such model"),
        ("raise RuntimeError('a defect')", 1, "RuntimeError: a defect"),
        ("import sys\nprint('00_step.py: no --such', file=sys.stderr)\nsys.exit(2)", 2, "no --such"),
        ("import os\nprint('last')\nos._exit(3)", 3, "last"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", -15, "killed by SIGTERM"),
    ],
    ids=["its input", "a defect", "its options", "its own code", "killed", "terminated"],
)
def test_how_a_step_ends_reaches_the_one_who_started_it(step, body, code, reason):
    outcome, _, _ = run(step(body))
    assert outcome.code == code
    assert outcome.reason.startswith(reason)


def test_environment_variables_reach_a_step(step, monkeypatch):
    body = "import os\nprint(os.environ.get('WALKTHROUGH_TEST'), os.environ['TORCH_CPP_LOG_LEVEL'])"
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    for value in ("one", "two"):
        monkeypatch.setenv("WALKTHROUGH_TEST", value)
        assert run(step(body))[2] == [f"{value} INFO"]
    monkeypatch.delenv("WALKTHROUGH_TEST")
    assert run(step(body))[2] == ["None INFO"]
    assert "WALKTHROUGH_PROGRESS" not in os.environ


WAITING = """
import sys, time
try:
    print("waiting")
    time.sleep(600)
except KeyboardInterrupt:
    open({note!r}, "w").close()
    sys.exit(130)
"""
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from walkthrough.compare import isolated
isolated.run(Path({file!r}), [], print, lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("stop", [os.killpg, os.kill], ids=["Ctrl-C", "SIGINT"])
def test_a_step_is_stopped_first_and_cleans_up(step, tmp_path, stop):
    note = tmp_path / "cleaned up"
    program = PROGRAM.format(root=str(ROOT), file=str(step(WAITING.format(note=str(note)))))
    process = start_program(sys.executable, "-c", program)
    assert process.stdout and process.stdout.readline() == "waiting\n"
    stop(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1  # that of the program above, not the step's
    assert note.exists()


TRAINING = """
import multiprocessing, os, sys, time
sys.path.insert(0, {root!r})
from common.options import step_options
from common.session import run_step
from torch.utils.data import DataLoader

def train_step(*batch):
    [worker] = multiprocessing.active_children()
    print("training", os.getpid(), worker.pid, flush=True)
    time.sleep(600)  # as if it compiled

def main():
    args = step_options("")
    run_step(__file__, args, DataLoader([0.0] * 40, batch_size=4, num_workers=1), train_step)

if __name__ == "__main__":
    main()
"""


def test_a_step_whose_command_is_killed_ends_with_its_workers(step, tmp_path):
    words = ["--device", "cpu", "--logdir", str(tmp_path / "logs"), "--data", str(tmp_path)]
    program = PROGRAM.format(root=str(ROOT), file=str(step(TRAINING.format(root=str(ROOT)))))
    program = program.replace("[], print", f"{words!r}, lambda event: None")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()[1:]]
        assert [is_running(pid) for pid in pids] == [True, True]
        command.kill()
        assert still_there(pids) == []


def test_an_answer_is_written_in_one_piece_as_others_may_write_into_the_same_pipe(monkeypatch):
    written = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    isolated.print_answer({"value": 1})
    assert written == ['{"answer": {"value": 1}}\n']
