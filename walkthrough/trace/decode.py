"""From bytes to events: typed, a few thousand at a time, and as much as can be recovered from a damaged file.

A trace is one object whose "traceEvents" is a list of small objects, or that list alone. It is decoded in runs of whole
events, so memory holds one run at a time however large the trace. `recovery` decodes the runs that are not valid
(literals such as N/A, raw control characters, bad UTF-8, wrong types, a missing end).
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from os import PathLike
from typing import Generic, TypeVar

import msgspec

from walkthrough.results.errors import InputError
from walkthrough.trace.event import PLAIN, Decoders, Event
from walkthrough.trace.recovery import BROKEN, clean, decode_each, last_between, recovered
from walkthrough.trace.source import PARTIAL

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
