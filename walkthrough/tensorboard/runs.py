"""Which runs lie in TensorBoard's log folders: folders that hold traces, or results of the walkthrough's steps."""

import gzip
import math
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tensorboard.plugins.base_plugin import TBContext

from walkthrough.compare import compare
from walkthrough.compare.statistics import Rounds
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.results.folder import of_training, traces_in

MAX_FOLDERS = 20_000  # that are searched below a log folder
RESCAN_SECONDS = 3.0  # until the folders are searched again
FIRST_SCAN_SECONDS = 3.0  # that the first question waits for the first search
SCAN_SECONDS = 0.5  # that a question for the newest waits for a search: most folders take less
HEADER_BYTES = 2**18  # of a trace, in which its header names its rank
MAX_RESULT_BYTES = 2**22  # of a result.json
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,1000}?"rank"\s*:\s*(\d+)')
REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9.+-]+://")  # s3://, gs://: these are not read


@dataclass(frozen=True)
class Run:
    """One run folder. name: its path below the log folder, with "/". traces: files by name, the newest first.

    versions: of each trace, another text whenever the file has changed. has_ranks: whether the headers of its traces
    name more than one rank.
    """

    name: str
    folder: Path
    traces: dict[str, Path]
    result: record.Result | None
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
        files = record.run_files(self.folder)
        with suppress(OSError, InputError):
            if all(_is_file(file, MAX_RESULT_BYTES) for file in files):
                return compare.rounds_in(files)
        return {}


class Runs:
    """The runs below some log folders, searched again every few seconds, in a thread. Thread-safe.

    roots: [(name, path)]; with more than one, a run's name begins with its root's. Links are not followed: no file
    outside the folders is ever read.
    """

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self.roots = [(name, Path(path).resolve()) for name, path in roots]
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
            self._runs = dict(sorted(self._scan(), key=lambda named: natural(named[0])))
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

    def trace(self, name: str, file: str | None = None) -> Path:
        """The path of a run's trace: `file`, else that of its result, else the newest.

        Raises InputError where there is no such run or trace.
        """
        return self.run(name).trace(file)

    def _scan(self) -> Iterator[tuple[str, Run]]:
        for prefix, root in self.roots:
            for number, (folder, subfolders, files) in enumerate(os.walk(root)):
                subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
                if number == MAX_FOLDERS:
                    break
                name = _name(prefix, root, Path(folder), len(self.roots) > 1)
                with suppress(OSError):  # a folder that may not be read, or that vanishes meanwhile
                    if run := _run(Path(folder), files, name):
                        yield run.name, run


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


def _name(prefix: str, root: Path, folder: Path, several_roots: bool) -> str:
    below = folder.relative_to(root).as_posix()
    parts = [prefix] if several_roots and prefix else []
    parts += [below] if below != "." else []
    return "/".join(parts) or root.name or str(root)


def _run(folder: Path, files: list[str], name: str) -> Run | None:
    """The run in a folder; None where the folder holds none."""
    traces = [file for file in files if file.endswith((".trace.json", ".trace.json.gz")) and not file.startswith(".")]
    traces = [file for file in traces if _is_file(folder / file)]
    result = problem = None
    if record.FILE in files and _is_file(folder / record.FILE, MAX_RESULT_BYTES):
        try:
            result = record.read_result(folder / record.FILE)
        except InputError as error:
            problem = str(error)
    if not traces and result is None and problem is None:
        return None
    newest_first = [path.name for path in traces_in(folder) if path.name in traces] if traces else []
    known: dict[Path, str] = {}
    for file in newest_first:
        with suppress(OSError):  # it vanishes meanwhile
            status = (folder / file).stat()
            known[folder / file] = f"{status.st_size} {status.st_mtime_ns}"
    if not known and result is None and problem is None:
        return None
    training = of_training(list(known)) if len(known) > 1 else []
    ranks = {_rank(path, known[path]) for path in training} - {None}
    paths = {path.name: path for path in known}
    return Run(name, folder, paths, result, problem, list(known.values()), len(ranks) > 1)


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


def _is_file(path: Path, max_bytes: float = math.inf) -> bool:
    """True for a plain file: no link, no pipe that would block the reader. False where it vanishes meanwhile."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes
