"""The ranks of one training, by their numbers."""

import pytest

from walkthrough.advice import comparison


def rank(number, exposed_us, step_us=1000.0, **more):
    """A rank of a training on GPUs, in collectives with nothing beside them for so many µs of a step."""
    return {
        "rank": number, "step_us": step_us, "median_us": step_us, "has_gpu": True, "communicates": True,
        "parts": {"kernel": 900.0, "communication": 0.0, "other": step_us - 900.0}, "ways": "fewer bytes",
        "collectives_us": exposed_us, "exposed_us": exposed_us, "hidden_us": 0.0, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "exposed_us, last, named",
    [
        ((300, 100, 300), [1], "for rank 1"),
        ((100, 300, 300, 103), [0, 3], "for ranks 0 and 3"),  # as with tensor parallelism: two are alike
        ((241, 481, 413, 472, 495, 491, 264, 482), [0, 6], "for ranks 0 and 6"),
        ((100, 130, 120), [], ""),
        ((100, 101, 102), [], ""),
    ],
)
def test_those_that_others_wait_for_are_named_all(exposed_us, last, named):
    ranks = [rank(number, us) for number, us in enumerate(exposed_us)]
    assert [row["rank"] for row in comparison.stragglers(ranks)] == last
    assert named in comparison.advice(ranks)
    assert ("wait" in comparison.advice(ranks)) is bool(last)


def test_no_rank_is_waited_for_where_one_has_the_least_in_all_and_another_the_least_exposed():
    ranks = [rank(0, 300, collectives_us=310.0), rank(1, 100, collectives_us=900.0)]
    assert comparison.stragglers(ranks) == []
    assert comparison.advice(ranks)


@pytest.mark.parametrize(
    ("step_us", "text"),
    [
        ((1000, 1100, 1099), "ranks 1 and 2 take 10.0% longer per median step than rank 0"),
        ((1000, 1100), "rank 1 takes 10.0% longer per median step than rank 0"),
        ((1000, 1001), "their median steps take the same time to within 0.5 %"),
    ],
)
def test_those_that_are_slowest_are_named_all(step_us, text):
    assert comparison.difference([rank(number, 100, us) for number, us in enumerate(step_us)]) == text
