"""What is computed from traces: once, in child processes, kept in memory and in the user's cache folder."""

import atexit
import gzip
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import common.trace
from common.board.children import Child, Died
from common.board.kept import Kept, cache_folder, hash_of_code, key_of
from common.errors import printable
from common.trace import digest

log = logging.getLogger("walkthrough")
CODE = Path(common.trace.__path__[0])
MEMORY_LIMIT = 64 * 2**20  # bytes
DISK_LIMIT = 256 * 2**20  # bytes; the oldest answers go first
SETTLE_SECONDS = 1.0  # since a trace was last written to: until then it may be incomplete
RETRY_SECONDS = 30.0  # until a failure that may be temporary is tried again
IDLE_SECONDS = 20.0  # until a child that has nothing to read ends
PROGRAM = ("-m", "common.trace.digest", "--serve")
WORKERS = max(1, min(4, os.cpu_count() or 1))

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
        """The question as `common.trace.digest` reads it."""
        options = [] if self.kind == "digest" else ["--lanes"]
        for name, step in zip(("--first", "--last"), self.steps, strict=True):
            options += [] if step is None else [name, str(step)]
        return [*options, "--", str(self.path)]


class Store:
    """Answers about traces as gzipped JSON. Thread-safe; the same answer is never computed twice at a time.

    folder: where answers are kept, None for the user's cache folder. After any change of the trace, or of the code that
    reads it, an answer is computed anew.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._kept = Kept(folder or cache_folder(), DISK_LIMIT, ".json.gz")
        self._lock, self._closed = threading.Lock(), False
        self._ready: OrderedDict[str, bytes] = OrderedDict()
        self._failed: OrderedDict[str, tuple[str, float]] = OrderedDict()  # key: (reason, until when)
        self._jobs: queue.PriorityQueue[tuple[bool, int, Question]] = queue.PriorityQueue()
        self._number = count()
        self._waiting: dict[Question, bool] = {}  # whether somebody waits for it
        self._working: set[Question] = set()
        self._children = [Child(PROGRAM) for _ in range(WORKERS)]
        for child in self._children:
            threading.Thread(target=self._work, args=(child,), name="walkthrough", daemon=True).start()
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
        cached = self._kept.read(key)
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
        for child in self._children:
            child.close()

    def _work(self, child: Child) -> None:
        while not self._closed:
            try:
                _, _, question = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                child.end()
                continue
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
                answer, reason, lasting = self._compute(child, question)
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

    def _compute(self, child: Child, question: Question) -> tuple[bytes | None, str | None, bool]:
        """(gzipped JSON or None, why it failed or None, whether it would fail again)."""
        try:
            answer = _answers.decode(child.ask(question.words))
        except Died as error:
            return None, str(error), False
        if answer.last:
            child.end()
        if answer.reason:
            return None, printable(answer.reason, 300), answer.lasting
        return gzip.compress(bytes(answer.content), 5), None, True

    def _put_in_memory(self, key: str, answer: bytes) -> None:
        self._ready[key] = answer
        while len(self._ready) > 1 and sum(map(len, self._ready.values())) > MEMORY_LIMIT:
            self._ready.popitem(last=False)
