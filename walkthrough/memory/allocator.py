"""How much of a GPU's memory torch's caching allocator reserves for a sequence of allocations.

As `c10/cuda/CUDACachingAllocator.cpp` does by default (without expandable segments): a block is taken from the smallest
free one that is large enough, and split; where there is none, a segment is asked for from CUDA. Freed blocks go back
to their segment, not to CUDA. So more is reserved than is ever in use, and more where sizes vary.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

MB = 2**20
BLOCK_BYTES = 512  # kMinBlockSize: every block is a multiple of it
SMALL_BYTES = MB  # kSmallSize: blocks up to it have segments of their own
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MB, 20 * MB  # kSmallBuffer; kLargeBuffer, for blocks below `OWN_SEGMENT`
OWN_SEGMENT = 10 * MB  # kMinLargeAlloc: from here on a segment is as large as its first block, in steps of 2 MB

Event = tuple[int, int]  # (which block, its bytes where it is allocated, 0 where it is freed)


class DoesNotFit(Exception):
    """The memory is used up."""


@dataclass
class CachingAllocator:
    """capacity: bytes that it can reserve, None for as many as are asked for."""

    capacity: int | None = None
    reserved_bytes: int = 0
    _segments: dict[int, int] = field(default_factory=dict)  # {number: bytes}
    _next_segment: int = 0
    # Free blocks of small and of large segments, sorted: (bytes, segment, offset).
    _free: dict[bool, list[tuple[int, int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _used: dict[int, tuple[bool, int, int, int]] = field(default_factory=dict)  # {block: small, segment, offset, bytes}

    def allocate(self, block: int, wanted_bytes: int) -> None:
        """Raises DoesNotFit."""
        size = rounded(wanted_bytes, BLOCK_BYTES)
        small = size <= SMALL_BYTES
        free = self._free[small]
        at = bisect_left(free, (size,))
        found, segment, offset = free.pop(at) if at < len(free) else self._new_segment(size, small)
        rest = found - size
        if rest >= BLOCK_BYTES if small else rest > SMALL_BYTES:
            insort(free, (rest, segment, offset + size))
            found = size
        self._used[block] = small, segment, offset, found

    def free(self, block: int) -> None:
        """Joins it with its free neighbours."""
        small, segment, offset, size = self._used.pop(block)
        free = self._free[small]
        for other in [other for other in free if other[1] == segment]:
            if other[2] + other[0] == offset:
                free.remove(other)
                offset, size = other[2], size + other[0]
            elif offset + size == other[2]:
                free.remove(other)
                size += other[0]
        insort(free, (size, segment, offset))

    def _new_segment(self, size: int, small: bool) -> tuple[int, int, int]:
        new = SMALL_SEGMENT if small else LARGE_SEGMENT if size < OWN_SEGMENT else rounded(size, 2 * MB)
        if self.capacity is not None and self.reserved_bytes + new > self.capacity:
            self._return_free_segments()
            if self.reserved_bytes + new > self.capacity:
                raise DoesNotFit
        self._next_segment += 1
        self._segments[self._next_segment] = new
        self.reserved_bytes += new
        return new, self._next_segment, 0

    def _return_free_segments(self) -> None:
        """Give CUDA back what is free as a whole: what the allocator tries before it raises OutOfMemoryError."""
        for free in self._free.values():
            for entry in [entry for entry in free if entry[0] == self._segments[entry[1]]]:
                free.remove(entry)
                self.reserved_bytes -= self._segments.pop(entry[1])


def rounded(size: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `size`, and at least one `step`."""
    return max(1, -(-size // step)) * step


def reserved_bytes(events: Iterable[Event], capacity: int | None = None) -> int | None:
    """What is reserved after these events, None where they do not fit into `capacity` bytes."""
    allocator = CachingAllocator(capacity)
    for block, size in events:
        if not size:
            allocator.free(block)
            continue
        try:
            allocator.allocate(block, size)
        except DoesNotFit:
            return None
    return allocator.reserved_bytes
