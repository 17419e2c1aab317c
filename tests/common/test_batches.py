"""Batches epoch after epoch."""

import pytest
from torch.utils.data import DataLoader

from common.loaders import Epochs, queued, steps_past_epoch


def numbers(batches, count):
    return [next(batches).item() for _ in range(count)]


def test_one_epoch_follows_the_other():
    batches = Epochs(DataLoader(range(3)))
    assert numbers(batches, 7) == [0, 1, 2, 0, 1, 2, 0]
    assert batches.left == 2


def test_a_batch_that_was_looked_at_is_still_to_come():
    batches = Epochs(DataLoader(range(3)))
    assert batches.peek().item() == 0
    assert batches.left == 3
    assert numbers(batches, 4) == [0, 1, 2, 0]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_workers_load_ahead_is_counted(workers):
    batches = Epochs(DataLoader(range(30), num_workers=workers, persistent_workers=workers > 0))
    assert queued(batches) == 2 * workers
    assert numbers(batches, 32) == [*range(30), 0, 1]
    assert queued(iter([1])) == 0


@pytest.mark.parametrize(("left", "steps", "first"), [(10, 10, 0), (9, 10, 10), (0, 5, 1), (5, 20, 0), (5, 19, 6)])
def test_an_epoch_that_would_begin_within_is_begun_before(left, steps, first):
    batches = Epochs(DataLoader(range(20)))
    batches.left = left
    assert steps_past_epoch(batches, steps) == first


def test_the_queue_of_a_new_epoch_is_used_up_once():
    loader = DataLoader(range(20), num_workers=2)
    batches = Epochs(loader)
    assert steps_past_epoch(batches, 4) == 1 + 4
    assert steps_past_epoch(batches, 16) == 0  # too long for an epoch of 20 with a queue of 4


@pytest.mark.parametrize("queue", [0, 2, 4, 8, 32])
@pytest.mark.parametrize("left", range(21))
def test_where_an_epoch_is_too_short_for_all_steps_none_begins_within_the_last(queue, left):
    batches = Epochs(DataLoader(range(20)))
    batches.queued = queue
    for steps in (20, 21, 35, 44):
        batches.left = left
        first = steps_past_epoch(batches, steps, last=4)
        assert first <= 20
        places = [(number - left) % 20 for number in range(first, first + steps)][-4:]  # in their epoch
        assert places == list(range(places[0], places[0] + 4))
        assert places[0] >= min(1 + queue, 16) or first + steps <= left


@pytest.mark.parametrize("length", [1, 3, 4])
def test_an_epoch_without_room_for_the_last_steps_is_taken_as_it_comes(length):
    assert steps_past_epoch(Epochs(DataLoader(range(length))), 9, last=4) == 0


def test_an_iterator_of_another_kind_has_no_epochs():
    assert steps_past_epoch(iter([]), 5) == 0
