"""Open files that others may have put there, or may be about to: no link is followed, no pipe waited for."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}


def open_plain(path: str | Path, follow: bool = False, no_links: bool = False) -> BinaryIO:
    """A plain file, opened to be read; what is checked of it later is its descriptor's, not that of its name.

    follow: links, as of a path that the user has typed. no_links: `path` is a real one, and a link that has since taken
    the place of one of its folders is not followed either (Linux). Raises OSError, also for a pipe, a socket, a folder.
    """
    flags = os.O_RDONLY | _flag("O_NONBLOCK") | _flag("O_CLOEXEC") | _flag("O_BINARY")
    try:
        descriptor = os.open(path, flags if follow else flags | _flag("O_NOFOLLOW"))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise not_plain(stat.S_IFLNK, path) from error
        if error.errno == errno.ENXIO:
            raise not_plain(stat.S_IFSOCK, path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) or (no_links and not _lies_at(descriptor, path)):
        os.close(descriptor)
        raise not_plain(stat.S_IFLNK if stat.S_ISREG(mode) else mode, path)
    return os.fdopen(descriptor, "rb")


def not_plain(mode: int, path: str | Path) -> OSError:
    """The error about something that is not opened; mode: its own, or the kind."""
    kind = KINDS.get(stat.S_IFMT(mode), "a device")
    return OSError(errno.EINVAL, f"not a plain file but {kind}", str(path))


def open_new(path: str | Path, mode: int = 0o666) -> BinaryIO:
    """A new file, opened to be written; whatever has that name, a planted link say, is removed. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flag("O_NOFOLLOW") | _flag("O_CLOEXEC") | _flag("O_BINARY")
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.fdopen(os.open(path, flags, mode), "wb")


def _lies_at(descriptor: int, path: str | Path) -> bool:
    """Whether that is the path of an open file; True where the system does not say."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == os.fspath(path)
    except OSError:
        return True


def _flag(name: str) -> int:
    """A flag of os.open; 0 on a system without it."""
    return getattr(os, name, 0)
