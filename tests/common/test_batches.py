"""Batches epoch after epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from common.loaders import Epochs, queued, steps_past_epoch


def numbers(batches, count):
    return [next(batches).item() for _ in range(count)]


def test_one_epoch_follows_the_other_and_a_batch_that_was_looked_at_is_still_to_come():
    batches = Epochs(DataLoader(range(3)))
    assert (batches.peek().item(), batches.left) == (0, 3)
    assert numbers(batches, 7) == [0, 1, 2, 0, 1, 2, 0]
    assert batches.left == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_what_workers_load_ahead_is_counted(workers):
    batches = Epochs(DataLoader(range(30), num_workers=workers, persistent_workers=workers > 0))
    assert queued(batches) == 2 * workers
    assert numbers(batches, 32) == [*range(30), 0, 1]
    assert (queued(iter([1])), steps_past_epoch(iter([]), 5)) == (0, 0)  # an iterator of another kind


@given(st.integers(1, 20), st.integers(0, 32), st.integers(0, 20), st.integers(1, 44), st.integers(0, 6))
def test_no_epoch_begins_within_the_steps_or_else_within_the_last_of_them(epoch, queue, left, steps, last):
    batches = Epochs(DataLoader(range(epoch)))
    batches.queued, batches.left = queue, min(left, epoch)
    first = steps_past_epoch(batches, steps, last)
    places = [(number - batches.left) % epoch for number in range(first, first + steps)]  # in their epoch
    if batches.left >= steps:
        assert first == 0
    elif 1 + queue + steps <= epoch:
        assert places == list(range(1 + queue, 1 + queue + steps))  # the queue is used up once
        assert first <= epoch + queue
    elif 0 < last < epoch and last <= steps:
        assert first <= epoch
        assert places[-last:] == list(range(places[-last], places[-last] + last))
        assert places[-last] >= min(1 + queue, epoch - last) or first + steps <= batches.left
    elif last == 0 or last >= epoch:
        assert first == 0  # too short
