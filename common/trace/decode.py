"""From bytes to events: typed, a few thousand at a time, and as much as can be saved of a damaged file.

A trace is one object whose "traceEvents" is a list of small objects, or that list alone. It is decoded in runs of whole
events, so that memory holds one run at a time however large the trace. Where a run is not what it should be (literals
such as N/A, raw control characters, bad UTF-8, wrong types, a missing end) `salvage` takes over.
"""

import re
from itertools import islice

import msgspec

from common.errors import InputError
from common.trace.event import Event
from common.trace.recovery import BROKEN, EVENTS, clean, each, last_between, saved
from common.trace.source import PARTIAL


class Header(msgspec.Struct, kw_only=True):
    """What stands beside the events: `deviceProperties` and `distributedInfo`, of any type."""

    deviceProperties: object = None
    distributedInfo: object = None


class _Rest(Header, kw_only=True):
    traceEvents: list[Event]


class _RawRest(Header, kw_only=True):
    traceEvents: list[msgspec.Raw]


_header = msgspec.json.Decoder(Header)
_rest = msgspec.json.Decoder(_Rest)
_raw_rest = msgspec.json.Decoder(_RawRest)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_RUN = 2 * 2**20  # bytes to decode at a time
_PATIENCE = 64 * 2**20  # bytes to gather before a run that does not decode is taken for damaged


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
            run, lost = saved(bytes(text[1:cut])) if cut else ([], 1)
            text, dropped = bytearray(b"[") + (text[cut:].lstrip(b" \t\r\n,") if cut else b""), dropped + lost
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
                found = _header.decode(clean(head))
            except BROKEN:
                continue  # those words stood inside something else
            header.update(msgspec.structs.asdict(found))
            return bytearray(text[opening.end() - 1 :]), False
        searched = max(searched, len(text) - 4096)
    try:
        _anything.decode(text)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply to be a trace") from error
    except BROKEN as error:
        raise InputError(f"{name} is not JSON: {_reason(error)}") from error
    raise InputError(f'{name} has no list "traceEvents": it is not a trace of torch.profiler')


def _run(text):
    """Decode as many whole events as `text`, a bytearray, holds: (events, "[" and the text after), or (None, text)."""
    end = len(text)
    for _ in range(8):  # the last places where one event may end and the next begin
        between = last_between(text, end)
        if between is None:
            break
        end = between.start()
        comma = text.index(b",", end)
        text[comma] = ord("]")  # in place: copying the text would take as long as decoding it
        try:
            return EVENTS.decode(memoryview(text)[: comma + 1]), bytearray(b"[") + text[between.end() - 1 :]
        except msgspec.ValidationError:
            text[comma] = ord(",")
            break
        except BROKEN:  # inside a nested list, or damaged
            text[comma] = ord(",")
    return None, text


def _ended(text, bare, name, header, warnings, dropped):
    """Decode what is left: the last events, the list's end and what follows it."""
    lost = 0
    for mend, listed, rest in ((bytes, EVENTS, _rest), (clean, EVENTS, _rest), (clean, _raws, _raw_rest)):
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
        except BROKEN as error:
            reason = _reason(error)
    else:
        run, lost = saved(text[1:])
        lost -= lost > 0 and "truncated" in reason  # the one that is cut off
        if not warnings:  # else its packing is known to be damaged
            warnings.append(f"{name} is cut off or damaged ({reason}): {PARTIAL}")
    if run and isinstance(run[0], msgspec.Raw):
        run, lost = each(run)
    yield run
    if dropped + lost:
        events = (
            "an event that cannot be read is"
            if dropped + lost == 1
            else f"{dropped + lost} events that cannot be read are"
        )
        warnings.append(f"{name}: {events} left out")


def _reason(error):
    return str(error).removeprefix("JSON is malformed: ")
