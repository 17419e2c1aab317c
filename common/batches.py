"""A loader's batches, epoch after epoch: where epochs begin, and how far the workers are ahead."""

from collections.abc import Iterator
from itertools import chain

from common.loaders import Batch, Loader


class Epochs:
    """The batches of a loader, epoch after epoch, without end.

    left: batches of the present epoch that are still to come. queued: batches that the loader's workers load ahead.
    Where an epoch begins, the workers begin anew with an empty queue: a step that waits for that is not like others.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self.left = loader, 0
        self.queued = loader.num_workers * (loader.prefetch_factor or 0)
        self._batches: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            self._batches, self.left = iter(self.loader), len(self.loader)
            batch = next(self._batches)
        self.left -= 1
        return batch

    def peek(self) -> Batch:
        """The next batch, which is still to come."""
        batch = next(self)
        self._batches, self.left = chain([batch], self._batches), self.left + 1
        return batch


def queued(batches: Iterator[Batch]) -> int:
    """Batches that a loader's workers have loaded ahead once they had the time to."""
    return batches.queued if isinstance(batches, Epochs) else 0


def steps_past_epoch(batches: Iterator[Batch], steps: int, last: int = 0) -> int:
    """How many steps to train first, so that no epoch begins within the `steps` after them; 0 where none would.

    That is until an epoch has begun and the workers' queue was used up once. Where an epoch is too short for it, none
    begins within the `last` of these steps at least, and as much of the queue as can be is used up before them; 0 where
    an epoch is too short for that, too.
    """
    if not isinstance(batches, Epochs) or batches.left >= steps:
        return 0
    epoch, begun = len(batches.loader), 1 + batches.queued
    if begun + steps <= epoch:
        return batches.left + begun
    if not 0 < last < epoch:
        return 0
    begun = min(begun, epoch - last)
    place = (steps - last - batches.left) % epoch  # of the first of the last steps in its epoch, if none are trained
    if place < begun:
        return begun - place
    return 0 if place + last <= epoch else epoch - place + begun
