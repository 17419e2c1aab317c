"""Loaders beyond torch's DataLoader: one that copies the next batch early, and one whose data is on the device."""

from collections.abc import Iterator, Sequence
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
