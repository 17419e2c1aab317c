"""Which runs lie in TensorBoard's log folders: folders that hold traces, or results of the walkthrough's steps."""

import gzip
import math
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tensorboard.plugins.base_plugin import TBContext

from walkthrough.compare import compare
from walkthrough.compare.statistics import Rounds
from walkthrough.results.errors import InputError
from walkthrough.results.folder import of_training, traces_in
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import Result, read_result, run_files

MAX_FOLDERS = 20_000  # that are searched below a log folder
RESCAN_SECONDS = 3.0  # until the folders are searched again
FIRST_SCAN_SECONDS = 3.0  # that the first question waits for the first search
SCAN_SECONDS = 0.5  # that a question for the newest waits for a search: most folders take less
HEADER_BYTES = 2**18  # of a trace, in which its header names its rank
MAX_RESULT_BYTES = 2**22  # of a result.json
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,1000}?"rank"\s*:\s*(\d+)')
REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9.+-]+://")  # s3://, gs://: the Walkthrough tab does not read these


@dataclass(frozen=True)
class Folder:
    """A folder with traces or a result. name: its path below the log folder, with "/". files: those, by name."""

    name: str
    path: Path
    files: dict[str, os.stat_result]

    @property
    def traces(self) -> dict[str, os.stat_result]:
        """The traces among the files."""
        return {file: status for file, status in self.files.items() if file != RESULT_FILE}


def folders_below(roots: Iterable[tuple[str, str]]) -> Iterator[Folder]:
    """The folders below some log folders, but no hidden ones. roots: [(the begin of their names, path)].

    Links are not followed: no file outside the log folders is ever read, but a log folder itself may be a link.
    """
    for prefix, path in roots:
        root = Path(path).resolve()
        for number, (folder, subfolders, names) in enumerate(os.walk(root)):
            if number == MAX_FOLDERS:
                break
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            if files := _plain_files(folder, names):
                below = Path(folder).relative_to(root).parts
                name = "/".join([*filter(None, [prefix]), *below]) or root.name or str(root)
                yield Folder(name, Path(folder), files)


def _plain_files(folder: str, names: Iterable[str]) -> dict[str, os.stat_result]:
    """Those that are traces or a result: no hidden ones, no links, no pipes that would block the reader."""
    files = {}
    for name in names:
        if name == RESULT_FILE or (name.endswith((".trace.json", ".trace.json.gz")) and not name.startswith(".")):
            with suppress(OSError):  # it vanishes meanwhile, or the folder may not be read
                status = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(status.st_mode):
                    files[name] = status
    return files


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

    versions: of each trace, another text whenever the file has changed. has_ranks: whether the headers of its traces
    name more than one rank.
    """

    name: str
    folder: Path
    traces: dict[str, Path]
    result: Result | None
    problem: str | None  # why its result cannot be read
    versions: list[str]
    has_ranks: bool

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
        if (self.folder / "runs").is_symlink():
            return {}
        files = run_files(self.folder)
        with suppress(OSError, InputError):
            for file in files:
                status = file.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_RESULT_BYTES:
                    return {}
            return compare.rounds_in(files)
        return {}


class Runs:
    """The runs below some log folders, searched again every few seconds, in a thread. Thread-safe.

    roots: [(name, path)]; with more than one, a run's name begins with its root's.
    """

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self.roots = roots if len(roots) > 1 else [("", path) for _, path in roots]
        self._lock, self._scanning, self._scanned_at = threading.Lock(), False, -math.inf
        self._runs: dict[str, Run] = {}
        self._first_scan, self._scan_ended = threading.Event(), threading.Event()

    def latest(self, newest: bool = False) -> dict[str, Run]:
        """{name: Run}, by name (numbers in it as numbers), as the last search found them.

        The first call waits a little for the first search. newest: wait a moment for a search that is under way, too.
        """
        with self._lock:
            if not self._scanning and time.monotonic() - self._scanned_at >= RESCAN_SECONDS:
                self._scanning = True
                self._scan_ended.clear()
                threading.Thread(target=self._rescan, name="walkthrough runs", daemon=True).start()
        self._first_scan.wait(FIRST_SCAN_SECONDS)
        if newest:
            self._scan_ended.wait(SCAN_SECONDS)
        return self._runs

    def _rescan(self) -> None:
        try:
            runs = sorted(filter(None, map(_run, folders_below(self.roots))), key=lambda run: natural(run.name))
            self._runs = {run.name: run for run in runs}
        finally:
            self._scanned_at, self._scanning = time.monotonic(), False
            self._first_scan.set()
            self._scan_ended.set()

    def run(self, name: str) -> Run:
        """The `Run` of that name; raises InputError where there is none."""
        run = self.latest().get(name)
        if run is None:
            raise InputError(f"no run {name!r} here")
        return run


def _run(folder: Folder) -> Run | None:
    """The run in a folder; None where the folder holds none."""
    result = problem = None
    if RESULT_FILE in folder.files and folder.files[RESULT_FILE].st_size <= MAX_RESULT_BYTES:
        try:
            result = read_result(folder.path / RESULT_FILE)
        except InputError as error:
            problem = str(error)
    versions: dict[Path, str] = {}
    if statuses := folder.traces:
        with suppress(OSError):  # the folder may vanish meanwhile
            newest_first = [path for path in traces_in(folder.path) if path.name in statuses]
            versions = {
                path: f"{statuses[path.name].st_size} {statuses[path.name].st_mtime_ns}" for path in newest_first
            }
    if not versions and result is None and problem is None:
        return None
    training = of_training(list(versions)) if len(versions) > 1 else []
    ranks = {_rank(path, versions[path]) for path in training} - {None}
    traces = {path.name: path for path in versions}
    return Run(folder.name, folder.path, traces, result, problem, list(versions.values()), len(ranks) > 1)


@lru_cache(10_000)
def _rank(path: Path, version: str) -> int | None:
    """The rank that a trace's header names, as far as its begin shows; None where it names none. See `Run.versions`."""
    with suppress(OSError, EOFError, zlib.error), path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        begin = gzip.GzipFile(fileobj=file).read(HEADER_BYTES) if packed else file.read(HEADER_BYTES)
        found = _RANK.search(begin)
        return int(found[1]) if found else None
    return None
