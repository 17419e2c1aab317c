"""Run something in a process of its own, follow it, end it and all that it started.

What one program compiled, allocated or broke does not reach the next, and none trains on once nobody follows it: see
`results.progress.end_with_reader`, which each calls.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from walkthrough.results import progress
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import compile_failure, printable

INTERRUPT_SECONDS = 20  # for a step that is stopped and cleans up after itself
TERMINATE_SECONDS = 0.5  # for a compiler that is asked to stop
ANSWER = '{"answer": '  # how the line of a process begins that holds what it measured
REASON_LENGTH = 200  # characters, at most


@dataclass(frozen=True)
class Isolated:
    """A process. lines: what it prints. timer: ends it when its time is over; `timed_out` is set then."""

    process: subprocess.Popen[str]
    lines: IO[str]
    timer: threading.Timer
    timed_out: threading.Event


@dataclass(frozen=True)
class Outcome:
    """How a program's process ended: its exit code (negative: the signal), and why, in a line, if not 0."""

    code: int
    reason: str


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module of this project as a program, whatever the current folder holds.

    `python -m` would look there first, and a folder `common/` of the user's may lie there.
    """
    code = f"import runpy, sys; sys.path[0] = {str(ROOT)!r}; runpy.run_module({name!r}, None, '__main__', True)"
    return sys.executable, "-c", code


def run(
    file: Path,
    words: Sequence[str],
    on_progress: Callable[[dict[str, Any]], None],
    on_line: Callable[[str], None],
) -> Outcome:
    """Run a step and follow it. words: its options.

    on_progress(event): see `progress.report`. on_line(text): any other line that it prints; its own error line,
    "NN_name: …", goes into the `Outcome` instead. However this ends (Ctrl-C, SIGTERM), the step is interrupted first,
    and cleans up after itself.
    """
    last, error = "no message", None
    followed = {progress.VARIABLE: "json", "PYTHONUNBUFFERED": "1"}
    with _started([sys.executable, str(file), *words], None, followed) as child:
        try:
            for line in map(str.rstrip, child.lines):
                if event := _event(line):
                    on_progress(event)
                elif line.startswith((f"{file.stem}: ", f"{file.name}: ")):
                    error = line.partition(": ")[2]
                elif line:
                    last = line
                    on_line(line)
            code = child.process.wait()
        except BaseException:
            child.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(INTERRUPT_SECONDS)
            raise
    return Outcome(code, why_ended(code, error or last))


def _event(line: str) -> dict[str, Any] | None:
    """The event of a line that `progress.report` printed; None for any other line."""
    if not line.startswith('{"progress": '):
        return None
    try:
        return json.loads(line)["progress"]
    except (ValueError, KeyError):
        return None


def print_answer(value: Mapping[str, Any]) -> None:
    """Print what a process of its own measured, for `answer` to read; what stopped it is an answer, too.

    In one piece: processes that train together answer into one pipe, and `print` writes the end of a line by itself.
    """
    sys.stdout.write(json.dumps({"answer": value}) + "\n")
    sys.stdout.flush()


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


def isolated_process(
    command: Sequence[str], settings: Mapping[str, Any], limit_seconds: float
) -> AbstractContextManager[Isolated]:
    """Run a command (see `module`) with `settings`, a JSON object, as its last argument; its output is a pipe of text.

    A context manager of an `Isolated`. However it is left, and after `limit_seconds`, the process and all that it
    started are ended.
    """
    return _started([*command, json.dumps(settings, default=str)], limit_seconds, {})


@contextmanager
def _started(command: Sequence[str], limit_seconds: float | None, variables: Mapping[str, str]) -> Iterator[Isolated]:
    timed_out = threading.Event()
    with subprocess.Popen(
        command,
        env=environment(**variables),
        text=True,
        errors="replace",
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:

        def end_late() -> None:
            timed_out.set()
            end_with_children(process)

        timer = threading.Timer(limit_seconds or 0.0, end_late)
        if limit_seconds:
            timer.start()
        try:
            assert process.stdout is not None  # a pipe, as asked for
            yield Isolated(process, process.stdout, timer, timed_out)
        finally:
            timer.cancel()
            end_with_children(process)


def environment(**more: str) -> dict[str, str]:
    """Of a process that trains: this clone's `common` is found first, also where none or another one is installed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = os.environ | more | {"PYTHONPATH": path}
    found.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    return found


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


def why_ended(code: int, message: str) -> str:
    """Why a process ended with this exit code (negative: the signal). message: the last line that it printed."""
    if code == 0:
        return ""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (most likely for lack of memory)" if name == "SIGKILL" else "")
    return message


def not_compiled(error: BaseException) -> str:
    """Why a model could not be compiled, in a line; whatever a compiler raised."""
    why = compile_failure(error) or f"torch.compile failed: {type(error).__name__}: {printable(error, 160)}"
    return why.removesuffix(", or skip this step")
