"""Medians, quantiles and distinct values: those of numpy, without importing numpy.ma."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from support.trace_builder import TraceBuilder

from walkthrough.trace.columns import distinct, in_turn, median, places, quantile
from walkthrough.trace.reader import read

NUMBERS = st.floats(-1e9, 1e9, width=32)


@given(arrays(np.float64, array_shapes(max_dims=2), elements=NUMBERS))
def test_the_median_is_that_of_numpy_along_the_last_axis(values):
    assert np.array_equal(median(values), np.median(values, axis=-1))


@given(arrays(np.float64, st.integers(1, 50), elements=NUMBERS), st.floats(0, 1))
def test_a_quantile_is_that_of_numpy(values, share):
    assert np.isclose(quantile(values, share), np.quantile(values, share), rtol=1e-9, atol=1e-3)


@given(arrays(np.float64, st.integers(0, 50), elements=st.sampled_from([0.0, 1.0, 2.5, np.nan])))
def test_distinct_values_are_those_of_numpy(values):
    assert np.array_equal(distinct(values), np.unique(values), equal_nan=True)


def test_the_places_of_each_value_with_one_nan():
    found = places(np.array([2.0, np.nan, 1.0, 2.0, np.nan]))
    assert [place.tolist() for place in found.values()] == [[2], [0, 3], [1, 4]]
    assert list(found)[:2] == [1.0, 2.0]
    assert places(np.empty(0)) == {}


def test_what_begins_next_on_the_same_thread():
    first, second = in_turn(SimpleNamespace(thread=np.array([7, 3, 7, 7, 3, 5])))
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 2), (1, 4), (2, 3)]


def test_the_first_operator_around_another_that_is_not_passed(tmp_path):
    builder = TraceBuilder()
    for depth in range(300):
        builder.op(f"aten::empty{depth}", depth, 1000 - 2 * depth)
    nesting = read(builder.write(tmp_path / "made.json")).nesting
    inner = np.array([299, 250, 4, -1])
    assert nesting.around(inner, np.arange(300) % 100 != 0).tolist() == [200, 200, 0, -1]
    assert nesting.around(inner, np.ones(300, bool)).tolist() == [-1, -1, -1, -1]
