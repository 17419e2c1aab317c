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
MORE_KEYS = {
    "sequence": "Sequence number",
    "values": "Concrete Inputs",
    "forward": "Fwd thread id",
    "stack": "Call stack",
    "module": "Module Hierarchy",
    "warps": "num_warps",
    "stages": "num_stages",
    "triton": "kernel_kwargs",
    "backend": "kernel_backend",
    "source": "kernel_file",
    "registers": "registers per thread",
    "shared": "shared memory",
    "warps_per_sm": "warps per SM",
    "bandwidth": "memory bandwidth (GB/s)",
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dtype": "dtype",
    "split_in": "In split size",
    "split_out": "Out split size",
    "group_size": "Group size",
    "group": "Process Group Name",
    "group_of": "Process Group Description",
    "ranks": "Process Group Ranks",
    "from_rank": "Src Rank",
    "to_rank": "Dst Rank",
}


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


class MoreArgs(Args, gc=False, rename=MORE_KEYS):
    """Also the arguments that the timeline shows, as JSON, and `sequence`, which links a backward pass to its operator.

    name: of a thread, in an event that names one.
    """

    sequence: Number = None
    values: msgspec.Raw = msgspec.Raw()
    forward: msgspec.Raw = msgspec.Raw()
    stack: msgspec.Raw = msgspec.Raw()
    module: msgspec.Raw = msgspec.Raw()
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    warps: msgspec.Raw = msgspec.Raw()
    stages: msgspec.Raw = msgspec.Raw()
    triton: msgspec.Raw = msgspec.Raw()
    backend: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    registers: msgspec.Raw = msgspec.Raw()
    shared: msgspec.Raw = msgspec.Raw()
    warps_per_sm: msgspec.Raw = msgspec.Raw()
    bandwidth: msgspec.Raw = msgspec.Raw()
    kind: msgspec.Raw = msgspec.Raw()
    kernel: msgspec.Raw = msgspec.Raw()
    size: msgspec.Raw = msgspec.Raw()
    collective: msgspec.Raw = msgspec.Raw()
    elements_in: msgspec.Raw = msgspec.Raw()
    elements_out: msgspec.Raw = msgspec.Raw()
    dtype: msgspec.Raw = msgspec.Raw()
    split_in: msgspec.Raw = msgspec.Raw()
    split_out: msgspec.Raw = msgspec.Raw()
    group_size: msgspec.Raw = msgspec.Raw()
    group: msgspec.Raw = msgspec.Raw()
    group_of: msgspec.Raw = msgspec.Raw()
    ranks: msgspec.Raw = msgspec.Raw()
    from_rank: msgspec.Raw = msgspec.Raw()
    to_rank: msgspec.Raw = msgspec.Raw()
    name: msgspec.Raw = msgspec.Raw()


class MoreEvent(Event, gc=False):
    """An event with all arguments that are shown."""

    args: MoreArgs | None = None


class Decoders(NamedTuple):
    """From JSON to events, with their classes."""

    event_type: type[Event]
    args_type: type[Args]
    event: msgspec.json.Decoder[Event]
    events: msgspec.json.Decoder[list[Event]]


def _decoders(event: type[Event], args: type[Args]) -> Decoders:
    return Decoders(event, args, msgspec.json.Decoder(event), msgspec.json.Decoder(list[event]))


PLAIN, DETAILED = _decoders(Event, Args), _decoders(MoreEvent, MoreArgs)
