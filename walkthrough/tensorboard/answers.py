"""What is computed from traces: once, in child processes, kept in memory and in the user's cache folder."""

import atexit
import gzip
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import walkthrough.trace
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import printable
from walkthrough.trace import digest

log = logging.getLogger("walkthrough")
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)  # what reading a damaged gzip file may raise


class Kept:
    """Gzipped answers in a folder that only the user can write to; where there is no such folder, nothing is kept.

    limit: bytes of all files together; the oldest go first. suffix: the end of the files' names.
    """

    def __init__(self, folder: Path, limit: int, suffix: str) -> None:
        self.folder, self.limit, self.suffix = usable(folder), limit, suffix

    def path(self, key: str) -> Path | None:
        """The file of an answer, whether it is there or not."""
        return self.folder and self.folder / f"{key}{self.suffix}"

    def read(self, key: str) -> bytes | None:
        """An answer, gzipped; None where there is none, or a damaged one."""
        path = self.path(key)
        try:
            packed = path.read_bytes() if path else b""
            return packed if packed and gzip.decompress(packed) else None
        except UNREADABLE:
            return None

    def unpacked(self, key: str) -> bytes | None:
        """An answer, decompressed; None where there is none, a damaged one, or one that others could have written."""
        path = self.path(key)
        try:
            if path is None:
                return None
            with path.open("rb") as file:
                return gzip.decompress(file.read()) if is_private(os.fstat(file.fileno())) else None
        except UNREADABLE:
            return None

    def write(self, key: str, packed: bytes) -> None:
        """Keep a gzipped answer. Raises OSError where it cannot be written."""
        if path := self.path(key):
            write_private(path, packed)
            self.prune()

    def prune(self, spare: Collection[str] = ()) -> None:
        """Delete the oldest files until the rest is no more than `limit`, but none of the keys in `spare`."""
        if not self.folder:
            return
        files, an_hour_ago = [], time.time() - 3600
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(OSError):  # another process may have deleted it
                    status = file.lstat()
                    is_being_written = file.name.startswith(".") and status.st_mtime > an_hour_ago
                    if not file.is_dir() and not is_being_written:
                        files.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if total <= self.limit:
                break
            if file.name.split(".")[0] in spare:
                continue
            with suppress(OSError):
                file.unlink()
            total -= size


def write_private(path: Path, content: bytes) -> None:
    """Write a file, readable by the user alone, beside its place and rename it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def cache_folder() -> Path:
    """The user's folder for what this project keeps, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "pytorch-training-walkthrough"


def usable(folder: Path) -> Path | None:
    """The folder, created where it is missing, if only the user can write to it; else None."""
    try:
        if not folder.is_absolute():
            return None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder if is_private(folder.stat()) and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def is_private(status: os.stat_result) -> bool:
    """Whether a file or folder is the user's, and nobody else can write to it; True where the system does not say."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def key_of(path: Path | str, *parts: object) -> str:
    """A key for what is computed of a file: its path, size and time of change, and `parts`. Raises OSError."""
    status = os.stat(path)
    return hashed(os.path.realpath(path), status.st_size, status.st_mtime_ns, *parts)


def hashed(*parts: object) -> str:
    """A key made of some values."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogateescape")).hexdigest()


@cache
def hash_of_code(folders: Iterable[Path]) -> str:
    """A hash of the Python files in some folders (a tuple): what is computed by other code has another key."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


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


log = logging.getLogger("walkthrough")
CODE = Path(walkthrough.trace.__path__[0])
MEMORY_LIMIT = 64 * 2**20  # bytes
DISK_LIMIT = 256 * 2**20  # bytes; the oldest answers go first
PROGRAM = ("-m", "walkthrough.trace.digest", "--serve")
WORKERS = min(4, usable_cores())

Kind = Literal["digest", "lanes"]
Steps = tuple[int | None, int | None]  # the first and the last, counted from 0; None where it is left to the answer
ANY_STEPS: Steps = (None, None)
Answer = tuple[Literal["ready"], bytes] | tuple[Literal["reading"], None] | tuple[Literal["failed"], str]
_answers = msgspec.json.Decoder(digest.Answer)


class Question(NamedTuple):
    """What is asked of a trace. steps: those of "lanes"."""

    kind: Kind
    path: Path
    steps: Steps = ANY_STEPS

    @property
    def key(self) -> str:
        """The answer's: of the question, the trace's size and time of change, and the code that reads it."""
        return key_of(self.path, self.kind, self.steps, hash_of_code((CODE,)))

    @property
    def words(self) -> list[str]:
        """The question as `walkthrough.trace.digest` reads it."""
        options = [] if self.kind == "digest" else ["--lanes"]
        for name, step in zip(("--first", "--last"), self.steps, strict=True):
            options += [] if step is None else [name, str(step)]
        return [*options, "--", str(self.path)]


class Store:
    """Answers about traces as gzipped JSON. Thread-safe; the same answer is never computed twice at a time.

    folder: where answers are kept, None for the user's cache folder. After any change of the trace, or of the code that
    reads it, an answer is computed anew. workers, program: how many children answer, and which.
    """

    def __init__(self, folder: Path | None = None, workers: int = WORKERS, program: tuple[str, ...] = PROGRAM) -> None:
        self._kept = Kept(folder or cache_folder(), DISK_LIMIT, ".json.gz")
        self._lock, self._closed = threading.Lock(), False
        self._asked = threading.Condition(self._lock)
        self._ready: OrderedDict[str, bytes] = OrderedDict()
        self._failed: OrderedDict[str, tuple[str, float]] = OrderedDict()  # key: (reason, until when)
        self._died: set[str] = set()  # keys of answers at which a child has died
        self._waiting: OrderedDict[Question, bool] = OrderedDict()  # whether somebody waits for it; asked last: last
        self._working: set[Question] = set()  # those of `_waiting` that a child has
        self._children = [Child(program) for _ in range(workers)]
        for child in self._children:
            threading.Thread(target=self._work, args=(child,), name="walkthrough", daemon=True).start()
        atexit.register(self.close)

    def get(self, kind: Kind, path: Path, urgent: bool = True, steps: Steps = ANY_STEPS) -> Answer:
        """("ready", gzipped JSON), ("reading", None) or ("failed", reason). Does not wait: it starts the computation.

        urgent: a reader waits for it, so it goes before what is read ahead, and before what was asked for earlier.
        steps: those of "lanes".
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
        cached = self._kept.read(key)
        with self._lock:
            if key in self._ready:  # meanwhile
                return "ready", self._ready[key]
            if cached:
                self._put_in_memory(key, cached)
                return "ready", cached
            if urgent or question not in self._waiting:
                self._waiting[question] = urgent
                self._waiting.move_to_end(question)
                self._asked.notify()
        return "reading", None

    @property
    def reading(self) -> int:
        """How many answers are being computed or wait for that."""
        return len(self._waiting)

    def close(self) -> None:
        """Kill the child processes and start no more."""
        self._closed = True
        for child in self._children:
            child.close()

    def _work(self, child: Child) -> None:
        while not self._closed:
            question = self._next()
            if question is None:
                child.end()
                continue
            path = question.path
            key = answer = None
            reason, lasting = "a defect: see TensorBoard's log", False
            try:
                for _ in range(100):  # it may still be written
                    if self._closed or time.time() - path.stat().st_mtime >= SETTLE_SECONDS:
                        break
                    time.sleep(0.1)
                key = question.key
                answer, reason, lasting = self._compute(child, question, key)
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
                try:
                    self._kept.write(key, answer)
                except OSError as error:
                    log.warning("not cached in %s: %s", self._kept.folder, error.strerror)

    def _next(self) -> Question | None:
        """The question to answer next, as soon as there is one; None after a while without."""
        with self._asked:
            if not self._asked.wait_for(lambda: self._waiting.keys() - self._working or self._closed, IDLE_SECONDS):
                return None
            idle = [question for question in self._waiting if question not in self._working]
            urgent = [question for question in idle if self._waiting[question]]
            question = urgent[-1] if urgent else idle[0] if idle else None
            if question:
                self._working.add(question)
            return question

    def _compute(self, child: Child, question: Question, key: str) -> tuple[bytes | None, str | None, bool]:
        """(gzipped JSON or None, why it failed or None, whether it would fail again)."""
        try:
            answer = _answers.decode(child.ask(question.words))
        except Died as error:  # it may have been killed for the memory that its neighbours take: one more try
            with self._lock:
                lasting = key in self._died
                self._died.add(key)
            return None, str(error), lasting
        if answer.last:
            child.end()
        if answer.reason:
            return None, printable(answer.reason, 300), answer.lasting
        return gzip.compress(bytes(answer.content), 5), None, True

    def _put_in_memory(self, key: str, answer: bytes) -> None:
        self._ready[key] = answer
        while len(self._ready) > 1 and sum(map(len, self._ready.values())) > MEMORY_LIMIT:
            self._ready.popitem(last=False)
