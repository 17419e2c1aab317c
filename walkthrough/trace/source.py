"""From a path to the bytes of a trace: which file is meant, decompressed chunk by chunk, up to a size limit."""

import queue
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import BinaryIO

from walkthrough.results.errors import InputError

try:  # decompresses gzip two to three times faster, where it is installed
    from isal import isal_zlib  # pyright: ignore[reportMissingImports]
except ImportError:
    isal_zlib = None

MAX_SIZE = 4 * 2**30  # bytes of JSON: four times the largest trace worth opening; stops a gzip bomb
CHUNK_SIZE = 2 * 2**20  # bytes of JSON yielded at a time
PARTIAL = "what is whole is used, the rest is missing"  # the end of a warning about missing events
CHUNKS_AHEAD = 4  # chunks decompressed before they are needed
TRAINING = {"fit", "train", "training"}  # words in a trace's name
NOT_TRAINING = {"validate", "validation", "val", "test", "predict", "eval", "evaluate", "evaluation", "inference"}
SUFFIXES = (".json", ".json.gz")


def traces_in(folder: str | Path) -> list[Path]:
    """The trace files of a folder, newest first: by the time in their names, else by modification time.

    Those named *.trace.json or *.trace.json.gz; without any, all other JSON files that may be traces.
    """

    def age(path: Path) -> tuple[int, str]:
        stamp = re.search(r"\.(\d{10,})\.", path.name)
        digits = int(stamp[1]) if stamp else 0
        while digits > 10**13:  # torch names some traces in ms and some in ns
            digits //= 1000
        if not digits:
            with suppress(OSError):  # it vanishes meanwhile
                digits = int(path.stat().st_mtime * 1000)
        return digits, path.name

    files = [path for path in Path(folder).iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith(".")]
    files = [path for path in files if path.exists()]  # a link may lead nowhere
    named = [path for path in files if path.name.endswith(tuple(f".trace{suffix}" for suffix in SUFFIXES))]
    others = [path for path in files if path.name not in ("result.json", "record.json")]  # a run's own files
    return sorted(named or others, key=age, reverse=True)


def of_training(traces: Sequence[Path]) -> list[Path]:
    """Those whose names say that they are of training, where others are of a validation, a test or a prediction.

    Lightning's profiler writes `fit-….pt.trace.json`, `test-….pt.trace.json` and so on into one folder. All traces
    where no name says either.
    """
    words = {path: set(re.split(r"[^a-z]+", path.name.lower())) for path in traces}
    training = [path for path in traces if words[path] & TRAINING]
    others = any(words[path] & NOT_TRAINING for path in traces if path not in training)
    return training if training and others else list(traces)


class Chunks:
    """The JSON text of a trace file, plain or gzipped (by its content, not its name), as an iterator of bytes.

    A thread starts decompressing at once and stays a few chunks ahead. A gzip file that is cut off or damaged yields
    what can be decompressed and adds a line to `warnings`. Iterating raises InputError if the file cannot be read, is
    empty, or holds more than `max_size` bytes of JSON. `close` it, or use it as a context manager.
    """

    def __init__(self, path: str | Path, max_size: int = MAX_SIZE) -> None:
        self.path = Path(path)
        self.warnings: list[str] = []
        self._max_size = max_size
        self._ready: queue.Queue[bytes | BaseException | None] = queue.Queue(CHUNKS_AHEAD)
        self._closed = False
        threading.Thread(target=self._work, daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._ready.get():
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    def __enter__(self) -> "Chunks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the thread end, whatever is left to decompress."""
        self._closed = True
        while not self._ready.empty():
            self._ready.get_nowait()

    def _work(self) -> None:
        try:
            size = 0
            for chunk in _read_chunks(self.path, self.warnings):
                if self._closed:
                    return
                size += len(chunk)
                if size > self._max_size:
                    limit = f"{self._max_size:,} bytes of JSON"
                    raise InputError(f"{self.path} holds more than {limit}; --max-size raises the limit")
                self._ready.put(chunk)
            if size == 0:
                problem = "damaged: nothing in it could be decompressed" if self.warnings else "empty"
                raise InputError(f"{self.path} is {problem}")
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)


def _read_chunks(path: Path, warnings: list[str]) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            head = file.read(CHUNK_SIZE // 4)
            if head[:2] != b"\x1f\x8b":
                while head:
                    yield head
                    head = file.read(CHUNK_SIZE)
                return
            done = 0
            if isal_zlib:
                try:
                    for chunk in _decompress(file, head, path, warnings, isal_zlib):
                        done += len(chunk)
                        yield chunk
                    return
                except isal_zlib.error:  # damaged: zlib can go back, and recovers more
                    warnings.clear()
                    file.seek(0)
                    head = file.read(CHUNK_SIZE // 4)
            for chunk in _decompress(file, head, path, warnings, zlib):
                if len(chunk) > done:
                    yield chunk[done:]
                done = max(0, done - len(chunk))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _decompress(file: BinaryIO, packed: bytes, path: Path, warnings: list[str], library: ModuleType) -> Iterator[bytes]:
    """library: zlib, or one with the same functions but `copy`, whose errors are the caller's."""
    inflate = library.decompressobj(31)
    while packed:
        before = inflate.copy() if library is zlib else None
        try:
            chunk = inflate.decompress(packed, CHUNK_SIZE)
        except zlib.error as error:
            if before is None:
                raise
            warnings.append(f"{path.name} is damaged ({error}): {PARTIAL}")
            yield from _decompress_until_damage(before, packed)
            return
        if chunk:
            yield chunk
        packed = inflate.unconsumed_tail
        if inflate.eof:  # another gzip member may follow; anything else is padding
            packed = inflate.unused_data or file.read(CHUNK_SIZE // 4)
            if packed[:2] != b"\x1f\x8b":
                return
            inflate = library.decompressobj(31)
        packed = packed or file.read(CHUNK_SIZE // 4)
    if not inflate.eof:
        warnings.append(f"{path.name} is cut off: {PARTIAL}")


def _decompress_until_damage(inflate: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """Decompress in small parts, up to the damaged one."""
    for begin in range(0, len(packed), 256):
        try:
            chunk = inflate.decompress(packed[begin : begin + 256])
        except zlib.error:
            return
        if chunk:
            yield chunk
