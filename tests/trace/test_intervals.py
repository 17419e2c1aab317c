"""Interval arithmetic: known answers, and properties against counting cells one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from walkthrough.trace.intervals import Cover, integral, shares

CELLS = 30
edge = st.integers(0, CELLS)
intervals = st.lists(st.tuples(edge, edge), max_size=12)


def cover(pairs):
    return Cover([low for low, _ in pairs], [high for _, high in pairs])


def cells(pairs):
    """The same set, as a mask over [0, 1), [1, 2), …"""
    mask = np.zeros(CELLS, bool)
    for low, high in pairs:
        mask[low:high] = True
    return mask


def test_a_moment_counts_for_the_first_role_alone():
    added = shares([cover([(0, 4)]), cover([(2, 6)]), cover([(5, 10)])], [0, 3], [10, 6])
    assert added.tolist() == [[4, 1], [2, 2], [4, 0]]


@given(intervals, edge, edge)
def test_within_counts_the_covered_cells(pairs, low, high):
    expected = [cells(pairs)[low:high].sum(), cells(pairs)[high:low].sum()]  # 0 where it ends before it begins
    assert cover(pairs).within([low, high], [high, low]).tolist() == expected


@given(intervals, intervals)
def test_a_cover_holds_its_cells_from_their_begin_to_before_their_end(one, other):
    """Of covers as they are given, of both, of what both hold, and of what one leaves of the other."""
    a, b = cover(one), cover(other)
    for found, wanted in (
        (a, cells(one)),
        (a | b, cells(one) | cells(other)),
        (a & b, cells(one) & cells(other)),
        (a.gaps(b.start, b.end), cells(other) & ~cells(one)),
        (a.gaps([low for low, _ in other], [high for _, high in other]), cells(other) & ~cells(one)),
    ):
        for inside in (0.0, 0.5, 0.999):
            assert found.holds(np.arange(CELLS) + inside).tolist() == wanted.tolist()
        assert not found.holds(np.array([-1.0, CELLS])).any()
        assert found.total == wanted.sum()
        assert (found.start[1:] > found.end[:-1]).all() and (found.start < found.end).all()


@given(st.lists(intervals, min_size=1, max_size=5), edge, edge)
def test_the_parts_sum_to_the_union(roles, low, high):
    added = shares([cover(pairs) for pairs in roles], [low], [high])
    assert (added >= 0).all()
    assert added.sum() == cover([pair for pairs in roles for pair in pairs]).within(low, high)


@given(st.lists(st.tuples(edge, edge, st.integers(1, 8)), max_size=8), edge, edge)
def test_the_integral_of_a_capped_sum(weighted, low, high):
    weighted = [(a, b, w / 4) for a, b, w in weighted if a < b]
    height = np.zeros(CELLS)
    for a, b, w in weighted:
        height[a:b] += w
    start, end, value = (np.array([row[column] for row in weighted], float) for column in range(3))
    expected = np.minimum(height, 1.0)[low:high].sum() if low < high else 0
    assert integral(start, end, value, low, max(low, high), 1.0) == approx(expected)
