"""Steps in processes of their own, fresh or forked from a prepared one: both behave alike."""

import os
import signal
import subprocess
import sys

import pytest
from support import ROOT, is_running, listen_to_ctrl_c, still_there

from walkthrough.compare import forked, runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="steps are forked on Linux only")


@pytest.fixture
def step(tmp_path, monkeypatch):
    """step(body): the file of a small step. The prepared process imports nothing, so that it starts at once."""
    monkeypatch.setattr(forked, "MODULES", ["json"])

    def make(body, name="00_step"):
        file = tmp_path / f"{name}.py"
        file.write_text(body)
        return file

    return make


@pytest.fixture(params=[False, True], ids=["fresh", "forked"])
def run(request):
    """run(file, *words): its outcome, its events, its lines."""

    def run_step(file, *words):
        events, lines = [], []
        return runner.run(file, words, events.append, lines.append, request.param), events, lines

    return run_step


def test_what_a_step_prints_is_followed_line_by_line(step, run):
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
        ("import os\nprint('last')\nos._exit(3)", 3, "last"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", -15, "killed by SIGTERM"),
    ],
    ids=["its input", "a defect", "its own code", "killed", "terminated"],
)
def test_how_a_step_ends_reaches_the_one_who_started_it(step, run, body, code, reason):
    outcome, _, _ = run(step(body))
    assert outcome.code == code
    assert outcome.reason.startswith(reason)


def test_environment_variables_reach_a_step(step, run, monkeypatch):
    body = "import os\nprint(os.environ.get('WALKTHROUGH_TEST'), os.environ['TORCH_CPP_LOG_LEVEL'])"
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    for value in ("one", "two"):
        monkeypatch.setenv("WALKTHROUGH_TEST", value)
        assert run(step(body))[2] == [f"{value} INFO"]
    monkeypatch.delenv("WALKTHROUGH_TEST")
    assert run(step(body))[2] == ["None INFO"]
    assert "WALKTHROUGH_PROGRESS" not in os.environ


def test_a_step_does_not_see_the_state_of_the_one_before(step, run):
    body = (
        "import json, os\nprint(hasattr(json, 'seen'), os.environ.get('SEEN'))\njson.seen = os.environ['SEEN'] = 'yes'"
    )
    for _ in range(2):
        assert run(step(body))[2] == ["False None"]


def test_workers_of_a_step_start_as_in_any_other_program(step, run):
    code = "import multiprocessing\nprint(multiprocessing.get_start_method())"
    default = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert run(step(code))[2] == [default]


WORKERS = """
import multiprocessing

def work(number):
    return number * 2

def main():
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(pool.map(work, [1, 2]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_find_the_functions_of_their_step(step, run, method):
    assert run(step(WORKERS.format(method=method)))[2] == ["[2, 4]"]


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
from walkthrough.compare import forked, runner
forked.MODULES = []
runner.run(Path({file!r}), [], print, lambda line: print(line, flush=True), {is_forked})
"""


@pytest.mark.parametrize("is_forked", [False, True], ids=["fresh", "forked"])
@pytest.mark.parametrize("stop", [os.killpg, os.kill], ids=["Ctrl-C", "SIGINT"])
def test_a_step_is_stopped_first_and_cleans_up(step, tmp_path, stop, is_forked):
    note = tmp_path / "cleaned up"
    program = PROGRAM.format(root=str(ROOT), file=str(step(WAITING.format(note=str(note)))), is_forked=is_forked)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_ctrl_c,
    )
    assert process.stdout and process.stdout.readline() == "waiting\n"
    stop(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1  # that of the program above; neither the step's nor the prepared process's
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


@pytest.mark.parametrize("is_forked", [False, True], ids=["fresh", "forked"])
def test_a_step_whose_command_is_killed_ends_with_its_workers(step, tmp_path, is_forked):
    words = ["--device", "cpu", "--logdir", str(tmp_path / "logs"), "--data", str(tmp_path)]
    program = PROGRAM.format(root=str(ROOT), file=str(step(TRAINING.format(root=str(ROOT)))), is_forked=is_forked)
    program = program.replace("[], print", f"{words!r}, lambda event: None")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as command:
        pids = [int(pid) for pid in command.stdout.readline().split()[1:]]
        assert [is_running(pid) for pid in pids] == [True, True]
        command.kill()
        assert still_there(pids) == []


def test_steps_are_forked_on_linux_where_no_gpu_is_used(monkeypatch):
    monkeypatch.setattr(forked, "driver_version", lambda: "580.1")
    assert [forked.available(device) for device in (None, "cpu", "cuda")] == [False, True, False]
    monkeypatch.setattr(forked, "driver_version", lambda: None)
    assert forked.available(None)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not forked.available("cpu")
