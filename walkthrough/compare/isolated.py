"""A measurement in a process of its own: what one compiled, allocated or broke does not reach the next."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from walkthrough.compare import runner
from walkthrough.compare.runner import why_ended
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import compile_failure, printable

TERMINATE_SECONDS = 0.5  # for a compiler that is asked to stop
ANSWER = '{"answer": '  # how the line of a process begins that holds what it measured
REASON_LENGTH = 200  # characters, at most


@dataclass(frozen=True)
class Isolated:
    """A process that measures. lines: what it prints. timer: ends it when its time is over; `timed_out` is set then."""

    process: subprocess.Popen[str]
    lines: IO[str]
    timer: threading.Timer
    timed_out: threading.Event


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module of this project as a program, whatever the current folder holds.

    `python -m` would look there first, and a folder `common/` of the user's may lie there.
    """
    code = f"import runpy, sys; sys.path[0] = {str(ROOT)!r}; runpy.run_module({name!r}, None, '__main__', True)"
    return sys.executable, "-c", code


def print_answer(value: Mapping[str, Any]) -> None:
    """Print what a process of its own measured, for `answer` to read; what stopped it is an answer, too."""
    print(json.dumps({"answer": value}), flush=True)


def answer(
    command: Sequence[str],
    settings: Mapping[str, Any],
    limit_seconds: float,
    on_line: Callable[[str, "Isolated"], None] | None = None,
) -> dict[str, Any] | str:
    """Measure in a process of its own: what it passes to `print_answer`; a text says why there is none, in a line.

    command, settings, limit_seconds: see `isolated_process`. on_line: called with each line and the process. However
    this is left, and once the process has answered, it and all that it started are ended.
    """
    last = ""
    with isolated_process(command, settings, limit_seconds) as child:
        for line in map(str.strip, child.lines):
            if on_line:
                on_line(line, child)
            if line.startswith(ANSWER):
                return json.loads(line)["answer"]
            last = line or last
        if child.timed_out.is_set():
            return f"not done after {limit_seconds} s"
        code = child.process.wait()
    return printable(why_ended(code, last) or last or f"its process ended with code {code}", REASON_LENGTH)


def not_compiled(error: BaseException) -> str:
    """Why a model could not be compiled, in a line; whatever a compiler raised."""
    why = compile_failure(error) or f"torch.compile failed: {type(error).__name__}: {printable(error, 160)}"
    return why.removesuffix(", or skip this step")


@contextmanager
def isolated_process(command: Sequence[str], settings: Mapping[str, Any], limit_seconds: float) -> Iterator[Isolated]:
    """Run a command (see `module`) with `settings`, a JSON object, as its last argument; its output is a pipe of text.

    However this is left, and after `limit_seconds`, the process and all that it started are ended.
    """
    timed_out = threading.Event()
    with subprocess.Popen(
        [*command, json.dumps(settings, default=str)],
        env=runner.environment(),
        text=True,
        errors="replace",
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:

        def end_late() -> None:
            timed_out.set()
            end_with_children(process)

        timer = threading.Timer(limit_seconds, end_late)
        timer.start()
        try:
            assert process.stdout is not None  # a pipe, as asked for
            yield Isolated(process, process.stdout, timer, timed_out)
        finally:
            timer.cancel()
            end_with_children(process)


def end_with_children(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, which share its session.

    SIGTERM first: a C++ compiler then removes what it had half written, which would break every later compilation.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            process.kill()
            return
        if signal_number == signal.SIGTERM:
            time.sleep(TERMINATE_SECONDS)
