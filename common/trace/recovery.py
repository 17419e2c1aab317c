"""As much as can be saved of text that is not the JSON it was meant to be.

Literals such as N/A, raw control characters, bad UTF-8, values of wrong types, events that are cut off or broken.
"""

import json
import re
from collections import deque

import msgspec

from common.trace.event import KEYS, Args, Event

EVENTS = msgspec.json.Decoder(list[Event])
_event = msgspec.json.Decoder(Event)
BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
BETWEEN = re.compile(rb"\}\s*,\s*\{")
_FEW = 16 * 2**10  # bytes of damaged text that are not worth halving


def last_between(text, end):
    """The match of `BETWEEN` that ends last before `end`; None where there is none."""
    width, found = 4096, None
    while found is None and width < 16 * max(end, 4096):
        found = next(iter(deque(BETWEEN.finditer(text, max(0, end - width), end), maxlen=1)), None)
        width *= 16
    return found


def saved(text):
    """The events in a piece of JSON text that is not what it should be, and how many were lost: (events, lost)."""
    return _salvaged(clean(text).strip(b" \t\r\n,"))


def _salvaged(text):
    """Decode halves of halves, and what is small enough event by event."""
    try:
        return EVENTS.decode(b"[" + text + b"]"), 0
    except BROKEN:
        middle = _split(text) if len(text) > _FEW else None
    if middle is None:
        return _one_by_one(text)
    (first, lost), (second, lost_too) = _salvaged(text[:middle]), _salvaged(text[middle:].lstrip(b" ,\t\r\n"))
    return first + second, lost + lost_too


def _one_by_one(text):
    found, lost, begin = [], 0, 0
    ends = [between.start() + 1 for between in BETWEEN.finditer(text)] + [len(text)]
    for end in ends:
        raw = text[begin:end].strip(b" ,\t\r\n")
        event = _decoded(raw)
        if event is None and raw.count(b"{") > raw.count(b"}") and len(raw) < _FEW:
            continue  # that end was one of a nested object
        found += [event] if event else []
        lost += event is None and b'"ph"' in raw
        begin = end
    return found, lost + (b'"ph"' in text[begin:])


def each(raws):
    """Decode events one by one: (events, how many are lost)."""
    found = [_decoded(raw) for raw in raws]
    return [event for event in found if event], found.count(None)


def _decoded(raw):
    """An Event, or None."""
    try:
        return _event.decode(raw)
    except BROKEN:
        return _loose(raw)


def _split(text):
    """A place between two objects, near the middle of `text`; None where there is none."""
    half = len(text) // 2
    between = BETWEEN.search(text, half) or last_between(text, len(text))
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


def clean(text):
    """The text as the JSON it was meant to be: valid UTF-8, no control characters, `null` for NaN, inf and N/A."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    parts, begin, quotes = [], 0, 0
    for found in _LITERAL.finditer(text):
        before = text[begin : found.start()]
        quotes += before.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        parts += [before, found[0] if quotes % 2 else b"null"]  # inside a string it is part of a name
        begin = found.end()
    return b"".join([*parts, text[begin:]])
