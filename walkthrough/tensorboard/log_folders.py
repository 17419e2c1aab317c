"""Which runs lie in TensorBoard's log folders: folders that hold traces, or results of the walkthrough's steps."""

import gzip
import logging
import math
import os
import re
import stat
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tensorboard.plugins.base_plugin import TBContext

from walkthrough.compare import rounds
from walkthrough.compare.statistics import Rounds
from walkthrough.results.errors import InputError, printable
from walkthrough.results.files import open_plain
from walkthrough.results.folder import age, of_training
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import Result, read_result, run_files

log = logging.getLogger("walkthrough")
MAX_FOLDERS = 20_000  # that are searched below a log folder
RESCAN_SECONDS = 3.0  # until the folders are searched again
FIRST_SCAN_SECONDS = 3.0  # that the first question waits for the first search
SCAN_SECONDS = 0.5  # that a question for the newest waits for a search: most folders take less
HEADER_BYTES = 2**18  # of a trace, in which its header names its rank
MOST_RANKS = 64  # traces of a run whose headers are read, and that are compared: the newest
HEADERS_SECONDS = 1.0  # that a search reads headers; what is left is for the next
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,1000}?"rank"\s*:\s*(\d{1,9})(?!\d)')
REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9.+-]+://")  # s3://, gs://: the Walkthrough tab does not read these


Status = tuple[int, int]  # of a file: bytes, and when it was last changed, ns


@dataclass(frozen=True)
class Folder:
    """A folder with traces or a result. name: its path below the log folder, with "/". files: those, by name."""

    name: str
    path: Path
    files: dict[str, Status]

    @property
    def traces(self) -> dict[str, Status]:
        """The traces among the files."""
        return {file: status for file, status in self.files.items() if file != RESULT_FILE}


def folders_below(roots: Iterable[tuple[str, str]]) -> Iterator[Folder]:
    """The folders below some log folders, but no hidden ones. roots: [(the begin of their names, path)].

    Links are not followed: no file outside the log folders is ever read, but a log folder itself may be a link. Those
    near the root come first: `MAX_FOLDERS` are searched. No two have the same name.
    """
    names: set[str] = set()
    for prefix, path in roots:
        root = Path(os.path.realpath(path))
        waiting, searched = deque([str(root)]), 0
        while waiting and searched < MAX_FOLDERS:
            folder, searched = Path(waiting.popleft()), searched + 1
            files, subfolders = _entries(folder)
            waiting += sorted(subfolders)
            if files:
                name = "/".join([*filter(None, [prefix]), *folder.relative_to(root).parts]) or root.name or str(root)
                first, number = (name := well_formed(name)), 2
                while name in names:
                    name, number = f"{first} ({number})", number + 1
                names.add(name)
                yield Folder(name, folder, files)
        if waiting:
            _say_cut(root)


@cache
def _say_cut(root: Path) -> None:
    log.warning("%s: only %s folders are searched, others are left out", printable(root), f"{MAX_FOLDERS:,}")


def _entries(folder: Path) -> tuple[dict[str, Status], list[str]]:
    """(the traces and the result in a folder, its subfolders): no hidden ones, no links, no pipes."""
    files, subfolders = {}, []
    with suppress(OSError), os.scandir(folder) as entries:  # the folder may not be read
        for entry in entries:
            name = entry.name
            with suppress(OSError):  # it vanishes meanwhile
                if name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(entry.path)
                elif name == RESULT_FILE or name.endswith((".trace.json", ".trace.json.gz")):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        files[name] = status.st_size, status.st_mtime_ns
    return files, subfolders


def well_formed(name: str) -> str:
    """The name of a file as a page can send it back: bytes that are no UTF-8 are spelt out."""
    return os.fsencode(name).decode(errors="backslashreplace")


def roots_of(context: TBContext) -> list[tuple[str, str]]:
    """[(name, path)] of the local log folders that TensorBoard was started with, read as TensorBoard reads them."""
    spec = getattr(context.flags, "logdir_spec", "") if context.flags else ""
    if not spec:  # an empty logdir is no folder: as a path it would be TensorBoard's working directory
        return [("", context.logdir)] if context.logdir and not REMOTE.match(context.logdir) else []
    roots = []
    for number, part in enumerate(filter(None, spec.split(",")), start=1):
        named = ":" in part and not REMOTE.match(part) and part[0] != "/" and not os.path.splitdrive(part)[0]
        name, _, path = part.partition(":") if named else (str(number), "", part)
        if path and not REMOTE.match(path):
            roots.append((name, os.path.expanduser(path)))
    return roots


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names with the numbers in them as numbers: run2 before run10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), part) if at % 2 else (1, 0, part) for at, part in enumerate(parts) if part]


@dataclass(frozen=True)
class Run:
    """One run folder. name: its path below the log folder, with "/". traces: files by name, the newest first.

    versions: of each trace, another text whenever the file has changed. training: its traces of training. has_ranks:
    whether their headers name more than one rank; None before they have been read.
    """

    name: str
    folder: Path
    traces: dict[str, Path]
    result: Result | None
    problem: str | None  # why its result cannot be read, or the folder
    versions: list[str]
    training: list[Path]
    has_ranks: bool | None

    def trace(self, file: str | None = None) -> Path:
        """The path of one of its traces: `file`, else that of its result, else the newest. InputError if none."""
        if not self.traces:
            raise InputError(f"run {self.name!r} holds no trace")
        if file is None:
            file = self.result.trace if self.result and self.result.trace in self.traces else next(iter(self.traces))
        if file not in self.traces:
            raise InputError(f"run {self.name!r} holds no trace {file!r}")
        return self.traces[file]

    def rounds(self) -> Rounds:
        """The windows that the folder keeps round by round; {} where it keeps none, or none that can be read."""
        with suppress(OSError, InputError):
            return rounds.rounds_in(run_files(self.folder), no_links=True)
        return {}


class Runs:
    """The runs below some log folders, searched again every few seconds, in a thread. Thread-safe.

    roots: [(name, path)]; with more than one, a run's name begins with its root's.
    """

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self.roots = roots if len(roots) > 1 else [("", path) for _, path in roots]
        self._lock, self._scanning, self._next_scan = threading.Lock(), False, -math.inf
        self._seen: dict[Path, tuple[Folder, Run | None]] = {}
        self._runs: dict[str, Run] = {}
        self._first_scan, self._scan_ended = threading.Event(), threading.Event()

    def latest(self, newest: bool = False) -> dict[str, Run]:
        """{name: Run}, by name (numbers in it as numbers), as the last search found them.

        It is the same object until a run changes.
        The first call waits a little for the first search. newest: wait a moment for a search that is under way, too.
        """
        with self._lock:
            if not self._scanning and time.monotonic() >= self._next_scan:
                self._scanning = True
                self._scan_ended.clear()
                threading.Thread(target=self._rescan, name="walkthrough runs", daemon=True).start()
        self._first_scan.wait(FIRST_SCAN_SECONDS)
        if newest:
            self._scan_ended.wait(SCAN_SECONDS)
        return self._runs

    def _rescan(self) -> None:
        begun = time.monotonic()
        try:
            self._seen = {folder.path: (folder, self._looked_at(folder)) for folder in folders_below(self.roots)}
            ends = time.monotonic() + HEADERS_SECONDS
            for path, (folder, run) in self._seen.items():
                if run and run.has_ranks is None and time.monotonic() < ends:
                    self._seen[path] = folder, replace(run, has_ranks=_has_ranks(run.training))
            runs = sorted((run for _, run in self._seen.values() if run), key=lambda run: natural(run.name))
            if (by_name := {run.name: run for run in runs}) != self._runs:
                self._runs = by_name
        finally:
            now = time.monotonic()
            self._next_scan, self._scanning = now + max(RESCAN_SECONDS, 5 * (now - begun)), False
            self._first_scan.set()
            self._scan_ended.set()

    def _looked_at(self, folder: Folder) -> Run | None:
        """The run in a folder, as it was found before where no file has changed; None where the folder holds none."""
        before, run = self._seen.get(folder.path, (None, None))
        is_same = before == folder
        if is_same and not (run and run.problem):
            return run
        try:
            return _run(folder, run.has_ranks if is_same and run else None)
        except Exception as error:  # whatever a folder holds, the other runs are shown
            if not is_same:
                log.exception("%s", printable(folder.path))
            problem = f"{folder.path} cannot be shown: {type(error).__name__}: {error}"
            return Run(folder.name, folder.path, {}, None, problem, [], [], False)

    def run(self, name: str) -> Run:
        """The `Run` of that name; raises InputError where there is none."""
        run = self.latest().get(name)
        if run is None:
            raise InputError(f"no run {name!r} here")
        return run


def _run(folder: Folder, has_ranks: bool | None = None) -> Run | None:
    """The run in a folder; None where the folder holds none. has_ranks: what is known of it, see `Run`."""
    result = problem = None
    if RESULT_FILE in folder.files:
        path = folder.path / RESULT_FILE
        try:
            result = read_result(path, no_links=True)
        except InputError as error:
            problem = str(error)
    statuses = folder.traces
    if not statuses and result is None and problem is None:
        return None
    newest_first = sorted(statuses, key=lambda name: age(name, statuses[name][1] / 1e9), reverse=True)
    traces = {well_formed(name): folder.path / name for name in newest_first}
    versions = ["{} {}".format(*statuses[path.name]) for path in traces.values()]
    training = of_training(list(traces.values()))
    has_ranks = has_ranks if len(training) > 1 else False
    return Run(folder.name, folder.path, traces, result, problem, versions, training, has_ranks)


def _has_ranks(traces: list[Path]) -> bool:
    """Whether the headers of the newest traces name more than one rank, as far as their begins show."""
    ranks = set()
    for path in traces[:MOST_RANKS]:
        with suppress(OSError, EOFError, zlib.error), open_plain(path, no_links=True) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            begin = gzip.GzipFile(fileobj=file).read(HEADER_BYTES) if packed else file.read(HEADER_BYTES)
            ranks.update(map(int, _RANK.findall(begin)[:1]))
        if len(ranks) > 1:
            return True
    return False
