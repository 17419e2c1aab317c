"""The child processes that read traces, as TensorBoard's process sees them: a question and an answer, each a line."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTLE_SECONDS = 1.0  # since a trace was last written to: until then it may be incomplete
RETRY_SECONDS = 30.0  # until a failure that may be temporary is tried again
IDLE_SECONDS = 20.0  # until a child that has nothing to read ends


class Died(Exception):
    """A child ended before its answer, or in the middle of it."""


class Child:
    """A process that answers questions one after the other; the first starts it, and the next after it has ended.

    program: the words after "python". A question is a line of JSON; so is an answer.
    """

    def __init__(self, program: tuple[str, ...]) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False

    def ask(self, question: object) -> bytes:
        """Wait for the answer. Raises Died."""
        with self._lock:
            if self._closed:
                raise Died("TensorBoard ends")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, *self.program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            process = self._process
        answer = b""
        with suppress(OSError, ValueError):  # a broken pipe, or one that `close` has closed
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer.endswith(b"\n"):
            self.end()
            raise Died(f"the process that read it ended with exit code {process.returncode}: out of memory?")
        return answer

    def end(self) -> None:
        """Let the child end, and reap it; the next question starts another."""
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
