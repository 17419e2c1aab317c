"""The order in which all pipelines of this lab read the images: one that shards, read from front to back, can give.

Images are dealt into shards once, at random. In each epoch every reader (a loader's worker) gets its share of the
shards, in random order, and shuffles within a shard; batches are then taken from the readers in turn, as torch's
DataLoader does. So one seed and one number of readers give the same batches whether images lie in files of their own or
in shards. What is left of a reader's images beyond whole batches is left out of the epoch, other images each time.
"""

from collections.abc import Iterator, Sequence

from walkthrough.results.errors import InputError

import numpy as np
import torch
from torch.utils.data import Sampler

PER_SHARD = 1024  # images, at most
FEWEST = 8  # shards, where there are that many images, so that as many readers have one each
DEALT = 2026  # the seed of dealing images into shards, which is done once


def shards_of(count: int) -> list[np.ndarray]:
    """Which images each shard holds: int64 [images] each, as even as can be. count: of all images."""
    shards = min(count, max(FEWEST, -(-count // PER_SHARD)))
    return np.array_split(np.random.default_rng(DEALT).permutation(count), shards)


def of_reader(shards: int, reader: int, readers: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers of the shards that a reader reads in an epoch, in order: int64."""
    return np.random.default_rng((seed, epoch)).permutation(shards)[reader::readers]


def within(images: int, shard: int, seed: int, epoch: int) -> np.ndarray:
    """The order of a shard's images in an epoch: int64 [images]."""
    return np.random.default_rng((seed, epoch, shard)).permutation(images)


def whole_batches(sizes: Sequence[int], batch_size: int, readers: int) -> list[int]:
    """How many whole batches each reader gives in every epoch. sizes: images of each shard, even but for one.

    Raises InputError where none gives any.
    """
    counts = [len(range(reader, len(sizes), readers)) * min(sizes) // batch_size for reader in range(readers)]
    if not any(counts):
        raise InputError(
            f"{sum(sizes)} images are no batch of {batch_size} for any of {readers} readers (--workers): "
            "choose a smaller --batch-size or fewer --workers"
        )
    return counts


class ShardOrder(Sampler[int]):
    """Indices of images, epoch by epoch, whole batches only; for DataLoader(…, batch_size, sampler=…).

    count: images. workers: the loader's, each a reader; one reader where there are none. The next epoch begins each
    time that it is iterated over. Raises InputError where no reader has enough images for a batch.
    """

    def __init__(self, count: int, batch_size: int, workers: int, seed: int) -> None:
        self.shards, self.batch_size, self.seed, self.epoch = shards_of(count), batch_size, seed, 0
        self.counts = whole_batches([len(shard) for shard in self.shards], batch_size, max(1, workers))

    def __len__(self) -> int:
        return sum(self.counts) * self.batch_size

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = [self._of_reader(reader, epoch).split(self.batch_size) for reader in range(len(self.counts))]
        for turn in range(max(self.counts)):
            for reader, count in enumerate(self.counts):
                if turn < count:
                    yield from batches[reader][turn].tolist()

    def _of_reader(self, reader: int, epoch: int) -> torch.Tensor:
        """The images of a reader in an epoch, in order: int64 [N]; a few more than its whole batches take."""
        numbers = of_reader(len(self.shards), reader, len(self.counts), self.seed, epoch)
        own = [self.shards[number][within(len(self.shards[number]), number, self.seed, epoch)] for number in numbers]
        return torch.from_numpy(np.concatenate(own or [np.empty(0, np.int64)]))
