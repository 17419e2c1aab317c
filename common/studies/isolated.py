"""A measurement in a process of its own: what one compiled, allocated or broke does not reach the next."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common.machine import ROOT
from common.options import StepOptions

TERMINATE_SECONDS = 0.5  # for a compiler that is asked to stop


@dataclass(frozen=True)
class Isolated:
    """A process that measures. lines: what it prints. timer: ends it when its time is over; `timed_out` is set then."""

    process: subprocess.Popen[str]
    lines: IO[str]
    timer: threading.Timer
    timed_out: threading.Event


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module of this project as a program."""
    return sys.executable, "-m", name


def options_from(values: Mapping[str, Any]) -> StepOptions:
    """The `StepOptions` whose fields a process got among its settings, as JSON."""
    paths = {name: Path(values[name]) for name in ("logdir", "data")}
    return StepOptions(**{**values, **paths, "unused": tuple(values["unused"])})


@contextmanager
def isolated_process(
    command: Sequence[str], settings: Mapping[str, Any], limit_seconds: float, stderr: int = subprocess.DEVNULL
) -> Iterator[Isolated]:
    """Run a command (see `module`) with `settings` as a last word of JSON, its output a pipe of text.

    However this is left, and after `limit_seconds`, the process and all that it started are ended.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    timed_out = threading.Event()
    with subprocess.Popen(
        [*command, json.dumps(settings, default=str)],
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=stderr,
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
