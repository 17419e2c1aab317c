"""From a path to the bytes of a trace: which file is meant, unpacked piece by piece, and never more than allowed."""

import queue
import re
import threading
import zlib
from pathlib import Path

from common.errors import InputError

MAX_SIZE = 4 * 2**30  # bytes of JSON: four times the largest trace worth opening, and what a gzip bomb is stopped at
PIECE = 2 * 2**20  # bytes of JSON handed on at a time
PARTIAL = "what is whole is used, the rest is missing"  # how a warning ends that says so
AHEAD = 4  # pieces unpacked before they are asked for
SUFFIXES = (".json", ".json.gz")


def traces_in(folder):
    """The trace files of a folder, newest first (by the time in the name that torch gives them, else by their own).

    Those named *.trace.json or *.trace.json.gz; where there are none, every other JSON file that may be a trace.
    """

    def age(path):
        stamp = re.search(r"\.(\d{10,})\.", path.name)
        digits = int(stamp[1]) if stamp else 0
        while digits > 10**13:  # torch names some traces in ms and some in ns
            digits //= 1000
        return (digits or int(path.stat().st_mtime * 1000), path.name)

    files = [path for path in Path(folder).iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith(".")]
    files = [path for path in files if path.exists()]  # a link may lead nowhere
    named = [path for path in files if path.name.endswith(tuple(f".trace{suffix}" for suffix in SUFFIXES))]
    others = [path for path in files if path.name not in ("result.json", "record.json")]  # of a run, not its trace
    return sorted(named or others, key=age, reverse=True)


class Chunks:
    """The JSON text of a trace file, plain or gzipped (told by its content, not its name), as an iterator of bytes.

    A thread begins to unpack it at once and stays a few pieces ahead. A packed file that is cut off or damaged yields
    what can be unpacked, and adds a line to `warnings`. Iterating raises InputError where the file cannot be read, is
    empty, or holds more than `max_size` bytes. `close` it, or use it as a context manager.
    """

    def __init__(self, path, max_size=MAX_SIZE):
        self.path, self.warnings, self._max_size = Path(path), [], max_size
        self._ready, self._closed = queue.Queue(AHEAD), False
        threading.Thread(target=self._work, daemon=True).start()

    def __iter__(self):
        while piece := self._ready.get():
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Let the thread end, whatever is left to unpack."""
        self._closed = True
        while not self._ready.empty():
            self._ready.get_nowait()

    def _work(self):
        try:
            size = 0
            for piece in _unpacked(self.path, self.warnings):
                if self._closed:
                    return
                size += len(piece)
                if size > self._max_size:
                    limit = f"{self._max_size:,} bytes of JSON"
                    raise InputError(f"{self.path} holds more than {limit}; --max-size raises the limit")
                self._ready.put(piece)
            if size == 0:
                nothing = "damaged: nothing in it could be unpacked" if self.warnings else "empty"
                raise InputError(f"{self.path} is {nothing}")
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)


def _unpacked(path, warnings):
    try:
        with open(path, "rb") as file:
            head = file.read(PIECE // 4)
            if head[:2] != b"\x1f\x8b":
                while head:
                    yield head
                    head = file.read(PIECE)
                return
            yield from _inflated(file, head, path, warnings)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _inflated(file, packed, path, warnings):
    inflate = zlib.decompressobj(31)
    while packed:
        before = inflate.copy()
        try:
            piece = inflate.decompress(packed, PIECE)
        except zlib.error as error:
            warnings.append(f"{path.name} is damaged ({error}): {PARTIAL}")
            yield from _until_damage(before, packed)
            return
        if piece:
            yield piece
        packed = inflate.unconsumed_tail
        if inflate.eof:  # another member may follow; anything else after the end is padding
            packed = inflate.unused_data or file.read(PIECE // 4)
            if packed[:2] != b"\x1f\x8b":
                return
            inflate = zlib.decompressobj(31)
        packed = packed or file.read(PIECE // 4)
    if not inflate.eof:
        warnings.append(f"{path.name} is cut off: {PARTIAL}")


def _until_damage(inflate, packed):
    """Unpack in small parts, up to the one that cannot be."""
    for begin in range(0, len(packed), 256):
        try:
            piece = inflate.decompress(packed[begin : begin + 256])
        except zlib.error:
            return
        if piece:
            yield piece
