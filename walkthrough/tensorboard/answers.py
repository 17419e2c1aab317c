"""Answers about traces, for both tabs: computed once, by child processes, and kept in the user's cache folder."""

import atexit
import gzip
import io
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from walkthrough.results.environment import ROOT
from walkthrough.results.errors import printable
from walkthrough.results.files import open_plain
from walkthrough.tensorboard.worker import SECONDS_VARIABLE, Outcome, Question, limits

log = logging.getLogger("walkthrough")
# The warnings that are left out are torch-tb-profiler's: it was written for old pandas.
PROGRAM = ("-W", "ignore", "-m", "walkthrough.tensorboard.worker")
SETTLE_SECONDS = 1.0  # since a trace was last written to: until then it may be incomplete
RETRY_SECONDS = 30.0  # until a failure that may be temporary is tried again
IDLE_SECONDS = 20.0  # until a child that has nothing to read ends
MOST_OUTCOMES = 100_000  # of questions, that are remembered
MOST_WAITING = 100  # urgent questions: those asked first are dropped, and asked again by a page that still waits
PATIENCE = 6  # times a child's seconds of the CPU: it is killed, whatever it waits for

Answer = tuple[Literal["ready"], bytes] | tuple[Literal["reading"], None] | tuple[Literal["failed"], str]


class Died(Exception):
    """A child ended before its answer, or in the middle of it."""


class TooLong(Died):
    """The answer would take a child longer than it may."""


class Answers:
    """The answers in a folder, and the children that add to it. Thread-safe; no answer is computed twice at a time.

    kept: the folder. readers: how many children read. nice: added to theirs; then one more, as urgent as TensorBoard,
    reads only what somebody waits for. local: gives the path of a remote file's copy. spare: gives the keys of
    answers that are not deleted, however large the folder is. program: the words after "python" of the children.
    """

    def __init__(
        self,
        kept: "Kept",
        readers: int,
        nice: int = 0,
        local: Callable[[str], str] = str,
        spare: Callable[[], Collection[str]] = tuple,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self.kept, self._local, self._spare = kept, local, spare
        self.changed = threading.Condition()  # notified of each new question and outcome; may be held by its holder
        self._outcomes: dict[str, tuple[str | None, float]] = {}  # by key: (why it failed or None, until when)
        self._urgent: OrderedDict[Question, None] = OrderedDict()  # somebody waits for these; asked last: last
        self._ahead: OrderedDict[Question, None] = OrderedDict()  # nobody does
        self._working: set[Question] = set()  # those of the two that a child has
        self._died: set[str] = set()  # keys of questions at which a child has died
        self._closed = False
        self._children: list[Child] = []
        for niceness in (*[nice] * readers, *([0] if nice else [])):
            child = Child((*program, str(niceness)))
            self._children.append(child)
            args = child, niceness < nice
            threading.Thread(target=self._work, args=args, name="walkthrough answers", daemon=True).start()
        atexit.register(self.close)

    def get(self, question: Question) -> Answer:
        """("ready", the answer, gzipped), ("reading", None) or ("failed", reason). Does not wait: see `ask`."""
        if packed := self.kept.read(question.key):
            return "ready", packed
        with self.changed:
            self.forget_missing([question])
            self.ask(question)
            reason = self.failure(question)
        return ("failed", reason) if reason else ("reading", None)

    def ask(self, question: Question, urgent: bool = True) -> None:
        """Have an answer computed, unless there is one, or it has failed and is not to be tried again yet.

        urgent: a reader waits for it, so it goes before what is read ahead, and before what was asked for earlier.
        """
        with self.changed:
            if time.monotonic() < self._outcomes.get(question.key, (None, -math.inf))[1]:
                return
            self._outcomes.pop(question.key, None)
            if self.kept.path(question.key).exists():
                self._set_outcome(question, Outcome())
            elif urgent:
                self._ahead.pop(question, None)
                self._urgent[question] = None
                self._urgent.move_to_end(question)
                for one in [one for one in self._urgent if one not in self._working][:-MOST_WAITING]:
                    del self._urgent[one]
                self.changed.notify_all()
            elif question not in self._urgent and question not in self._ahead:
                self._ahead[question] = None
                self.changed.notify_all()

    def read_ahead(self, questions: Iterable[Question]) -> None:
        """Have these answered, in this order, while nobody waits for anything, and not what was to be read before."""
        with self.changed:
            before = self._ahead
            self._ahead = OrderedDict.fromkeys(question for question in before if question in self._working)
            for question in questions:
                if question in before:  # there is no answer yet: it need not be looked for
                    self._ahead.setdefault(question)
                else:
                    self.ask(question, urgent=False)

    def is_settled(self, question: Question) -> bool:
        """Whether the answer has been computed, or could not be."""
        with self.changed:
            return question.key in self._outcomes

    def failure(self, question: Question) -> str | None:
        """Why there is no answer; None where there is one, or none yet."""
        with self.changed:
            return self._outcomes.get(question.key, (None, 0))[0]

    def forget_missing(self, questions: Iterable[Question]) -> None:
        """Those of the questions that were answered, but whose answers are not kept any more, can be asked again."""
        with self.changed:
            for question in questions:
                if not self.failure(question) and not self.kept.path(question.key).exists():
                    self._outcomes.pop(question.key, None)

    @property
    def reading(self) -> int:
        """How many answers are being computed or wait for that."""
        return len(self._urgent) + len(self._ahead)

    def close(self) -> None:
        """Kill the child processes and start no more."""
        self._closed = True
        for child in self._children:
            child.close()

    def _work(self, child: "Child", only_urgent: bool) -> None:
        while not self._closed:
            question = self._next(only_urgent)
            if question is None:
                child.end()
                continue
            into = self.kept.path(question.key)
            try:
                outcome = self._compute(child, question, into)
            except Exception as error:  # a remote file that cannot be copied, say
                log.warning("%s", printable(question.path), exc_info=error)
                outcome = Outcome(printable(f"{type(error).__name__}: {error}", 300), temporary=True)
            self.kept.prune(self._spare)
            path = printable(question.path)
            with self.changed:
                self._working.discard(question)
                is_again = outcome.unwritable and self.kept.leave(into.parent, f"{path}: {outcome.reason}")
                if not is_again:
                    self._urgent.pop(question, None)
                    self._ahead.pop(question, None)
                if not is_again and not outcome.changed:
                    self._set_outcome(question, outcome)
                self.changed.notify_all()
            if outcome.reason and not is_again and not self._closed:
                about = f"{path} cannot be read and is left out"
                log.warning(
                    "%s: %s", about if question.kind == "profile" else f"{question.kind} of {path}", outcome.reason
                )

    def _next(self, only_urgent: bool) -> Question | None:
        """The question to answer next, as soon as there is one; None after a while without."""
        with self.changed:
            until = time.monotonic() + IDLE_SECONDS
            while not self._closed:
                writing = False
                for question in chain(reversed(self._urgent), () if only_urgent else self._ahead):
                    if question in self._working:
                        continue
                    if not is_being_written(question.mtime_ns):
                        self._working.add(question)
                        return question
                    writing = True
                if (left := until - time.monotonic()) <= 0:
                    return None
                self.changed.wait(min(left, 0.1) if writing else left)
            return None

    def _compute(self, child: "Child", question: Question, into: Path) -> Outcome:
        job = replace(question, path=self._local(question.path), into=str(into))
        try:
            is_used = child.is_running
            outcome = Outcome(**json.loads(child.ask(job)))
            if outcome.starved and is_used:  # it may have been for what others left: no reason to call this unreadable
                child.end()
                outcome = Outcome(**json.loads(child.ask(job)))
        except TooLong as error:
            return Outcome(str(error))
        except Died as error:  # it may have been killed for the memory that its neighbours take: one more try
            with self.changed:
                temporary = question.key not in self._died
                if len(self._died) > MOST_OUTCOMES:
                    self._died.clear()
                self._died.add(question.key)
            return Outcome(str(error), temporary=temporary)
        if outcome.last:
            child.end()
        return outcome

    def _set_outcome(self, question: Question, outcome: Outcome) -> None:
        until = time.monotonic() + RETRY_SECONDS if outcome.temporary else math.inf
        self._outcomes[question.key] = outcome.reason, until
        if len(self._outcomes) > MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]


class Child:
    """A process that does jobs one after the other; the first starts it, and the next after it has ended.

    program: the words after "python". A job is a line of JSON; so is what the child says about it.
    """

    def __init__(self, program: tuple[str, ...]) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False

    @property
    def is_running(self) -> bool:
        """Whether the next job is not the first of its process."""
        return self._process is not None

    def ask(self, job: Question) -> bytes:
        """Wait for the line that it answers with. Raises Died, or TooLong."""
        with self._lock:
            if self._closed:
                raise Died("TensorBoard ends")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, *self.program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            process = self._process
        answer, seconds, too_long = b"", limits().seconds, threading.Event()
        timer = threading.Timer(PATIENCE * seconds, lambda: (too_long.set(), process.kill()))
        timer.start()
        with suppress(OSError, ValueError):  # a broken pipe, or one that `close` has closed
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        timer.cancel()
        if not answer.endswith(b"\n"):
            self.end()
            xcpu = getattr(signal, "SIGXCPU", None)
            if too_long.is_set() or (xcpu and process.returncode == -xcpu):
                raise TooLong(f"reading it takes more than {seconds} s of the CPU: {SECONDS_VARIABLE} sets the limit")
            raise Died(f"the process that read it ended with exit code {process.returncode}: out of memory?")
        return answer

    def end(self) -> None:
        """Let the child end, and reap it; the next job starts another."""
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


class Kept:
    """Gzipped answers in a folder that only the user can write to: a temporary one, where `folder` is none.

    limit: bytes of all files together; the oldest go first. suffix: the end of the files' names.
    """

    def __init__(self, folder: Path, limit: int, suffix: str) -> None:
        self.folder, self.limit, self.suffix = folder, limit, suffix
        self._is_temporary = False
        if not _is_usable(folder):
            self._use_temporary_folder()

    def path(self, key: str, part: str = "") -> Path:
        """The file of an answer, whether it is there or not. part: the end of the name of another file of it."""
        path = self.folder / f"{key}{self.suffix}"
        return path.with_suffix(part) if part else path

    def read(self, key: str, part: str = "") -> bytes | None:
        """An answer, gzipped; None where there is none. part: see `path`.

        A damaged one is deleted, and one that others could have written.
        """
        path = self.path(key, part)
        try:
            with open_plain(path) as file:
                packed = file.read() if _is_private(os.fstat(file.fileno())) else b""
            with gzip.open(io.BytesIO(packed)) as unpacked:  # piece by piece, to see that it is whole
                if sum(map(len, iter(lambda: unpacked.read(2**20), b""))):
                    return packed
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, zlib.error):
            pass
        self.delete(key)
        return None

    def delete(self, key: str) -> None:
        """An answer that is of no use."""
        with suppress(OSError):
            self.path(key).unlink()

    def leave(self, folder: Path, why: str) -> bool:
        """Use a temporary folder, since `folder` cannot be written to; False where that is in use already, or none."""
        if folder == self.folder and not self._is_temporary:
            self._use_temporary_folder()
            log.warning("%s; a temporary folder is used", why)
        return folder != self.folder

    def prune(self, spare: Callable[[], Collection[str]] = tuple) -> None:
        """Once the files go beyond `limit`, delete the oldest, an eighth of it. spare: gives the keys of others."""
        files, an_hour_ago = [], time.time() - 3600
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(OSError):  # another process may have deleted it
                    status = file.lstat()
                    is_half_written = file.name.startswith(".") and status.st_mtime > an_hour_ago
                    if not file.is_dir() and not is_half_written:
                        files.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return
        spared = spare()
        for _, size, file in sorted(files):
            if total > self.limit * 7 // 8 and file.name.split(".")[0] not in spared:
                with suppress(OSError):
                    file.unlink()
                total -= size

    def _use_temporary_folder(self) -> None:
        self.folder, self._is_temporary = Path(os.devnull), True  # where there is none, each failure says so
        with suppress(OSError):
            self.folder = Path(tempfile.mkdtemp(prefix="walkthrough-"))
            atexit.register(shutil.rmtree, self.folder, ignore_errors=True)


def cache_folder() -> Path:
    """The user's folder for what this project keeps, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "pytorch-training-walkthrough"


def is_being_written(mtime_ns: int) -> bool:
    """Whether a file that was changed at that time may be incomplete."""
    return 0 <= time.time() - mtime_ns / 1e9 < SETTLE_SECONDS


def _is_usable(folder: Path) -> bool:
    """Whether only the user can write to the folder, which is created where it is missing."""
    try:
        if not folder.is_absolute():
            return False
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _is_private(folder.stat()) and os.access(folder, os.W_OK)
    except OSError:
        return False


def _is_private(status: os.stat_result) -> bool:
    """Whether a file or folder is the user's, and nobody else can write to it; True where the system does not say."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
