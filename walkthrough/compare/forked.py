"""Start steps by forking a process that has imported torch already: most of a smoke run is imports.

Importing torch and torchvision takes seconds, in every step anew. Python's fork server imports them once; each step is
then a fork of it, with a state of its own. That is safe because importing starts no thread of torch and no CUDA
context, and NumPy's threads (OpenBLAS) survive a fork. Only for smoke runs on Linux without a GPU: the figures that
count come from fresh processes.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from walkthrough.results.environment import driver_version

# What a step imports, then what it imports once it has measured. A name that is missing here costs time, nothing else.
MODULES = ["common.session", "common.data", "common.model", "common.loaders", "walkthrough.results.events"]
MODULES += ["torch.utils.tensorboard.summary", "tensorboard.summary.writer.record_writer"]


def available(device: str | None) -> bool:
    """Whether steps for this `--device` can be forked here: on Linux, where they use no GPU."""
    return sys.platform == "linux" and (device == "cpu" or driver_version() is None)


class ForkedProcess:
    """A program that runs in a fork of the prepared process, with as much of `subprocess.Popen` as the tour needs.

    file, words: the program and its options. environment: all of its environment variables. stdout: what it prints,
    stderr included.
    """

    def __init__(self, file: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        _start_server(environment)
        read, write = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(str(file), list(words), dict(environment), write))
        self.process.start()
        write.close()
        self.stdout = os.fdopen(os.dup(read.fileno()), errors="replace")
        read.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code (negative: the signal). Raises subprocess.TimeoutExpired."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout or 0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.process.pid is not None and self.process.exitcode is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End the program at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the process that is forked, unless it runs. It imports with `environment`, which torch reads just then."""
    forkserver.set_forkserver_preload(MODULES)
    before, on_interrupt = dict(os.environ), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.environ.update(environment)
        forkserver.ensure_running()  # with Ctrl-C ignored: it would end with a traceback while it imports
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        os.environ.clear()
        os.environ.update(before)


def _run(file: str, words: list[str], environment: dict[str, str], output: Connection) -> None:
    """In the fork: become `python file words…`."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)  # by lines, as PYTHONUNBUFFERED does where Python starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # else a DataLoader would start its workers by a fork server
    sys.argv = [file, *words]
    runpy.run_path(file, run_name="__main__")
