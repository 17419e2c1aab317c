"""Medians, quantiles and distinct values: those of numpy, without importing numpy.ma."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from walkthrough.trace.columns import distinct, median, quantile

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
