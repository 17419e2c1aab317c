"""Which runs lie in TensorBoard's log folders: folders that hold traces, or results of the walkthrough's steps."""

import math
import os
import re
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common import record
from common.errors import InputError
from common.trace import source

MOST_FOLDERS = 20_000  # that are looked through
AGAIN = 3.0  # s until the folders are looked through again
PATIENCE = 3.0  # s that the first question waits for the first look
LARGEST_RESULT = 2**22  # bytes of a result.json
REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9.+-]+://")  # s3://, gs://: what lies there is not read here


@dataclass(frozen=True)
class Run:
    """One run folder. name: its path below the log folder, with "/". traces: files by name, the newest first."""

    name: str
    folder: Path
    traces: dict[str, Path]
    result: record.Result | None
    problem: str | None  # why its result cannot be read


class Runs:
    """The runs below some log folders, looked for anew every few seconds, in a thread. Thread-safe.

    roots: [(name, path)]; with more than one, a run's name begins with its root's. Links are not followed: no file
    outside the folders is ever read.
    """

    def __init__(self, roots):
        self.roots = [(name, Path(path).resolve()) for name, path in roots]
        self._lock, self._found, self._looked = threading.Lock(), {}, -math.inf
        self._once, self._looking = threading.Event(), False

    def found(self):
        """{name: Run}, by name, as last seen; the first time after a short wait."""
        with self._lock:
            if not self._looking and time.monotonic() - self._looked >= AGAIN:
                self._looking = True
                threading.Thread(target=self._refresh, name="walkthrough runs", daemon=True).start()
        self._once.wait(PATIENCE)
        return self._found

    def _refresh(self):
        try:
            self._found = dict(sorted(self._look()))
        finally:
            self._looked, self._looking = time.monotonic(), False
            self._once.set()

    def run(self, name):
        """The `Run` of that name; InputError where there is none."""
        found = self.found().get(name)
        if found is None:
            raise InputError(f"no run {name!r} here")
        return found

    def trace(self, name, file=None):
        """The path of a run's trace: that of its result, else the newest, unless `file` names one."""
        run = self.run(name)
        if not run.traces:
            raise InputError(f"run {name!r} holds no trace")
        if file is None:
            file = run.result.trace if run.result and run.result.trace in run.traces else next(iter(run.traces))
        if file not in run.traces:
            raise InputError(f"run {name!r} holds no trace {file!r}")
        return run.traces[file]

    def _look(self):
        for prefix, root in self.roots:
            for number, (folder, inside, files) in enumerate(os.walk(root)):
                inside[:] = sorted(name for name in inside if not name.startswith("."))
                if number == MOST_FOLDERS:
                    break
                name = _name(prefix, root, Path(folder), len(self.roots) > 1)
                with suppress(OSError):  # a folder that may not be read, or that vanishes meanwhile
                    if run := _run(Path(folder), files, name):
                        yield run.name, run


def roots_of(context):
    """[(name, path)] of the local log folders that TensorBoard was started with, read as TensorBoard reads them."""
    spec = getattr(context.flags, "logdir_spec", "") if context.flags else ""
    if not spec:  # nothing is no folder: an empty path would be the one that TensorBoard was started in
        return [("", context.logdir)] if context.logdir and not REMOTE.match(context.logdir) else []
    found = []
    for number, part in enumerate(filter(None, spec.split(",")), start=1):
        named = ":" in part and not REMOTE.match(part) and part[0] != "/" and not os.path.splitdrive(part)[0]
        name, _, path = part.partition(":") if named else (str(number), "", part)
        if path and not REMOTE.match(path):
            found.append((name, os.path.expanduser(path)))
    return found


def _name(prefix, root, folder, several):
    below = folder.relative_to(root).as_posix()
    parts = [prefix] if several and prefix else []
    parts += [below] if below != "." else []
    return "/".join(parts) or root.name or str(root)


def _run(folder, files, name):
    traces = [file for file in files if file.endswith((".trace.json", ".trace.json.gz")) and not file.startswith(".")]
    traces = [file for file in traces if _is_file(folder / file)]
    result = problem = None
    if record.FILE in files and _is_file(folder / record.FILE, LARGEST_RESULT):
        try:
            result = record.read_result(folder / record.FILE)
        except InputError as error:
            problem = str(error)
    if not traces and result is None and problem is None:
        return None
    by_age = [path.name for path in source.traces_in(folder) if path.name in traces] if traces else []
    return Run(name, folder, {file: folder / file for file in by_age}, result, problem)


def _is_file(path, largest=math.inf):
    """True for a plain file: no link, no pipe that would be waited for."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size <= largest
