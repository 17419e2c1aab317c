"""What is computed from traces: once, in child processes, kept in memory and in the user's cache folder."""

import atexit
import gzip
import logging
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import walkthrough.trace
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import printable
from walkthrough.tensorboard.children import IDLE_SECONDS, RETRY_SECONDS, SETTLE_SECONDS, Child, Died
from walkthrough.tensorboard.kept import Kept, cache_folder, hash_of_code, key_of
from walkthrough.trace import digest

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
