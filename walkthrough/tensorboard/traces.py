"""Which traces lie where, for PYTORCH_PROFILER: named as torch-tb-profiler names them, links not followed."""

import os
import re
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch_tb_profiler import consts, io

from walkthrough.tensorboard.answers import SETTLE_SECONDS, hash_of_code, hashed
from walkthrough.tensorboard.log_folders import MAX_FOLDERS, REMOTE

CODE = tuple(Path(__file__).parents[1] / name for name in ("tensorboard", "trace"))


@dataclass(frozen=True)
class Trace:
    """A trace file. span: its number among the traces of its worker, or None. key: of its profile, see `Kept`."""

    path: str
    worker: str
    span: int | None
    size: int
    mtime_ns: int
    key: str

    @property
    def file(self) -> str:
        """The file's name."""
        return io.basename(self.path)


@dataclass(frozen=True)
class Folder:
    """The traces of a run. writing: the names of those that are being written, which are not in `traces`."""

    path: str
    traces: tuple[Trace, ...]
    writing: frozenset[str] = frozenset()


def folders_below(root: str, version: str) -> Iterator[Folder]:
    """The folders below a log folder that hold traces, but no hidden ones. version: of torch-tb-profiler."""
    if REMOTE.match(root):
        for folder, _, files in io.walk(root):
            if traces := [file for file in files if consts.WORKER_PATTERN.match(file)]:
                yield _folder(folder, dict.fromkeys(traces), version)
        return
    for number, (folder, subfolders, files) in enumerate(os.walk(root)):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if number == MAX_FOLDERS:
            return
        statuses: dict[str, os.stat_result | None] = {}
        for file in files:
            if file.startswith(".") or not consts.WORKER_PATTERN.match(file):
                continue
            with suppress(OSError):  # it vanishes meanwhile
                status = os.lstat(os.path.join(folder, file))
                if stat.S_ISREG(status.st_mode):
                    statuses[file] = status
        if statuses:
            yield _folder(folder, statuses, version)


def _folder(folder: str, files: Mapping[str, os.stat_result | None], version: str) -> Folder:
    """files: {name: status, None for a remote one}."""
    settled = {file: status for file, status in files.items() if not (status and _is_being_written(status))}
    spans: defaultdict[str, list[str]] = defaultdict(list)
    parts: list[tuple[str, str, str | None]] = []
    for file in sorted(settled):
        worker, span = cast(re.Match[str], consts.WORKER_PATTERN.match(file)).groups()
        parts.append((file, worker, span))
        if span is not None:
            spans[worker].append(span)
    traces = []
    for file, worker, span in parts:
        number = None if span is None else sorted(spans[worker]).index(span) + 1
        path, status = io.join(folder, file), settled[file]
        size, mtime_ns = (status.st_size, status.st_mtime_ns) if status else (-1, -1)
        name = os.path.realpath(path) if status else path
        key = hashed("profile", name, size, mtime_ns, number, version, sys.version_info[:2], _code())
        traces.append(Trace(path, worker, number, size, mtime_ns, key))
    return Folder(folder, tuple(traces), frozenset(files) - settled.keys())


def _is_being_written(status: os.stat_result) -> bool:
    return 0 <= time.time() - status.st_mtime < SETTLE_SECONDS


def _code() -> str:
    return hash_of_code(CODE)
