"""The caching allocator's rules, by sequences that can be followed by hand, and the search for the largest batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkthrough.memory.allocator import reserved_bytes
from walkthrough.memory.fit import MOST, largest_batch

MB = 2**20


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [
        ([1], 2 * MB),  # a small block has a segment of 2 MB
        ([MB, MB], 2 * MB),  # and shares it
        ([MB, MB, 1], 4 * MB),
        ([MB, MB - 512, 512], 2 * MB),  # blocks are multiples of 512
        ([MB, MB - 511, 512], 4 * MB),
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


FREED = [(1, 50), (2, 50), (1, 0), (2, 0), (3, 60)]
PARTLY_USED = [(1, 50), (1, 0), (2, 20), (3, 40)]
SMALLEST = [(1, 60), (2, 20), (3, 40), (1, 0), (2, 0), (3, 0), (4, 39), (5, 20), (6, 60)]  # 39 takes the 40, whole


@pytest.mark.parametrize(
    ("events", "capacity", "reserved"),  # events: (block, MB where it is allocated, 0 where it is freed)
    [
        ([(1, 100), (1, 0), (2, 40), (3, 60), (2, 0), (3, 0), (4, 100)], None, 100),  # split, and joined again
        ([(1, 4), (2, 4), (3, 4), (1, 0), (3, 0), (2, 0), (4, 20)], None, 20),  # joined with both neighbours
        (SMALLEST, None, 120),
        ([*SMALLEST, (7, 2)], None, 140),  # a rest of a megabyte is not split off, so nothing is left
        (FREED, None, 160),  # free blocks that are too small are what fragmentation is
        (FREED, 110, 60),  # short of memory it returns both segments first
        (FREED, 100, 60),
        (FREED, 99, None),
        (PARTLY_USED, 90, 90),
        (PARTLY_USED, 80, None),  # a segment that is partly in use is not returned
    ],
)
def test_free_blocks_are_split_joined_and_returned_as_torchs(events, capacity, reserved):
    reserved_mb = reserved and reserved * MB
    assert reserved_bytes(((block, size * MB) for block, size in events), capacity and capacity * MB) == reserved_mb


@given(
    fixed=st.integers(0, 10**9),
    per_sample=st.integers(1, 10**8),
    curved=st.integers(0, 10**3),
    budget=st.integers(1, 10**12),
    start=st.integers(1, 4096),
    tolerance=st.sampled_from([0, 0.01]),
)
def test_the_largest_batch_fits_and_one_that_is_larger_by_the_tolerance_does_not(
    fixed, per_sample, curved, budget, start, tolerance
):
    asked = []

    def needed(size):
        asked.append(size)
        return fixed + per_sample * size + curved * size**2

    size = largest_batch(needed, budget, start, tolerance)
    assert all(1 <= one <= MOST for one in asked)
    assert len(asked) <= 40
    assert size == 0 or needed(size) <= budget
    larger = size + max(1, int(size * tolerance))
    assert larger > MOST or needed(larger) > budget


@pytest.mark.parametrize(
    ("needed", "largest", "predictions"),
    [
        (lambda size: 435_000_000 + 53_000_000 * size, 746, 4),
        (lambda size: 10**15 if size > 500_000 else size, 500_000, 31),  # no line: after ten guesses by the middle
        (lambda size: 0, 2**20, 21),
    ],
)
def test_a_straight_line_takes_few_predictions(needed, largest, predictions):
    asked = []
    assert largest_batch(lambda size: asked.append(size) or needed(size), 40_000_000_000, 128) == largest
    assert len(asked) == predictions


def test_a_tolerance_asks_for_fewer_sizes_where_memory_has_steps():
    def asked_with(tolerance):
        asked = []
        largest_batch(lambda size: asked.append(size) or size // 37 * 2_000_000_000, 10**13, 128, tolerance)
        return len(asked)

    assert asked_with(0.01) < asked_with(0)
