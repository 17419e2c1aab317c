"""Loaders beyond torch's DataLoader (batches copied early, data on the device), and a loader's batches over epochs."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

Batch = Sequence[Any]  # what a loader yields: tensors, for `train_step(*batch)`; the first has one row per sample


class Loader(Protocol):
    """What `run_step` reads of a loader; torch's DataLoader, `Prefetcher` and `DeviceLoader` have it.

    It yields batches of one size (`drop_last=True`). prefetch_factor: batches that each worker loads ahead, or None.
    """

    @property
    def dataset(self) -> Any: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def prefetch_factor(self) -> int | None: ...
    @property
    def pin_memory(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class Prefetcher:
    """A DataLoader whose batches are yielded on the device, each copied while the batch before it is trained on.

    On a GPU the copies are made in a stream of their own, so they overlap the kernels of the stream that trains;
    they overlap only from pinned memory. On a CPU batches are passed on as they are.

    loader: a DataLoader of tensors, with pin_memory=True. device: where batches go.
    """

    def __init__(self, loader: DataLoader, device: torch.device | str) -> None:
        self.loader, self.device = loader, torch.device(device)
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.num_workers, self.prefetch_factor = loader.num_workers, loader.prefetch_factor
        self.pin_memory = loader.pin_memory
        self.copy_stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        if self.copy_stream is None:
            yield from self.loader
            return
        batches = iter(self.loader)
        upcoming = self._copy_next(batches)
        while upcoming is not None:
            train_stream = torch.cuda.current_stream(self.device)
            train_stream.wait_stream(self.copy_stream)  # now, while this batch's copy is the last thing in there
            for tensor in upcoming:
                tensor.record_stream(train_stream)  # else its memory is free for the next copy once Python drops it
            batch, upcoming = upcoming, self._copy_next(batches)
            yield batch

    def _copy_next(self, batches: Iterator[Batch]) -> list[torch.Tensor] | None:
        """Begin to copy the next batch; returns its tensors on the device, None where the epoch is over."""
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self.copy_stream):
            return [tensor.to(self.device, non_blocking=True) for tensor in batch]


class DeviceLoader:
    """Batches of a CIFAR-10 that is on `device` as a whole: images uint8 [batch, 3, 32, 32], labels int64 [batch].

    train_set: from `data.cifar10`; its uint8 images [N, 32, 32, 3] and labels are copied once, which takes
    N * (3 * 32 * 32 + 8) bytes there: 154 MB for 50,000. Each epoch is shuffled by torch.randperm from `seed`; a last,
    smaller batch is dropped. rank, world_size: of the processes that train together, each yields its own share of
    every epoch, all in the same number of batches.
    """

    num_workers, prefetch_factor, pin_memory = 0, None, False

    def __init__(
        self,
        train_set: Any,
        batch_size: int,
        device: torch.device | str,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset, self.batch_size, self.rank, self.world_size = train_set, batch_size, rank, world_size
        images = torch.from_numpy(train_set.data).permute(0, 3, 1, 2).contiguous()
        self.images, self.labels = images.to(device), torch.tensor(train_set.targets, device=device)
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images) // self.world_size // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self.images), device=self.images.device, generator=self.generator)
        for batch in order[self.rank :: self.world_size].split(self.batch_size)[: len(self)]:
            yield self.images[batch], self.labels[batch]


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
