"""From samples to a batch in one go, and how fast a loader yields batches."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common.loaders import Batch, Loader
from labs.scale.jpegs import normalised

import torch


def normalised_batch(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[(uint8 [3, H, W], label)] -> (float32 [N, 3, H, W] normalised, int64 [N]): one operation for all images."""
    images, labels = zip(*samples, strict=True)
    return normalised(torch.stack(images)), torch.tensor(labels)


def delivered(loader: Loader, seconds: float, finish: Callable[..., object] | None = None) -> float:
    """Images/s that a loader yields with nobody training on them, over so many seconds at least.

    finish(*batch): what is still to be done to a batch, such as decoding it on a GPU.
    Before that it runs on for as many batches as its workers had loaded ahead, and one more. Epochs follow each other.
    """
    batches, images = _epochs(loader), 0
    finish = finish or _as_it_is
    for _ in range(1 + loader.num_workers * (loader.prefetch_factor or 0)):
        finish(*next(batches))
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not images:
        batch = next(batches)
        finish(*batch)
        images += len(batch[0])
    return images / passed


def _as_it_is(*_: torch.Tensor) -> None:
    pass


def per_cpu_second(loader: Loader, seconds: float) -> float:
    """Images that a loader without workers makes in a second of one core, over so many seconds at least.

    Counted in CPU time of all threads, so what else the machine does hardly changes it.
    """
    batches, images = _epochs(loader), 0
    next(batches)
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds or not images:
        images += len(next(batches)[0])
    return images / (time.process_time() - cpu)


def _epochs(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def bytes_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files in a folder: their lengths, not the blocks that they fill."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
