"""Folders of the user's in which answers about traces are kept across starts, as gzip files named by a key."""

import gzip
import hashlib
import logging
import os
import time
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

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
