"""When PYTORCH_PROFILER reads which trace: the run that a page asks for first, and again what has changed."""

import atexit
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torch_tb_profiler.run import Run

from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import printable
from walkthrough.tensorboard.answers import IDLE_SECONDS, RETRY_SECONDS, Child, Died, Kept, cache_folder
from walkthrough.tensorboard.log_folders import natural
from walkthrough.tensorboard.profiles import Missing, Profiles
from walkthrough.tensorboard.traces import Folder, Trace
from walkthrough.tensorboard.worker import Job, Outcome

log = logging.getLogger("walkthrough")
DISK_LIMIT = 2**30  # bytes of kept profiles
PATIENCE_SECONDS = 5.0  # that a request for a run waits until its traces are read
READERS = min(8, usable_cores())
# The warnings that are left out are the plugin's: it was written for old pandas.
PROGRAM = ("-W", "ignore", "-m", "walkthrough.tensorboard.worker")
COMPARED = 2  # runs that may be asked for at a time, by the Diff view: their profiles may exceed `DISK_LIMIT`
BEHIND = 15  # how "nice" children are that read what nobody waits for


class Unknown(Exception):
    """There is no such run."""


class NotYet(Exception):
    """The traces of a run are still being read."""


class NotReadable(Exception):
    """No trace of a run can be read."""


@dataclass
class _Run:
    """shown: the traces whose profiles are shown; None before those of `wanted` have been read for the first time."""

    folder: str
    wanted: tuple[Trace, ...]
    shown: tuple[Trace, ...] | None = None
    shown_folder: str = ""


class Loading:
    """The runs of some log folders, read by child processes, and read again when their files change. Thread-safe.

    search: yields (name, folder) of each run. local: gives the path of a remote file's copy. dropped: see `Profiles`.
    cache: the folder for profiles, None for the user's.
    """

    def __init__(
        self,
        search: Callable[[], Iterable[tuple[str, Folder]]],
        local: Callable[[str], str] = str,
        dropped: Callable[[], None] = lambda: None,
        cache: Path | None = None,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self._search, self._local = search, local
        self._kept = Kept(cache or cache_folder() / "profiles", DISK_LIMIT, ".profile.gz")
        self._temporary = False  # whether profiles are kept in a folder of this process
        if not self._kept.folder:
            self._keep_in_temporary_folder()
        self._profiles = Profiles(self._kept, dropped)
        self._changed = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._outcomes: dict[str, tuple[str | None, float]] = {}  # by key: (why it failed or None, until when)
        self._working: set[str] = set()
        self._died: set[str] = set()  # keys of traces at which a child has died
        self._later: set[str] = set()  # keys of files that were written to while they were read
        self._urgent: list[str] = []  # the runs that were asked for, the last first
        self._searched = self._closed = False
        self._children: list[Child] = []
        for nice in (*[BEHIND] * READERS, 0):
            child = Child((*program, str(nice)))
            self._children.append(child)
            args = child, nice == 0
            threading.Thread(target=self._work, args=args, name="walkthrough profiles", daemon=True).start()
        atexit.register(self.close)

    def search(self) -> bool:
        """Look which traces there are now, and have those read that are new or have changed.

        True where one is being written: it is left out until that has ended.
        """
        found: dict[str, Folder] = dict(self._search())
        ready = {
            trace.key
            for folder in found.values()
            for trace in folder.traces
            if trace.key not in self._outcomes and self._is_kept(trace)
        }
        with self._changed:
            for key in ready - self._working:
                self._outcomes[key] = None, float("inf")
            now = time.monotonic()
            self._outcomes = {key: outcome for key, outcome in self._outcomes.items() if now < outcome[1]}
            self._later.clear()
            for name in self._runs.keys() - found.keys():
                del self._runs[name]
            for name, folder in found.items():
                run = self._runs.get(name, _Run(folder.path, ()))
                before = [trace for trace in run.wanted if trace.file in folder.writing]
                run.folder, run.wanted = folder.path, (*folder.traces, *before)
                if run.wanted:
                    self._runs[name] = run
            self._settle()
            self._searched = True
            wanted = {trace.key for run in self._runs.values() for trace in (*run.wanted, *(run.shown or ()))}
            self._outcomes = {key: outcome for key, outcome in self._outcomes.items() if key in wanted}
            self._died &= wanted
            self._changed.notify_all()
            names = set(self._runs)
        self._profiles.keep_only(names)
        return any(folder.writing for folder in found.values())

    def names(self) -> list[str]:
        """The runs that can be asked for, numbers in order: not those of which no trace can be read."""
        with self._changed:
            names = [name for name, run in self._runs.items() if run.shown or not self._is_settled(run)]
        return sorted(names, key=natural)

    @property
    def loading(self) -> bool:
        """True while a trace is being read, or waits for that."""
        with self._changed:
            return not self._searched or not all(map(self._is_settled, self._runs.values()))

    def failures(self) -> list[dict[str, str]]:
        """[{run, file, reason}] of the traces that cannot be read."""
        with self._changed:
            traces = [(name, trace) for name, run in self._in_order() for trace in run.wanted]
            reasons = [self._outcomes.get(trace.key, (None, 0))[0] for _, trace in traces]
        return [
            {"run": printable(name), "file": printable(trace.file), "reason": reason}
            for (name, trace), reason in zip(traces, reasons, strict=True)
            if reason
        ]

    def run(self, name: str, patience: float = PATIENCE_SECONDS) -> Run:
        """A run, which is read before the others if it is not there yet.

        Raises Unknown, NotReadable, or NotYet after `patience` seconds.
        """
        until = time.monotonic() + patience
        while True:
            run = self._wait_for(name, until)
            try:
                return self._profiles.run(name, run.shown_folder, run.shown or ())
            except Missing as missing:
                deleted = {trace.key for trace in run.wanted if not self._is_kept(trace)}
                with self._changed:
                    read = {key for key in deleted if key in self._outcomes and self._outcomes[key][0] is None}
                    for key in read | {missing.trace.key}:
                        self._outcomes.pop(key, None)
                    run.shown = None
                    self._settle()
                    self._changed.notify_all()

    def close(self) -> None:
        """Kill the children and start no more."""
        self._closed = True
        for child in self._children:
            child.close()

    def _wait_for(self, name: str, until: float) -> _Run:
        asked = False
        with self._changed:
            while True:
                run = self._runs.get(name)
                if run is None and self._searched:
                    raise Unknown(name)
                if run and not asked:
                    self._urgent = [name, *(other for other in self._urgent if other != name)]
                    self._changed.notify_all()
                    asked = True
                if run and run.shown:
                    return run
                if run and self._is_settled(run):
                    raise NotReadable(name)
                if (left := until - time.monotonic()) <= 0:
                    raise NotYet(name)
                self._changed.wait(left)

    def _in_order(self) -> list[tuple[str, _Run]]:
        return sorted(self._runs.items(), key=lambda named: natural(named[0]))

    def _is_settled(self, run: _Run) -> bool:
        return all(trace.key in self._outcomes for trace in run.wanted)

    def _settle(self) -> None:
        """Show the runs whose traces have all been read; the caller holds the lock."""
        for run in self._runs.values():
            if self._is_settled(run):
                run.shown = tuple(trace for trace in run.wanted if self._outcomes[trace.key][0] is None)
                run.shown_folder = run.folder

    def _work(self, child: Child, only_urgent: bool) -> None:
        while not self._closed:
            trace = self._next(only_urgent)
            if trace is None:
                child.end()
                continue
            into = self._kept.path(trace.key)
            assert into
            try:
                outcome = self._read(child, trace, into)
            except Exception as error:  # a remote file that cannot be copied, say
                log.warning("%s", trace.path, exc_info=error)
                outcome = Outcome(printable(f"{type(error).__name__}: {error}", 300), temporary=True)
            with self._changed:
                self._working.discard(trace.key)
                if outcome.changed:
                    self._later.add(trace.key)
                elif outcome.unwritable and self._has_another_folder(into.parent, trace, outcome):
                    outcome = Outcome()  # it is read again
                else:
                    until = time.monotonic() + RETRY_SECONDS if outcome.temporary else float("inf")
                    self._outcomes[trace.key] = outcome.reason, until
                self._settle()
                self._changed.notify_all()
            if outcome.reason and not self._closed:
                log.warning("%s cannot be read and is left out: %s", printable(trace.path), outcome.reason)

    def _read(self, child: Child, trace: Trace, into: Path) -> Outcome:
        path = self._local(trace.path)
        job = Job(path, trace.worker, trace.span, trace.size, trace.mtime_ns, str(into))
        try:
            outcome = Outcome(**json.loads(child.ask(asdict(job))))
        except Died as error:  # it may have been killed for the memory that its neighbours take: one more try
            with self._changed:
                temporary = trace.key not in self._died
                self._died.add(trace.key)
            return Outcome(str(error), temporary=temporary)
        if outcome.last:
            child.end()
        with self._changed:
            runs = [self._runs[name] for name in self._urgent if name in self._runs]
            spare = {trace.key for run in runs[:COMPARED] for trace in (*run.wanted, *(run.shown or ()))}
        self._kept.prune(spare)
        return outcome

    def _has_another_folder(self, folder: Path, trace: Trace, outcome: Outcome) -> bool:
        """True where profiles are no longer kept in `folder`, which cannot be written to; the caller holds the lock."""
        if folder == self._kept.folder and not self._temporary:
            try:
                self._keep_in_temporary_folder()
            except OSError:
                return False
            log.warning("%s: %s; a temporary folder is used", printable(trace.path), outcome.reason)
        return folder != self._kept.folder

    def _keep_in_temporary_folder(self) -> None:
        """Raises OSError where there can be none."""
        self._kept.folder = Path(tempfile.mkdtemp(prefix="profiles"))
        self._temporary = True
        atexit.register(shutil.rmtree, self._kept.folder, ignore_errors=True)

    def _is_kept(self, trace: Trace) -> bool:
        path = self._kept.path(trace.key)
        return path is not None and os.path.exists(path)

    def _next(self, only_urgent: bool) -> Trace | None:
        """The trace to read next, as soon as there is one; None after a while without."""
        with self._changed:
            until = time.monotonic() + IDLE_SECONDS
            while not self._closed:
                urgent = [name for name in self._urgent if name in self._runs]
                names = (
                    urgent if only_urgent else [*urgent, *(name for name, _ in self._in_order() if name not in urgent)]
                )
                for trace in (trace for name in names for trace in self._runs[name].wanted):
                    if not any(trace.key in known for known in (self._outcomes, self._working, self._later)):
                        self._working.add(trace.key)
                        return trace
                if (left := until - time.monotonic()) <= 0:
                    return None
                self._changed.wait(left)
            return None
