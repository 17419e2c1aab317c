"""What the timeline shows of each event's arguments: shapes, sizes, groups. Distinct lists of arguments are kept once.

Values that differ from event to event, such as ids and pointers, are no part of it.
"""

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import numpy as np

from walkthrough.trace.chrome_trace import Args, Event, Number, decoders

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
LABELS = {  # of the fields whose names a page would not show
    "values": "values",
    "forward": "forward thread",
    "warps": "warps",
    "triton": "Triton",
    "registers": "registers per thread",
    "shared": "shared memory",
    "warps_per_sm": "warps per SM",
    "blocks_per_sm": "blocks per SM",
    "occupancy": "estimated occupancy, %",
    "bandwidth": "GB/s",
    "elements_in": "elements in",
    "elements_out": "elements out",
    "dtype": "type",
    "split_in": "split in",
    "split_out": "split out",
    "group_size": "group size",
    "group_of": "group of",
    "from_rank": "from rank",
    "to_rank": "to rank",
}
_COLLECTIVE = (
    *("collective", "elements_in", "elements_out", "dtype", "split_in", "split_out", "group_size", "group"),
    *("group_of", "ranks", "from_rank", "to_rank"),
)
_ON_CPU = ("shapes", "types", "values", "forward", "module", "stack")
_TRITON = ("backend", "triton", "warps", "stages", "source", "grid")
# By the columns that a kind of event has: JSON texts first, then numbers.
FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "operator": ((*_ON_CPU, *_TRITON, *_COLLECTIVE), ()),
    "annotation": ((*_ON_CPU, *_COLLECTIVE), ()),
    "kernel": (
        ("grid", "block", "registers", "shared", "warps_per_sm", "kind", *_COLLECTIVE),
        ("blocks_per_sm", "occupancy"),
    ),
    "copy": (("kind", "bandwidth"), ("bytes",)),
    "set": (("kind", "bandwidth"), ("bytes",)),
    "runtime": (("kind", "size", "kernel", "grid", "block", "shared"), ("bytes",)),
}
MAX_VALUE, MAX_STACK = 400, 4_000  # letters that are shown of a value, and of a stack
MAX_DISTINCT = 200_000  # lists of arguments that are kept of a trace
MAX_BYTES = 256 * 2**20  # of them
_BETWEEN = b"\x1f"  # JSON holds no such byte
_GETTERS = {
    kind: (attrgetter(*texts), [attrgetter(name) for name in numbers]) for kind, (texts, numbers) in FIELDS.items()
}

Key = tuple[object, ...]  # kind, JSON texts, numbers


class MoreArgs(Args, gc=False, rename=MORE_KEYS):
    """Also the arguments that the timeline shows, as JSON, and `sequence`, linking passes."""

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


class MoreEvent(Event, gc=False):
    """An event with all arguments that are shown."""

    args: MoreArgs | None = None


DETAILED = decoders(MoreEvent, MoreArgs)


class Details:
    """Numbers the distinct lists of arguments of a trace's events."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._bytes = 0

    def numbers(self, kind: str, args: Sequence[Args]) -> np.ndarray:
        """The number of each event's arguments (`MoreArgs`), int64; -1 for none, and for more than is kept."""
        texts_of, numbers_of = _GETTERS[kind]
        nothing = (kind, _BETWEEN * (len(FIELDS[kind][0]) - 1), *[None] * len(numbers_of))
        known, result = self._numbers, []
        texts = map(_BETWEEN.join, map(texts_of, args))
        for key in zip([kind] * len(args), texts, *(map(of, args) for of in numbers_of), strict=True):
            number = known.get(key)
            if number is None:
                number = self._added(key) if key != nothing else -1
            result.append(number)
        return np.array(result, np.int64)

    @property
    def count(self) -> int:
        """How many lists of arguments are kept."""
        return len(self._keys)

    def facts(self, number: int) -> dict[str, str | float]:
        """{fact: text or number} of a list of arguments."""
        kind, texts, *numbers = self._keys[number]
        text_fields, number_fields = FIELDS[str(kind)]
        values = [_value(text) for text in bytes(texts).split(_BETWEEN)]  # pyright: ignore[reportArgumentType]
        result = {}
        if len(values) != len(text_fields):  # damaged: the byte between values is in one
            return result
        for field, value in zip((*text_fields, *number_fields), (*values, *numbers), strict=True):
            if field == "forward" and value == 0:  # in every operator outside of a backward pass
                continue
            shown = _shown(value, MAX_STACK if field == "stack" else MAX_VALUE)
            if shown is not None:
                result[LABELS.get(field, field)] = shown
        return result

    def _added(self, key: Key) -> int:
        if len(self._keys) >= MAX_DISTINCT or self._bytes > MAX_BYTES:
            return -1
        self._bytes += len(key[1])  # pyright: ignore[reportArgumentType]
        self._numbers[key] = number = len(self._keys)
        self._keys.append(key)
        return number


def _value(text: bytes) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # its parts are checked here for the first time
        return text.decode("utf-8", "replace")


def _shown(value: object, most: int) -> str | float | None:
    """A number, or a text without quotes of at most so many letters; None for nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if abs(value) < 2**53 else str(value)
    text = _text(value)
    if not text.strip("[], "):
        return None
    return text if len(text) <= most else text[: most - 2] + " …"


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "" if value is None else str(value)
