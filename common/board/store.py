"""What is computed from traces: once, in child processes, kept in memory and in the user's cache folder."""

import atexit
import gzip
import hashlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import common.trace
from common.errors import printable

log = logging.getLogger("walkthrough")
CODE = Path(common.trace.__path__[0])
MEMORY_LIMIT = 64 * 2**20  # bytes
DISK_LIMIT = 256 * 2**20  # bytes; the oldest answers go first
SETTLE_SECONDS = 1.0  # since a trace was last written to: until then it may be incomplete
RETRY_SECONDS = 30.0  # until a failure that may be temporary is tried again
WORKERS = max(1, min(4, os.cpu_count() or 1))

Kind = Literal["digest", "lanes"]
Steps = tuple[int | None, int | None]  # the first and the last, counted from 0; None where it is left to the answer
ANY_STEPS: Steps = (None, None)
Answer = tuple[Literal["ready"], bytes] | tuple[Literal["reading"], None] | tuple[Literal["failed"], str]


class Question(NamedTuple):
    """What is asked of a trace. steps: those of "lanes"."""

    kind: Kind
    path: Path
    steps: Steps = ANY_STEPS

    @property
    def key(self) -> str:
        """The answer's: of the question, the trace's size and time of change, and the code that reads it."""
        status = self.path.stat()
        what = f"{self.kind} {self.steps} {self.path.resolve()}"
        identity = f"{what} {status.st_size} {status.st_mtime_ns} {_code_hash()}"
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def words(self) -> list[str]:
        """The command line that computes the answer."""
        options = [] if self.kind == "digest" else ["--lanes"]
        for name, step in zip(("--first", "--last"), self.steps, strict=True):
            options += [] if step is None else [name, str(step)]
        return [sys.executable, "-m", "common.trace.digest", *options, "--", str(self.path)]


class Store:
    """Answers about traces as gzipped JSON. Thread-safe; the same answer is never computed twice at a time.

    folder: where answers are kept, None for the user's cache folder. After any change of the trace, or of the code that
    reads it, an answer is computed anew.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = _usable(folder or _cache_folder())
        self._lock, self._closed = threading.Lock(), False
        self._ready: OrderedDict[str, bytes] = OrderedDict()
        self._failed: OrderedDict[str, tuple[str, float]] = OrderedDict()  # key: (reason, until when)
        self._jobs: queue.PriorityQueue[tuple[bool, int, Question]] = queue.PriorityQueue()
        self._number = count()
        self._waiting: dict[Question, bool] = {}  # whether somebody waits for it
        self._working: set[Question] = set()
        self._processes: set[subprocess.Popen[bytes]] = set()
        for _ in range(WORKERS):
            threading.Thread(target=self._work, name="walkthrough", daemon=True).start()
        atexit.register(self.close)

    def get(self, kind: Kind, path: Path, urgent: bool = True, steps: Steps = ANY_STEPS) -> Answer:
        """("ready", gzipped JSON), ("reading", None) or ("failed", reason). Does not wait: it starts the computation.

        urgent: a reader waits for it, so it goes before what is read ahead. steps: those of "lanes".
        """
        question = Question(kind, path, steps)
        try:
            key = question.key
        except OSError as error:
            return "failed", f"cannot read {path.name}: {error.strerror}"
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
                return "ready", self._ready[key]
            reason, until = self._failed.get(key, ("", 0))
            if time.monotonic() < until:
                return "failed", reason
            if question in self._working:
                return "reading", None
        cached = self._read_cached(key)
        with self._lock:
            if cached:
                self._put_in_memory(key, cached)
                return "ready", cached
            if question not in self._waiting or (urgent and not self._waiting[question]):
                self._waiting[question] = urgent
                self._jobs.put((not urgent, next(self._number), question))
        return "reading", None

    @property
    def reading(self) -> int:
        """How many answers are being computed or wait for that."""
        return len(self._waiting)

    def close(self) -> None:
        """Kill the child processes and start no more."""
        self._closed = True
        for process in list(self._processes):
            process.kill()

    def _work(self) -> None:
        while not self._closed:
            _, _, question = self._jobs.get()
            path = question.path
            with self._lock:
                if question not in self._waiting or question in self._working:
                    continue  # it was queued twice
                self._working.add(question)
            key = answer = None
            reason, lasting = "a defect: see TensorBoard's log", False
            try:
                for _ in range(100):  # it may still be written
                    if self._closed or time.time() - path.stat().st_mtime >= SETTLE_SECONDS:
                        break
                    time.sleep(0.1)
                key = question.key
                answer, reason, lasting = self._compute(question)
            except OSError as error:
                reason = f"cannot read {path.name}: {error.strerror}"
            except Exception:
                log.exception("%s of %s", question.kind, path)
            if reason and not self._closed:
                log.warning("%s of %s: %s", question.kind, path, reason)
            with self._lock:
                self._waiting.pop(question, None)
                self._working.discard(question)
                if key is not None and answer is not None:
                    self._put_in_memory(key, answer)
                elif key is not None:
                    self._failed[key] = reason or "", time.monotonic() + (1e9 if lasting else RETRY_SECONDS)
                    while len(self._failed) > 1000:
                        self._failed.popitem(last=False)
            if key is not None and answer is not None:
                self._write_cached(key, answer)

    def _compute(self, question: Question) -> tuple[bytes | None, str | None, bool]:
        """(gzipped JSON or None, why it failed or None, whether it would fail again)."""
        with subprocess.Popen(
            question.words, cwd=CODE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._processes.add(process)
            output, errors = process.communicate()
            self._processes.discard(process)
        if process.returncode == 0:
            return gzip.compress(output, 5), None, True
        lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return None, printable(lines[-1].partition(": ")[2] or lines[-1], 300), process.returncode == 2

    def _put_in_memory(self, key: str, answer: bytes) -> None:
        self._ready[key] = answer
        while len(self._ready) > 1 and sum(map(len, self._ready.values())) > MEMORY_LIMIT:
            self._ready.popitem(last=False)

    def _read_cached(self, key: str) -> bytes | None:
        try:
            answer = (self.folder / f"{key}.json.gz").read_bytes() if self.folder else b""
            return answer if answer and gzip.decompress(answer) else None
        except (OSError, EOFError, ValueError, zlib.error):
            return None

    def _write_cached(self, key: str, answer: bytes) -> None:
        if not self.folder:
            return
        try:
            partial = self.folder / f".{key}.{os.getpid()}"
            partial.write_bytes(answer)
            partial.replace(self.folder / f"{key}.json.gz")
            _prune(self.folder)
        except OSError as error:
            log.warning("not cached in %s: %s", self.folder, error.strerror)


@cache
def _code_hash() -> str:
    """A hash of the code that reads traces."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(CODE.rglob("*.py")))).hexdigest()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "pytorch-training-walkthrough"


def _usable(folder: Path) -> Path | None:
    """The folder, if only the user can write to it; else None, and nothing is cached."""
    try:
        if not folder.is_absolute():
            return None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
        return folder if own and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def _prune(folder: Path) -> None:
    """Delete the oldest answers until the rest is no more than `DISK_LIMIT`."""
    files = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process may have deleted it
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= DISK_LIMIT:
            break
        file.unlink(missing_ok=True)
        total -= size
