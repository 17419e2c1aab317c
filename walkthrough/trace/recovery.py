"""Recovers as many events as possible from text that is not valid JSON.

Literals such as N/A, raw control characters, bad UTF-8, values of wrong types, events that are cut off or broken.
"""

import json
import re
from collections import deque
from collections.abc import Iterable

import msgspec

from walkthrough.trace.event import KEYS, NUMBERS, PLAIN, Args, Decoders, Event, Number

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
