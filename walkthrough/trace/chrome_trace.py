"""From a file to events: gzip, and Chrome's trace format.

A trace is one object whose "traceEvents" is a list of small objects, or that list alone. It is decompressed by a thread
and decoded in runs of whole events, so memory holds a run at a time however large the trace. What is not valid JSON but
occurs in traces (literals such as N/A, raw control characters, bad UTF-8) is cleaned; a file that is cut off or damaged
is read up to there.
"""

import os
import queue
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import cache
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec import field

from walkthrough.results.errors import InputError
from walkthrough.results.files import open_plain

try:  # decompresses gzip two to three times faster, where it is installed
    from isal import isal_zlib  # pyright: ignore[reportMissingImports]
except ImportError:
    isal_zlib = None

MAX_SIZE = 4 * 2**30  # bytes of JSON: four times the largest trace worth opening; stops a gzip bomb
CHUNK_SIZE = 2 * 2**20  # bytes of JSON yielded at a time
MAX_FIELD = 2 * 2**20  # bytes of a field of the header that is read: a hundred times what torch writes
PARTIAL = "what is whole is used, the rest is missing"  # the end of a warning about missing events
CHUNKS_AHEAD = 8  # chunks decompressed before they are needed


class Chunks:
    """The JSON text of a trace file, plain or gzipped (by its content, not its name), as an iterator of bytes.

    file: that of `path` where it is open already, else the path may be a link, but no pipe. It is closed in the end.
    A thread starts decompressing at once and stays a few chunks ahead. A gzip file that is cut off or damaged yields
    what can be decompressed and adds a line to `warnings`. Iterating raises InputError if the file cannot be read, is
    empty, or holds more than `max_size` bytes of JSON. `close` it.
    """

    option = "--max-size"  # by which the user raises the limit

    def __init__(self, path: str | Path, max_size: int = MAX_SIZE, file: BinaryIO | None = None) -> None:
        self.path = Path(path)
        self.warnings: list[str] = []
        self.max_size, self._file = max_size, file
        self._ready: queue.Queue[bytes | BaseException | None] = queue.Queue(CHUNKS_AHEAD)
        self._closed = False
        threading.Thread(target=self._work, daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._ready.get():
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    def close(self) -> None:
        """Let the thread end, whatever is left to decompress."""
        self._closed = True
        while not self._ready.empty():
            self._ready.get_nowait()

    def _work(self) -> None:
        try:
            size = 0
            for chunk in _read_chunks(self.path, self._file, self.warnings):
                if self._closed:
                    return
                size += len(chunk)
                if size > self.max_size:
                    limit = f"{self.max_size:,} bytes of JSON"
                    raise InputError(f"{self.path} holds more than {limit}; {self.option} raises the limit")
                self._ready.put(chunk)
            if size == 0:
                problem = "damaged: nothing in it could be decompressed" if self.warnings else "empty"
                raise InputError(f"{self.path} is {problem}")
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)


def _read_chunks(path: Path, opened: BinaryIO | None, warnings: list[str]) -> Iterator[bytes]:
    try:
        with opened or open_plain(path, follow=True) as file:
            before = os.fstat(file.fileno())
            head = file.read(CHUNK_SIZE // 4)
            if head[:2] == b"\x1f\x8b":
                yield from _decompress(file, head, path.name, warnings)
            else:
                while head:
                    yield head
                    head = file.read(CHUNK_SIZE)
            after = os.fstat(file.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                warnings.append(f"{path.name} changed while it was read: {PARTIAL}")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _decompress(file: BinaryIO, packed: bytes, name: str, warnings: list[str]) -> Iterator[bytes]:
    """packed: the begin of the file."""
    library = isal_zlib or zlib
    inflate = library.decompressobj(31)
    while packed:
        try:
            chunk = inflate.decompress(packed, CHUNK_SIZE)
        except library.error as error:
            warnings.append(f"{name} is damaged ({error}): {PARTIAL}")
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
        warnings.append(f"{name} is cut off: {PARTIAL}")


Number = float | int | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that a number is computed from; all others are skipped."""

    external: Number = field(default=-1, name="External id")
    external_2021: Number = field(default=-1, name="external id")
    correlation: Number = -1
    sequence: Number = field(default=-1, name="Sequence number")
    device: Number = None
    bytes: Number = None
    blocks_per_sm: Number = field(default=None, name="blocks per SM")
    occupancy: Number = field(default=None, name="est. achieved occupancy %")
    address: Number = field(default=None, name="Addr")
    allocation: Number = field(default=None, name="Bytes")
    allocated: Number = field(default=None, name="Total Allocated")
    reserved: Number = field(default=None, name="Total Reserved")
    device_type: Number = field(default=None, name="Device Type")
    device_id: Number = field(default=None, name="Device Id")
    shapes: msgspec.Raw = field(default=msgspec.Raw(), name="Input Dims")  # JSON, read for few operators
    types: msgspec.Raw = field(default=msgspec.Raw(), name="Input type")
    name: msgspec.Raw = msgspec.Raw()  # of a thread, in an event that names one
    finished: msgspec.Raw = msgspec.Raw()  # `false` in a mark that was open when the profiler stopped


class Event(msgspec.Struct, gc=False):
    """One event in Chrome's trace format, its fields as torch orders them; times in µs."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


E = TypeVar("E")
T = TypeVar("T")
Header = dict[str, msgspec.Raw]  # what a trace holds besides its events, as JSON


def values_of(header: Header, names: Iterable[str]) -> dict[str, Any]:
    """Some of a header's values, decoded, as far as it has them and they can be read.

    `MAX_FIELD` limits the memory that they take.
    """
    values = {}
    for name in names:
        with suppress(KeyError, RecursionError, *_BROKEN):  # a number of thousands of digits, say
            if len(text := bytes(header[name])) <= MAX_FIELD:
                values[name] = msgspec.json.decode(clean(text))
    return values


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError)
_POSITION = re.compile(r"\(byte (\d+)\)")  # of the damage, in a message of msgspec's
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARCHIVES = (
    ("tar", 257, b"ustar", "tar -xf"),
    ("zip", 0, b"PK\x03\x04", "unzip"),
)  # what is where, what unpacks it
_RUN = 2**19  # bytes to decode at a time: the events of more would not fit in the processor's caches
_MAX_RUN = 64 * 2**20  # bytes to collect before a run that does not decode counts as damaged
_TRIES = 8  # places where one event may end and the next may begin; others are inside a nested list


def events(
    chunks: Iterable[bytes],
    name: str | PathLike[str],
    header: Header,
    warnings: list[str],
    event: type[E],
) -> Iterator[list[E]]:
    """Yield lists of events from the chunks of a trace file; fill `header` and `warnings` (one line each).

    event: `Event`, a class with the same fields, dict, or msgspec.Raw: JSON. Raises InputError, naming the file `name`,
    if the text is not a trace, or an event's value is of another type than in any trace.
    """
    chunks, wanted = iter(chunks), _RUN
    try:
        text, bare = _find_events(chunks, name, header)  # from here on always "[" and what is not decoded yet
        for piece in (chunk[at : at + _RUN] for chunk in chunks for at in range(0, len(chunk), _RUN)):
            text += piece
            if len(text) < wanted:
                continue
            run, text = _decode_run(text, event)
            if run is not None:
                wanted = _RUN
                yield run
            elif wanted < _MAX_RUN:
                wanted *= 2
            else:
                break
        yield _decode_end(bytes(text), bare, name, header, warnings, event)
    except msgspec.ValidationError as error:
        raise InputError(f"{name} is not a trace of torch.profiler: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a trace") from error


def whole_events(chunks: Chunks, header: Header, event: type[E]) -> Iterator[list[E]]:
    """As `events`, but closes `chunks`, and raises InputError in the end where the file is damaged or cut off."""
    with closing(chunks):
        yield from events(chunks, chunks.path.name, header, chunks.warnings, event)
    for warning in chunks.warnings:
        raise InputError(warning.removesuffix(f": {PARTIAL}"))


def _find_events(chunks: Iterator[bytes], name: str | PathLike[str], header: Header) -> tuple[bytearray, bool]:
    """Read up to the first event: ("[" and the text from there on, whether the trace is a bare list)."""
    text, searched, tries = b"", 0, 8
    for chunk in chunks:
        text += chunk
        if len(text) > _MAX_RUN or not tries:
            raise InputError(f'{name} has no list "traceEvents" in its first {_MAX_RUN >> 20} MiB: not a trace')
        begin = text[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if begin == b"[":
            return bytearray(text[text.index(b"[") :]), True
        if begin not in (b"", b"{"):
            break
        for opening in islice(_OPENING.finditer(text, searched), tries):
            tries, searched = tries - 1, opening.end()
            head = text[text.index(b"{") : opening.end()] + b"]}"
            try:
                header.update(_decoder(Header).decode(clean(head)))
            except _BROKEN:
                continue  # "traceEvents" was inside something else
            del header["traceEvents"]
            return bytearray(text[opening.end() - 1 :]), False
        searched = max(searched, len(text) - 4096)
    for kind, at, magic, unpack in _ARCHIVES:
        if text[at:].startswith(magic):
            raise InputError(f"{name} is a {kind} archive: unpack it ({unpack} {name}) and name the trace inside")
    try:
        _decoder(Header).decode(text)
    except msgspec.ValidationError:
        pass  # JSON, but no object
    except _BROKEN as error:
        raise InputError(f"{name} is not JSON: {_reason(error)}") from error
    raise InputError(f'{name} has no list "traceEvents": it is not a trace of torch.profiler')


def _decode_run(text: bytearray, event: type[E]) -> tuple[list[E] | None, bytearray]:
    """Decode as many whole events as `text` holds: (events, "[" and the remaining text), or (None, text)."""
    end = len(text)
    for _ in range(_TRIES):
        between = _last_between(text, end)
        if between is None:
            break
        end = between.start()
        comma = text.index(b",", end)
        text[comma] = ord("]")  # in place: a copy of the text would take as long as decoding it
        run = _decoded(list[event], memoryview(text)[: comma + 1])
        if isinstance(run, Exception):
            run = _decoded(list[event], clean(text[: comma + 1]))
        if not isinstance(run, Exception):
            return run, bytearray(b"[") + text[between.end() - 1 :]
        text[comma] = ord(",")
    return None, text


def _decoded(kind: type[T], text: bytes | memoryview) -> T | Exception:
    """The value; the error if the text is not JSON, as where it ends inside a nested list."""
    try:
        return _decoder(kind).decode(text)
    except msgspec.ValidationError:
        raise
    except _BROKEN as error:
        return error.with_traceback(None)  # which would keep the text


def _decode_end(
    text: bytes,
    bare: bool,
    name: str | PathLike[str],
    header: Header,
    warnings: list[str],
    event: type[E],
) -> list[E]:
    """Decode the last events, the list's end and what follows it; of a file without an end, the last whole events."""
    last = None
    for repair in (bytes, clean):
        repaired = repair(text)
        rest = Header() if bare else _decoded(Header, b'{"traceEvents":' + repaired)
        last = rest if isinstance(rest, Exception) else _decoded(list[event], rest.pop("traceEvents", repaired))
        if not isinstance(rest, Exception) and not isinstance(last, Exception):
            header.update(rest)
            return last
    if not warnings:  # else the gzip file is known to be damaged
        warnings.append(f"{name} is cut off or damaged ({_reason(last)}): {PARTIAL}")
    text = clean(text)
    end = len(text)
    for _ in range(_TRIES):
        whole = _decoded(list[event], text[:end].rstrip(b" \t\r\n,]") + b"]")
        if not isinstance(whole, Exception):
            return whole
        position = _POSITION.search(str(whole))
        if position and int(position[1]) < end:
            end = int(position[1])
        elif between := _last_between(text, end):
            end = between.start() + 1
        else:
            break
    return []


def _last_between(text: bytes | bytearray, end: int) -> re.Match[bytes] | None:
    """The last place before `end` where one object ends and the next begins, or None."""
    width, match = 4096, None
    while match is None and width < 16 * max(end, 4096):
        match = next(iter(deque(_BETWEEN.finditer(text, max(0, end - width), end), maxlen=1)), None)
        width *= 16
    return match


_CONTROL = bytes(32 if code < 32 else code for code in range(256))  # control characters become spaces
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_LITERAL = re.compile(rb"(?<=[:\[,\s])[+-]?(?:NaN|nan|Infinity|inf|N/A)(?:\(ind\))?(?=[\s,\]}])")


def clean(text: bytes | bytearray) -> bytes:
    """The text as valid JSON: valid UTF-8, no control characters or half pairs, `null` for NaN, inf and N/A."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    if b"\\u" in text:
        text = _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], text)
    parts, begin, quotes = [], 0, 0
    for match in _LITERAL.finditer(text):
        before = text[begin : match.start()]
        quotes += before.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        parts += [before, match[0] if quotes % 2 else b"null"]  # inside a string it is part of a name
        begin = match.end()
    return b"".join([*parts, text[begin:]])


def _reason(error: object) -> str:
    return str(error).removeprefix("JSON is malformed: ")
