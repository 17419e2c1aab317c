"""The ladder: its steps are the scripts in `steps/`, in the order of their names; each runs in a process of its own."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.compare.forked import ForkedProcess
from walkthrough.results import progress
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError
from walkthrough.results.result import check_writable, writing

if TYPE_CHECKING:
    from common.options import StepOptions


@dataclass(frozen=True)
class Outcome:
    """How a step's process ended: its exit code (negative: the signal), and why, in a line, if not 0."""

    code: int
    reason: str


def step_files(folder: str | Path | None = None) -> list[Path]:
    """The scripts `NN_name.py` of a folder (default: `steps/`), sorted. InputError where there are none."""
    folder = Path(folder or ROOT / "steps")
    files = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not files:
        raise InputError(
            f"no steps in {folder}: run from a clone of the project, with `common` installed by pip install -e ."
        )
    return files


def prepare(args: "argparse.Namespace | StepOptions") -> None:
    """What all steps need and one process should do: a log folder to write to, and the download if it is asked for.

    Steps that are then run need no `--download`. Raises InputError.
    """
    with writing(args.logdir):
        args.logdir.mkdir(parents=True, exist_ok=True)
    check_writable(args.logdir)
    if args.download:
        from common.data import fetch_cifar10  # torchvision: seconds to import

        fetch_cifar10(args.data)


def check_input(args: argparse.Namespace) -> None:
    """Raise InputError for what no step can use: device, model, image size or data that is missing or broken."""
    from common.data import check_cifar10  # torch and torchvision: seconds to import
    from common.device import checked_device
    from common.model import classifier
    from common.options import image_size_for, model_for

    device = checked_device(args.device)
    classifier(model_for(args, device), image_size_for(args, device))
    check_cifar10(args.data)


def run(
    file: Path,
    words: Sequence[str],
    on_progress: Callable[[dict[str, Any]], None],
    on_line: Callable[[str], None],
    forked: bool = False,
) -> Outcome:
    """Run a step and follow it. words: its options. forked: in a fork of a process that has imported torch already.

    on_progress(event): see `progress.report`. on_line(text): any other line that it prints; its own error line,
    "NN_name: …", goes into the `Outcome` instead. However this ends (Ctrl-C, SIGTERM), the step is stopped first, and
    cleans up after itself; if this process is killed, the step ends too (see `progress.end_with_reader`).
    """
    followed = environment(**{progress.VARIABLE: "json"}, PYTHONUNBUFFERED="1")
    own, last, error = f"{file.stem}: ", "no message", None
    with (ForkedProcess if forked else _fresh_process)(file, words, followed) as process:
        try:
            for line in map(str.rstrip, process.stdout or ()):
                if event := progress.parse(line):
                    on_progress(event)
                elif line.startswith(own):
                    error = line.removeprefix(own)
                elif line:
                    last = line
                    on_line(line)
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
    return Outcome(code, why_ended(code, error or last))


def environment(**more: str) -> dict[str, str]:
    """Of a process that trains: this clone's `common` is found first, also where none or another one is installed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = os.environ | more | {"PYTHONPATH": path}
    found.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    return found


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of several steps together: 0, 2 if each that failed did so by its input, otherwise 1."""
    failed = [code for code in codes if code]
    return 0 if not failed else 2 if all(code == 2 for code in failed) else 1


def once(on_line: Callable[[str], None]) -> Callable[[str], None]:
    """An `on_line` for several runs: each line only the first time, since every step prints the same banner.

    Without a step's losses, which are for whoever runs it alone.
    """
    seen = set()

    def show(line: str) -> None:
        if line not in seen and not line.startswith("loss: "):
            seen.add(line)
            on_line(line)

    return show


def _fresh_process(file: Path, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(file), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _stop(process: subprocess.Popen[str] | ForkedProcess) -> None:
    # A terminal's Ctrl-C has reached the step too: another one at once could stop it from cleaning up.
    for stop, seconds in ((lambda: None, 1), (lambda: process.send_signal(signal.SIGINT), 20), (process.kill, 20)):
        stop()
        try:
            process.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            continue


def why_ended(code: int, message: str) -> str:
    """Why a process ended with this exit code (negative: the signal). message: the last line that it printed."""
    if code == 0:
        return ""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (most likely for lack of memory)" if name == "SIGKILL" else "")
    return message
