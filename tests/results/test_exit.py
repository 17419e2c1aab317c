"""How a program ends by an error that nobody catches: one line and its exit code, or a traceback."""

import sys

import pytest
from support import run_program

from walkthrough.results import errors
from walkthrough.results.errors import InputError, OneLineParser, exit_code

ERRORS = {  # what is raised: exit code, the line
    "InputError('no such folder')": (2, "program: no such folder"),
    "MemoryError()": (2, "program: out of memory: this machine has too little for it"),
    "RuntimeError('CUDA error: out of memory')": (2, "program: out of memory on the device before the first batch"),
    "RuntimeError('Dynamo is not supported on Python 3.17+')": (2, "program: Dynamo is not supported on Python 3.17+"),
    "KeyboardInterrupt()": (130, "program: interrupted"),
}
PROGRAM = """
import atexit, sys
from walkthrough.results.errors import InputError, OneLineParser

def main():
    OneLineParser().parse_args([])
    print("printed without a newline", end="")
    atexit.register(lambda: print(", atexit ran"))
    try:
        raise {error}
    finally:
        print(", cleaned up", end="")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def ended(tmp_path):
    """ended(error, *start): how a program ends that raises it."""

    def end(error, *start):
        (tmp_path / "program.py").write_text(PROGRAM.format(error=error))
        return run_program(*(start or [tmp_path / "program.py"]), cwd=tmp_path)

    return end


@pytest.mark.parametrize("error", ERRORS)
def test_what_the_user_can_act_on_is_one_line_and_the_exit_code(ended, error, capsys, monkeypatch):
    code, line = ERRORS[error]
    finished = ended(error)
    assert (finished.returncode, finished.stdout) == (code, "printed without a newline, cleaned up, atexit ran\n")
    assert [text.startswith(line) for text in finished.stderr.splitlines()] == [True]
    monkeypatch.setattr(sys, "argv", ["program.py"])
    assert exit_code(eval(error)) == code
    assert capsys.readouterr().err.startswith(line)


def test_as_a_module_it_ends_alike(ended):
    finished = ended("InputError('no such folder')", "-m", "program")
    assert (finished.returncode, finished.stderr) == (2, "program: no such folder\n")


def test_a_defect_keeps_its_traceback_and_exit_code_1(ended):
    finished = ended("ZeroDivisionError('ours')")
    assert (finished.returncode, finished.stdout) == (1, "printed without a newline, cleaned up, atexit ran\n")
    assert finished.stderr.startswith("Traceback")
    assert finished.stderr.endswith("ZeroDivisionError: ours\n")
    assert exit_code(ZeroDivisionError()) is None


def test_another_hook_shows_what_is_no_line_of_ours(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *raised: seen.append(raised))
    errors.exit_in_one_line()
    sys.excepthook(ZeroDivisionError, ZeroDivisionError(), None)
    assert [kind for kind, *_ in seen] == [ZeroDivisionError]
    with pytest.raises(SystemExit):
        sys.excepthook(InputError, InputError("no"), None)
    assert len(seen) == 1


PROCESSES = """
import multiprocessing, sys
from common import step_options
from walkthrough.results.errors import InputError

HOOK = sys.excepthook is not sys.__excepthook__

def work(queue):
    queue.put(HOOK)
    raise InputError("of the worker")

def main():
    step_options("", ["--device", "cpu"])
    context = multiprocessing.get_context({method!r})
    queue = context.SimpleQueue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    worker.join()
    print(queue.get(), worker.exitcode)
    raise InputError("of the program")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_processs_workers_report_their_own_errors(tmp_path, method):
    """Importing the program, as spawn and forkserver do, sets no hook; in a worker an error keeps its traceback."""
    (tmp_path / "program.py").write_text(PROCESSES.format(method=method))
    finished = run_program(tmp_path / "program.py", cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (2, "False 1\n")
    lines = finished.stderr.splitlines()
    assert lines[-1] == "program: of the program"
    assert lines[-2].endswith("InputError: of the worker")
    assert finished.stderr.count("Traceback") == 1


def test_only_parsing_sets_the_hook(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", before := sys.excepthook)
    parser = OneLineParser()
    assert sys.excepthook is before
    parser.parse_args([])
    assert sys.excepthook is not before
