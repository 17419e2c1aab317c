"""The caching allocator's rules, by sequences that can be followed by hand, and the search for the largest batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkthrough.memory.allocator import MB, CachingAllocator, DoesNotFit, reserved_bytes
from walkthrough.memory.fit import MOST, largest_batch


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [
        ([1], 2 * MB),  # a small block has a segment of 2 MB
        ([MB, MB], 2 * MB),  # and shares it
        ([MB, MB, 1], 4 * MB),
        ([MB + 1], 20 * MB),  # from then on 20 MB
        ([MB + 1, MB], 22 * MB),  # small ones never lie in a large segment
        ([9 * MB, 9 * MB], 20 * MB),
        ([9 * MB, 9 * MB, 9 * MB], 40 * MB),
        ([10 * MB], 10 * MB),  # from 10 MB on a segment of its own, in steps of 2 MB
        ([10 * MB + 1], 12 * MB),
        ([33 * MB], 34 * MB),
    ],
)
def test_segments_are_as_large_as_torchs(sizes, segments):
    assert reserved_bytes(enumerate(sizes, start=1)) == segments


def test_a_freed_block_is_split_for_a_smaller_one_and_joined_again():
    allocator = CachingAllocator()
    allocator.allocate(1, 100 * MB)
    allocator.free(1)
    allocator.allocate(2, 40 * MB)
    allocator.allocate(3, 60 * MB)  # the rest of it
    assert allocator.reserved_bytes == 100 * MB
    allocator.free(2)
    allocator.free(3)
    allocator.allocate(4, 100 * MB)
    assert allocator.reserved_bytes == 100 * MB


def test_the_smallest_free_block_that_is_large_enough_is_taken_and_a_rest_of_a_megabyte_is_not_split_off():
    allocator = CachingAllocator()
    for block, size in enumerate((60 * MB, 20 * MB, 40 * MB)):
        allocator.allocate(block, size)
    for block in range(3):
        allocator.free(block)
    allocator.allocate(4, 39 * MB)  # of the 40 MB, whole
    allocator.allocate(5, 20 * MB)
    allocator.allocate(6, 60 * MB)
    assert allocator.reserved_bytes == 120 * MB
    allocator.allocate(7, 2 * MB)  # nothing is left for it
    assert allocator.reserved_bytes == 140 * MB


def test_free_blocks_that_are_too_small_are_what_fragmentation_is():
    events = [(1, 50 * MB), (2, 50 * MB), (1, 0), (2, 0), (3, 60 * MB)]
    assert reserved_bytes(events) == 160 * MB
    assert reserved_bytes(events, capacity=110 * MB) == 60 * MB  # short of memory it returns both segments first
    assert reserved_bytes(events, capacity=99 * MB) is None
    with pytest.raises(DoesNotFit):
        CachingAllocator(capacity=MB).allocate(1, 1)


def test_a_segment_that_is_partly_in_use_is_not_returned():
    events = [(1, 50 * MB), (1, 0), (2, 20 * MB), (3, 40 * MB)]
    assert reserved_bytes(events, capacity=90 * MB) == 90 * MB
    assert reserved_bytes(events, capacity=80 * MB) is None


@given(
    st.integers(0, 10**9), st.integers(1, 10**8), st.integers(0, 10**3), st.integers(1, 10**12), st.integers(1, 4096)
)
def test_the_largest_batch_fits_and_the_next_does_not(fixed, per_sample, curved, budget, start):
    asked = []

    def needed(size):
        asked.append(size)
        return fixed + per_sample * size + curved * size**2

    size = largest_batch(needed, budget, start)
    assert size == 0 or needed(size) <= budget
    assert size == MOST or needed(size + 1) > budget
    assert all(1 <= one <= MOST for one in asked[:-2])
    assert len(asked) <= 40


def test_a_straight_line_takes_few_predictions():
    asked = []
    assert largest_batch(lambda size: asked.append(size) or 435_000_000 + 53_000_000 * size, 40_000_000_000, 128) == 746
    assert len(asked) == 4


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**11), st.integers(1, 4096))
def test_a_tolerance_leaves_a_batch_that_fits_and_at_most_that_share_more(fixed, per_sample, budget, start):
    def needed(size):
        return fixed + per_sample * size

    size = largest_batch(needed, budget, start, tolerance=0.01)
    best = largest_batch(needed, budget, start)
    assert size <= best <= size + max(0, int(0.01 * size))


def test_a_tolerance_asks_for_fewer_sizes_where_memory_has_steps():
    def asked_with(tolerance):
        asked = []
        largest_batch(lambda size: asked.append(size) or size // 37 * 2_000_000_000, 10**13, 128, tolerance)
        return len(asked)

    assert asked_with(0.01) < asked_with(0)
