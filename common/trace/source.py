"""From a path to the bytes of a trace: which file is meant, unpacked piece by piece, and never more than allowed."""

import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.errors import InputError

MAX_SIZE = 4 * 2**30  # bytes of JSON: four times the largest trace worth opening, and what a gzip bomb is stopped at
PIECE = 4 * 2**20  # bytes of JSON handed on at a time
SUFFIXES = (".json", ".json.gz")


def traces_in(folder):
    """The trace files of a folder, newest first (by the time in the name that torch gives them, else by their own)."""

    def age(path):
        stamp = re.search(r"\.(\d{10,})\.", path.name)
        digits = int(stamp[1]) if stamp else 0
        while digits > 10**13:  # torch names some traces in ms and some in ns
            digits //= 1000
        return (digits or int(path.stat().st_mtime * 1000), path.name)

    def is_trace(path):
        return path.name.endswith(tuple(f".trace{suffix}" for suffix in SUFFIXES)) and not path.name.startswith(".")

    return sorted(filter(is_trace, Path(folder).iterdir()), key=age, reverse=True)


def pieces(path, max_size=MAX_SIZE, warnings=None):
    """Yield the JSON text of a trace file, plain or gzipped (told by its content, not its name), as bytes.

    The next piece is unpacked by a thread while the caller works on this one. A packed file that is cut off or
    damaged yields what can be unpacked, and adds a line to `warnings`. Raises InputError where the file cannot be
    read, is empty, or holds more than `max_size` bytes.
    """
    path, warnings = Path(path), [] if warnings is None else warnings
    unpacked, size = _unpacked(path, warnings), 0
    with ThreadPoolExecutor(1) as ahead:
        following = ahead.submit(next, unpacked, None)
        while piece := following.result():
            following = ahead.submit(next, unpacked, None)
            size += len(piece)
            if size > max_size:
                raise InputError(
                    f"{path} holds more than {max_size / 2**30:.3g} GiB of JSON; --max-size raises the limit"
                )
            yield piece
    if size == 0:
        raise InputError(f"{path} is {'damaged: nothing in it could be unpacked' if warnings else 'empty'}")


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
            warnings.append(f"{path.name} is damaged ({error}): what could be unpacked is used")
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
        warnings.append(f"{path.name} is cut off: what could be unpacked is used")


def _until_damage(inflate, packed):
    """Unpack in small parts, up to the one that cannot be."""
    for begin in range(0, len(packed), 256):
        try:
            piece = inflate.decompress(packed[begin : begin + 256])
        except zlib.error:
            return
        if piece:
            yield piece
