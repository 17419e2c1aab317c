"""How a program ends by an error that nobody catches: one line and its exit code, or a traceback."""

import sys

import pytest
from support import run_program

from walkthrough.results.errors import InputError, OneLineParser, exit_code

ERRORS = [
    (InputError("no such folder"), 2, "program: no such folder"),
    (MemoryError(), 2, "program: out of memory: this machine has too little for it"),
    (RuntimeError("CUDA error: out of memory"), 2, "program: out of memory on the device before the first batch"),
    (RuntimeError("Dynamo is not supported on Python 3.17+"), 2, "program: Dynamo is not supported on Python 3.17+"),
    (KeyboardInterrupt(), 130, "program: interrupted"),
]
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
        return run_program(*(start or ["program.py"]), cwd=tmp_path)

    return end


@pytest.mark.parametrize(("error", "code", "line"), ERRORS)
def test_what_the_user_can_act_on_is_one_line_and_the_exit_code(error, code, line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program.py"])
    assert exit_code(error) == code
    [printed] = capsys.readouterr().err.splitlines()
    assert printed.startswith(line)


@pytest.mark.parametrize("start", [["program.py"], ["-m", "program"]], ids=["a file", "a module"])
def test_a_program_ends_in_that_line_after_what_it_cleans_up(ended, start):
    finished = ended("InputError('no such folder')", *start)
    assert (finished.returncode, finished.stdout) == (2, "printed without a newline, cleaned up, atexit ran\n")
    assert finished.stderr == "program: no such folder\n"


def test_a_defect_keeps_its_traceback_and_exit_code_1(ended):
    finished = ended("ZeroDivisionError('ours')")
    assert (finished.returncode, finished.stdout) == (1, "printed without a newline, cleaned up, atexit ran\n")
    assert finished.stderr.startswith("Traceback")
    assert finished.stderr.endswith("ZeroDivisionError: ours\n")
    assert exit_code(ZeroDivisionError()) is None


def test_only_parsing_sets_the_hook_and_the_one_before_shows_what_is_no_line_of_ours(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", before := lambda *raised: seen.append(raised[0]))
    parser = OneLineParser()
    assert sys.excepthook is before
    parser.parse_args([])
    sys.excepthook(ZeroDivisionError, ZeroDivisionError(), None)
    with pytest.raises(SystemExit):
        sys.excepthook(InputError, InputError("no"), None)
    assert seen == [ZeroDivisionError]
