"""The ladder: its steps are the scripts in `steps/`, in the order of their names; each runs in a process of its own."""

import os
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from common import progress
from common.errors import InputError
from common.machine import ROOT
from common.options import image_size_for


@dataclass(frozen=True)
class Outcome:
    """How a step's process ended: its exit code (negative: the signal), and why, in a line, if not 0."""

    code: int
    reason: str
    output: list[str]


def step_files(folder=None):
    """The scripts `NN_name.py` of a folder (default: `steps/`), sorted. InputError where there are none."""
    folder = Path(folder or ROOT / "steps")
    files = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not files:
        raise InputError(
            f"no steps in {folder}: run from a clone of the project, with `common` installed by pip install -e ."
        )
    return files


def check_input(args):
    """Raise InputError for what no step can use: device, model, image size or data that is not there or broken."""
    from common.data import has_cifar10  # torch and torchvision: seconds to import, and needed only after a failure
    from common.device import checked_device
    from common.model import classifier

    classifier(args.model, image_size_for(args, checked_device(args.device)))
    has_cifar10(args.data)


def run(file, arguments, on_progress, on_line):
    """Run a step and follow it. on_progress(event): see `progress.report`. on_line(text): any other line it prints.

    Returns an `Outcome`. Ctrl-C reaches the step too, which then cleans up; this waits for it before it goes on.
    """
    environment = os.environ | {progress.VARIABLE: "json", "PYTHONUNBUFFERED": "1"}
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    command = [sys.executable, str(file), *arguments]
    lines = deque(maxlen=100)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout:
                event = progress.parse(line)
                if event:
                    on_progress(event)
                elif line.strip():
                    lines.append(line.rstrip())
                    on_line(line.rstrip())
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
    return Outcome(code, _reason(code, lines, file.stem), list(lines))


def _stop(process):
    try:
        process.wait(timeout=10)  # after Ctrl-C it is ending by itself
    except subprocess.TimeoutExpired:
        process.kill()


def _reason(code, lines, step):
    if code == 0:
        return ""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (most likely for lack of memory)" if name == "SIGKILL" else "")
    last = next((line for line in reversed(lines) if not line.startswith(" ")), "no message")
    return last.removeprefix(f"{step}: ")
