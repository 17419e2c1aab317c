"""The child processes that read traces for PYTORCH_PROFILER, as TensorBoard's process sees them."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from common.board.reader import Job, Outcome

ROOT = Path(__file__).parents[2]
PROGRAM = ("-W", "ignore", "-m", "common.board.reader")  # the warnings are the plugin's: it was written for old pandas


class Child:
    """A process that reads traces one after the other; it is started by the first, and again after it has died.

    nice: how far it steps back behind the other processes of the machine.
    """

    def __init__(self, nice: int = 0, program: tuple[str, ...] = PROGRAM) -> None:
        self.nice, self.program = nice, program
        self._process: subprocess.Popen[str] | None = None
        self._lock, self._closed = threading.Lock(), False

    def read(self, job: Job) -> Outcome:
        """Wait until the child has read a trace. Its death is a failure of that trace alone."""
        with self._lock:
            if self._closed:
                return Outcome(changed=True)
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, *self.program, str(self.nice)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                )
            process = self._process
        try:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
            outcome = Outcome(**json.loads(process.stdout.readline()))
        except (OSError, ValueError, TypeError):  # it ended before its answer, or in the middle of it
            self.end()
            return Outcome(f"the process that read it ended with exit code {process.returncode}: out of memory?")
        if outcome.last:
            self.end()
        return outcome

    def end(self) -> None:
        """Let the child end, and reap it; the next trace starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe and pipe.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Kill the child, whatever it does; no other is started."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.kill()
