"""One event of a trace: the fields that are read."""

from typing import NamedTuple

import msgspec

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
