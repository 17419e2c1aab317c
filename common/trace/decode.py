"""From bytes to events: typed, a few thousand at a time, and as much as can be saved of a damaged file.

A trace is one object whose "traceEvents" is a list of small objects, or that list alone. It is decoded in runs of whole
events, so that memory holds one run at a time however large the trace. Where a run is not what it should be (literals
such as N/A, raw control characters, bad UTF-8, wrong types, a missing end) the slower half of this module takes over.
"""

import json
import re
from collections import deque
from itertools import islice

import msgspec

from common.errors import InputError
from common.trace.source import PARTIAL

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
}


class Args(msgspec.Struct, gc=False, rename=KEYS):
    """The arguments of an event that some number here is computed from; all others are skipped unread."""

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


class Header(msgspec.Struct, kw_only=True):
    """What stands beside the events: `deviceProperties` and `distributedInfo`, of any type."""

    deviceProperties: object = None
    distributedInfo: object = None


class _Rest(Header, kw_only=True):
    traceEvents: list[Event]


class _RawRest(Header, kw_only=True):
    traceEvents: list[msgspec.Raw]


_events = msgspec.json.Decoder(list[Event])
_header = msgspec.json.Decoder(Header)
_rest = msgspec.json.Decoder(_Rest)
_event = msgspec.json.Decoder(Event)
_raw_rest = msgspec.json.Decoder(_RawRest)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_RUN = 2 * 2**20  # bytes to decode at a time
_PATIENCE = 64 * 2**20  # bytes to gather before a run that does not decode is taken for damaged
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def events(pieces, name, header, warnings):
    """Yield lists of `Event` from the pieces of a trace file; fill `header` (a dict) and `warnings` (a list of lines).

    Raises InputError, naming the file `name`, where there is no trace in it.
    """
    pieces = iter(pieces)
    text, bare = _opened(pieces, name, header)  # from here on always "[" and what is not decoded yet
    dropped, wanted = 0, _RUN
    for piece in pieces:
        text += piece
        if len(text) < wanted:
            continue
        run, text = _run(text)
        if run is None and wanted < _PATIENCE:
            wanted *= 2
            continue
        if run is None:
            cut = text.rfind(b"}") + 1
            run, lost = _saved(bytes(text[1:cut]))
            text, dropped = bytearray(b"[") + text[cut:].lstrip(b" \t\r\n,"), dropped + lost
        wanted = _RUN
        yield run
    yield from _ended(bytes(text), bare, name, header, warnings, dropped)


def _opened(pieces, name, header):
    """Read up to the first event: ("[" and the text from there on, whether the trace is a bare list)."""
    text, searched, tries = b"", 0, 8
    for piece in pieces:
        text += piece
        if len(text) > _PATIENCE or not tries:
            raise InputError(f'{name} has no list "traceEvents" in its first {_PATIENCE >> 20} MiB: not a trace')
        begin = text[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if begin == b"[":
            return bytearray(text[text.index(b"[") :]), True
        if begin not in (b"", b"{"):
            break
        for opening in islice(_OPENING.finditer(text, searched), tries):
            tries, searched = tries - 1, opening.end()
            head = text[text.index(b"{") : opening.end()] + b"]}"
            try:
                found = _header.decode(_clean(head))
            except _BROKEN:
                continue  # those words stood inside something else
            header.update(msgspec.structs.asdict(found))
            return bytearray(text[opening.end() - 1 :]), False
        searched = max(searched, len(text) - 4096)
    try:
        _anything.decode(text)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a trace") from error
    except _BROKEN as error:
        raise InputError(f"{name} is not JSON: {_reason(error)}") from error
    raise InputError(f'{name} has no list "traceEvents": it is not a trace of torch.profiler')


def _run(text):
    """Decode as many whole events as `text`, a bytearray, holds: (events, "[" and the text after), or (None, text)."""
    end = len(text)
    for _ in range(8):  # the last places where one event may end and the next begin
        between = _last_between(text, end)
        if between is None:
            break
        end = between.start()
        comma = text.index(b",", end)
        text[comma] = ord("]")  # in place: copying the text would take as long as decoding it
        try:
            return _events.decode(memoryview(text)[: comma + 1]), bytearray(b"[") + text[between.end() - 1 :]
        except msgspec.ValidationError:
            text[comma] = ord(",")
            break
        except _BROKEN:  # inside a nested list, or damaged
            text[comma] = ord(",")
    return None, text


def _last_between(text, end):
    """The match of `_BETWEEN` that ends last before `end`; None where there is none."""
    width, found = 4096, None
    while found is None and width < 16 * max(end, 4096):
        found = next(iter(deque(_BETWEEN.finditer(text, max(0, end - width), end), maxlen=1)), None)
        width *= 16
    return found


def _ended(text, bare, name, header, warnings, dropped):
    """Decode what is left: the last events, the list's end and what follows it."""
    lost = 0
    for mend, listed, rest in ((bytes, _events, _rest), (_clean, _events, _rest), (_clean, _raws, _raw_rest)):
        try:
            if bare:
                run = listed.decode(mend(text))
            else:
                found = rest.decode(b'{"traceEvents":' + mend(text))
                run = found.traceEvents
                for key in ("deviceProperties", "distributedInfo"):
                    if getattr(found, key) is not None:
                        header[key] = getattr(found, key)
            break
        except RecursionError as error:
            raise InputError(f"{name} is nested too deeply to be a trace") from error
        except _BROKEN as error:
            reason = _reason(error)
    else:
        run, lost = _saved(text[1:])
        lost -= lost > 0  # the one that is cut
        if not warnings:  # else its packing is known to be damaged
            warnings.append(f"{name} is cut off or damaged ({reason}): {PARTIAL}")
    if run and isinstance(run[0], msgspec.Raw):
        run, lost = _each(run)
    yield run
    if dropped + lost:
        events = (
            "an event that cannot be read is"
            if dropped + lost == 1
            else f"{dropped + lost} events that cannot be read are"
        )
        warnings.append(f"{name}: {events} left out")


def _saved(text):
    """The events in a piece of JSON text that is not what it should be, and how many were lost: (events, lost)."""
    text = _clean(text).strip(b" \t\r\n,")
    if not text:
        return [], 0
    for listed in (_events, _raws):
        try:
            found = listed.decode(b"[" + text + b"]")
            return (found, 0) if listed is _events else _each(found)
        except _BROKEN:
            continue
    middle = _split(text)
    if middle is None:
        return [], int(b'"ph"' in text)
    (first, lost), (second, lost_too) = _saved(text[:middle]), _saved(text[middle:])
    return first + second, lost + lost_too


def _each(raws):
    """Decode events one by one: (events, how many are lost)."""
    found, lost = [], 0
    for raw in raws:
        try:
            found.append(_event.decode(raw))
        except _BROKEN:
            event = _loose(raw)
            found += [event] if event else []
            lost += event is None
    return found, lost


def _split(text):
    """A place between two objects, near the middle of `text`; None where there is none."""
    half = len(text) // 2
    between = _BETWEEN.search(text, half) or _last_between(text, len(text))
    return between and between.start() + 1


def _loose(raw):
    """An Event of JSON with values of wrong types or beyond all range: these count as missing. None if hopeless."""
    try:
        value = json.loads(bytes(raw))  # for once not msgspec, which knows no number like 1e999
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    texts = {key: value[key] for key in ("ph", "cat", "name") if isinstance(value.get(key), str)}
    numbers = {key: _number(value.get(key)) for key in ("ts", "dur", "pid", "tid")}
    return Event(
        **texts, **numbers, args=Args(**{key: _number(args.get(KEYS.get(key, key))) for key in Args.__struct_fields__})
    )


def _number(value):
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


_CONTROL = bytes(32 if code < 32 else code for code in range(256))  # control characters become spaces
_LITERAL = re.compile(rb"(?<=[:\[,\s])[+-]?(?:NaN|nan|Infinity|inf|N/A)(?:\(ind\))?(?=[\s,\]}])")


def _clean(text):
    """The text as the JSON it was meant to be: valid UTF-8, no control characters, `null` for NaN, inf and N/A."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    parts, begin, quotes = [], 0, 0
    for found in _LITERAL.finditer(text):
        before = text[begin : found.start()]
        quotes += before.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        parts += [before, found[0] if quotes % 2 else b"null"]  # inside a string it is part of a name
        begin = found.end()
    return b"".join([*parts, text[begin:]])


def _reason(error):
    return str(error).removeprefix("JSON is malformed: ")
