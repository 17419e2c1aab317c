"""A file to events: gzip, Chrome's trace format, and what can be recovered of a damaged file."""

import json
import queue
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from os import PathLike
from pathlib import Path
from types import ModuleType, TracebackType
from typing import BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

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


Number = float | int | str | None

KEYS = {
    "external": "External id",
    "external_2021": "external id",
    "blocks_per_sm": "blocks per SM",
    "occupancy": "est. achieved occupancy %",
    "address": "Addr",
    "allocation": "Bytes",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "shapes": "Input Dims",
    "types": "Input type",
}


class Args(msgspec.Struct, gc=False, rename=KEYS):
    """The arguments of an event that a number is computed from; all others are skipped."""

    external: Number = None
    external_2021: Number = None
    correlation: Number = None
    device: Number = None
    bytes: Number = None
    blocks_per_sm: Number = None
    occupancy: Number = None
    address: Number = None
    allocation: Number = None
    allocated: Number = None
    reserved: Number = None
    device_type: Number = None
    device_id: Number = None
    shapes: msgspec.Raw = msgspec.Raw()  # JSON, read for few operators
    types: msgspec.Raw = msgspec.Raw()
    finished: msgspec.Raw = msgspec.Raw()  # `false` in a mark that was open when the profiler stopped


NUMBERS = tuple(name for name in Args.__struct_fields__ if name not in ("shapes", "types", "finished"))


class Event(msgspec.Struct, gc=False):
    """One event in Chrome's trace format; times in µs."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: Number = None
    dur: Number = None
    pid: Number = None
    tid: Number = None
    args: Args | None = None


class Decoders(NamedTuple):
    """From JSON to events, with their classes."""

    event_type: type[Event]
    args_type: type[Args]
    event: msgspec.json.Decoder[Event]
    events: msgspec.json.Decoder[list[Event]]


def decoders(event: type[Event], args: type[Args]) -> Decoders:
    """The `Decoders` to a class of events and that of their arguments."""
    return Decoders(event, args, msgspec.json.Decoder(event), msgspec.json.Decoder(list[event]))


PLAIN = decoders(Event, Args)


BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
BETWEEN = re.compile(rb"\}\s*,\s*\{")
_FEW = 16 * 2**10  # bytes of damaged text that are decoded event by event


def last_between(text: bytes | bytearray, end: int) -> re.Match[bytes] | None:
    """The last match of `BETWEEN` before `end`, or None."""
    width, match = 4096, None
    while match is None and width < 16 * max(end, 4096):
        match = next(iter(deque(BETWEEN.finditer(text, max(0, end - width), end), maxlen=1)), None)
        width *= 16
    return match


def recovered(text: bytes, decoders: Decoders = PLAIN) -> tuple[list[Event], int]:
    """The events in damaged JSON text, commas between, and how many were lost."""
    return _recovered(clean(text).strip(b" \t\r\n,"), decoders)


def _recovered(text: bytes, decoders: Decoders) -> tuple[list[Event], int]:
    """Decode the text, or its halves recursively; short text event by event."""
    try:
        return decoders.events.decode(b"[" + text + b"]"), 0
    except BROKEN:
        middle = _split(text) if len(text) > _FEW else None
    if middle is None:
        return _one_by_one(text, decoders)
    first, lost = _recovered(text[:middle], decoders)
    second, lost_too = _recovered(text[middle:].lstrip(b" ,\t\r\n"), decoders)
    return first + second, lost + lost_too


def _one_by_one(text: bytes, decoders: Decoders) -> tuple[list[Event], int]:
    events, lost, begin = [], 0, 0
    ends = [between.start() + 1 for between in BETWEEN.finditer(text)] + [len(text)]
    for end in ends:
        raw = text[begin:end].strip(b" ,\t\r\n")
        event = _decode(raw, decoders)
        if event is None and raw.count(b"{") > raw.count(b"}") and len(raw) < _FEW:
            continue  # the end of a nested object
        events += [event] if event else []
        lost += event is None and b'"ph"' in raw
        begin = end
    return events, lost + (b'"ph"' in text[begin:])


def decode_each(raws: Iterable[msgspec.Raw], decoders: Decoders = PLAIN) -> tuple[list[Event], int]:
    """Decode events one by one: the events, and how many were lost."""
    events = [_decode(raw, decoders) for raw in raws]
    return [event for event in events if event], events.count(None)


def _decode(raw: bytes | msgspec.Raw, decoders: Decoders) -> Event | None:
    try:
        return decoders.event.decode(raw)
    except BROKEN:
        return _decode_loosely(raw, decoders)


def _split(text: bytes) -> int | None:
    """A place between two objects, near the middle of `text`, or None."""
    between = BETWEEN.search(text, len(text) // 2) or last_between(text, len(text))
    return between.start() + 1 if between else None


def _decode_loosely(raw: bytes | msgspec.Raw, decoders: Decoders) -> Event | None:
    """An Event; values of wrong types or out of range count as missing. None where the JSON is broken."""
    try:
        value = json.loads(bytes(raw))  # not msgspec, which refuses numbers like 1e999
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    return decoders.event_type(
        ph=_text(value.get("ph")) or "",
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        ts=_number(value.get("ts")),
        dur=_number(value.get("dur")),
        pid=_number(value.get("pid")),
        tid=_number(value.get("tid")),
        args=_args(args, decoders.args_type),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> Number:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


_CONTROL = bytes(32 if code < 32 else code for code in range(256))  # control characters become spaces
_LITERAL = re.compile(rb"(?<=[:\[,\s])[+-]?(?:NaN|nan|Infinity|inf|N/A)(?:\(ind\))?(?=[\s,\]}])")


def clean(text: bytes) -> bytes:
    """The text as valid JSON: valid UTF-8, no control characters, `null` for NaN, inf and N/A."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    parts, begin, quotes = [], 0, 0
    for match in _LITERAL.finditer(text):
        before = text[begin : match.start()]
        quotes += before.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        parts += [before, match[0] if quotes % 2 else b"null"]  # inside a string it is part of a name
        begin = match.end()
    return b"".join([*parts, text[begin:]])


def _args(values: dict[str, object], args_type: type[Args]) -> Args:
    """The numbers among an event's arguments; shapes of damaged events are not kept."""
    args = args_type()
    for key in NUMBERS:
        setattr(args, key, _number(values.get(KEYS.get(key, key))))
    return args


T = TypeVar("T")


class Header(msgspec.Struct, kw_only=True):
    """The fields of a trace other than its events that are read, of any type."""

    deviceProperties: object = None
    distributedInfo: object = None
    hip_runtime_version: object = None
    baseTimeNanoseconds: object = None
    walkthrough: object = None


class _Rest(Header, Generic[T], kw_only=True):
    traceEvents: list[T]


_header = msgspec.json.Decoder(Header)
_raw_rest = msgspec.json.Decoder(_Rest[msgspec.Raw])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_RUN = 2 * 2**20  # bytes to decode at a time
_MAX_RUN = 64 * 2**20  # bytes to collect before a run that does not decode counts as damaged


def events(
    chunks: Iterable[bytes],
    name: str | PathLike[str],
    header: dict[str, object],
    warnings: list[str],
    decoders: Decoders = PLAIN,
) -> Iterator[list[Event]]:
    """Yield lists of `Event` from the chunks of a trace file; fill `header` and `warnings` (one line each).

    decoders: `details.DETAILED` for events with the arguments that the timeline shows too. Raises InputError, naming
    the file `name`, if the text is not a trace.
    """
    chunks = iter(chunks)
    text, bare = _find_events(chunks, name, header)  # from here on always "[" and what is not decoded yet
    dropped, wanted = 0, _RUN
    for chunk in chunks:
        text += chunk
        if len(text) < wanted:
            continue
        run, text = _decode_run(text, decoders)
        if run is None and wanted < _MAX_RUN:
            wanted *= 2
            continue
        if run is None:
            end = text.rfind(b"}") + 1
            run, lost = recovered(bytes(text[1:end]), decoders) if end else ([], 1)
            text, dropped = bytearray(b"[") + (text[end:].lstrip(b" \t\r\n,") if end else b""), dropped + lost
        wanted = _RUN
        yield run
    yield from _decode_end(bytes(text), bare, name, header, warnings, dropped, decoders)


def _find_events(
    chunks: Iterator[bytes], name: str | PathLike[str], header: dict[str, object]
) -> tuple[bytearray, bool]:
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
                fields = _header.decode(clean(head))
            except BROKEN:
                continue  # "traceEvents" was inside something else
            header.update(msgspec.structs.asdict(fields))
            return bytearray(text[opening.end() - 1 :]), False
        searched = max(searched, len(text) - 4096)
    try:
        _anything.decode(text)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a trace") from error
    except BROKEN as error:
        raise InputError(f"{name} is not JSON: {_reason(error)}") from error
    raise InputError(f'{name} has no list "traceEvents": it is not a trace of torch.profiler')


def _decode_run(text: bytearray, decoders: Decoders) -> tuple[list[Event] | None, bytearray]:
    """Decode as many whole events as `text` holds: (events, "[" and the remaining text), or (None, text)."""
    end = len(text)
    for _ in range(8):  # the last places where one event may end and the next may begin
        between = last_between(text, end)
        if between is None:
            break
        end = between.start()
        comma = text.index(b",", end)
        text[comma] = ord("]")  # in place: a copy of the text would take as long as decoding it
        try:
            return decoders.events.decode(memoryview(text)[: comma + 1]), bytearray(b"[") + text[between.end() - 1 :]
        except msgspec.ValidationError:
            text[comma] = ord(",")
            break
        except BROKEN:  # inside a nested list, or damaged
            text[comma] = ord(",")
    return None, text


def _decode_end(
    text: bytes,
    bare: bool,
    name: str | PathLike[str],
    header: dict[str, object],
    warnings: list[str],
    dropped: int,
    decoders: Decoders,
) -> Iterator[list[Event]]:
    """Decode the last events, the list's end and what follows it."""
    lost, reason, rest = 0, "", msgspec.json.Decoder(_Rest[decoders.event_type])
    run: list
    for repair, list_decoder, rest_decoder in (
        (bytes, decoders.events, rest),
        (clean, decoders.events, rest),
        (clean, _raws, _raw_rest),
    ):
        try:
            if bare:
                run = list_decoder.decode(repair(text))
            else:
                rest = rest_decoder.decode(b'{"traceEvents":' + repair(text))
                run = rest.traceEvents
                for key in Header.__struct_fields__:
                    if getattr(rest, key) is not None:
                        header[key] = getattr(rest, key)
            break
        except RecursionError as error:
            raise InputError(f"{name} is nested too deeply to be a trace") from error
        except BROKEN as error:
            reason = _reason(error)
    else:
        run, lost = recovered(text[1:], decoders)
        lost -= lost > 0 and "truncated" in reason  # the event that is cut off
        if not warnings:  # else the gzip file is known to be damaged
            warnings.append(f"{name} is cut off or damaged ({reason}): {PARTIAL}")
    if run and isinstance(run[0], msgspec.Raw):
        run, lost = decode_each(run, decoders)
    yield run
    if count := dropped + lost:
        events = "an event that cannot be read is" if count == 1 else f"{count} events that cannot be read are"
        warnings.append(f"{name}: {events} left out")


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")
