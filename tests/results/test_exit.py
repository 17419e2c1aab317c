"""How a program ends by an error that nobody catches: one line and its exit code, or a traceback."""

import sys

import pytest
from support import run_program

from walkthrough.results.errors import InputError, exit_code

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


@pytest.mark.parametrize(("error", "code", "line"), ERRORS)
def test_what_the_user_can_act_on_is_one_line_and_the_exit_code(error, code, line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program.py"])
    assert exit_code(error) == code
    [printed] = capsys.readouterr().err.splitlines()
    assert printed.startswith(line)


@pytest.mark.parametrize(
    ("start", "error", "code", "first", "last"),
    [
        (["-m", "program"], "InputError('no folder')", 2, "program: no folder", "program: no folder"),
        (["program.py"], "ValueError('ours')", 1, "Traceback (most recent call last):", "ValueError: ours"),
    ],
    ids=["a module", "a defect"],
)
def test_a_program_cleans_up_and_ends_in_that_line_or_in_a_defect_s_traceback(
    tmp_path, start, error, code, first, last
):
    (tmp_path / "program.py").write_text(PROGRAM.format(error=error))
    finished = run_program(*start, cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (code, "printed without a newline, cleaned up, atexit ran\n")
    lines = finished.stderr.splitlines()
    assert (lines[0], lines[-1], len(lines) == 1) == (first, last, code == 2)
