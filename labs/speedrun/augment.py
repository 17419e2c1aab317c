"""Augmentation of a whole epoch at once, on the device; image by image it is torchvision's in programs 00 and 01."""

from collections.abc import Iterator

from common.loaders import Batch
from labs.shared.images import DataSet

import torch
from torch.nn import functional as F


def shift_of(image_size: int) -> int:
    """How many px an image is shifted at most: Page's 4 of 32."""
    return image_size // 8


def cutout_of(image_size: int) -> int:
    """The side, px, of the square that is cut out of an image: Page's 8 of 32."""
    return image_size // 4


def crops(images: torch.Tensor, most: int) -> torch.Tensor:
    """Each of [N, C, H, W] shifted by up to `most` px in each direction, what comes in from outside mirrored.

    The result is channels_last in memory.
    """
    count, _, height, width = images.shape
    padded = F.pad(images, (most,) * 4, mode="reflect").permute(0, 2, 3, 1)
    top, left = torch.randint(2 * most + 1, (2, count, 1), device=images.device)
    rows = (top + torch.arange(height, device=images.device)).unsqueeze(2)
    columns = (left + torch.arange(width, device=images.device)).unsqueeze(1)
    return padded[torch.arange(count, device=images.device).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)


def cutouts(images: torch.Tensor, size: int) -> torch.Tensor:
    """A square at a random place of each of [N, C, H, W] set to 0, the mean (DeVries and Taylor 2017)."""
    inside = []
    for side in images.shape[2:]:
        begin = torch.randint(side - size + 1, (len(images), 1), device=images.device)
        at = torch.arange(side, device=images.device)
        inside.append((at >= begin) & (at < begin + size))
    return images.masked_fill((inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1), 0)


class DeviceBatches:
    """Batches of a training set that is on the device as a whole, augmented there an epoch at a time.

    It is moved there, enlarged and normalised when it is first asked for a batch, so that a race's clock sees it. A
    last, smaller batch is dropped. shift, cutout: px; 0 for none. Where `data.mirrors`, what was mirrored in one epoch
    is not in the next (Jordan 2024), so that two epochs show every image both ways.
    """

    num_workers, prefetch_factor, pin_memory = 0, None, False

    def __init__(self, data: DataSet, batch_size: int, device: torch.device, shift: int = 0, cutout: int = 0) -> None:
        self.dataset, self.batch_size, self.device = data, batch_size, device
        self.shift, self.cutout = shift, cutout
        self.reset()

    def reset(self) -> None:
        """Forget what was moved to the device and what was drawn, as before the first batch was asked for."""
        self._prepared: tuple[torch.Tensor, torch.Tensor] | None = None
        self.mirrored = torch.empty(0)

    def __len__(self) -> int:
        return len(self.dataset.train) // self.batch_size

    def prepared(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(images, labels) on the device, not augmented."""
        if self._prepared is None:
            self._prepared = self.dataset.prepared(self.dataset.train, self.device)
            self.mirrored = torch.rand(len(self._prepared[0]), device=self.device) < 0.5
        return self._prepared

    def __iter__(self) -> Iterator[Batch]:
        images, labels = self.prepared()
        if self.dataset.mirrors:
            images = torch.where(self.mirrored.view(-1, 1, 1, 1), images.flip(3), images)
            self.mirrored = ~self.mirrored
        images = crops(images, self.shift) if self.shift else images
        images = cutouts(images, self.cutout) if self.cutout else images
        for batch in torch.randperm(len(images), device=self.device).split(self.batch_size)[: len(self)]:
            yield images[batch], labels[batch]


def views(images: torch.Tensor, mirrors: bool) -> list[torch.Tensor]:
    """The same images as a test may see them: shifted by a px, and mirrored where that is allowed (Page 2019)."""
    padded = F.pad(images, (1,) * 4, mode="reflect")
    height, width = images.shape[2:]
    seen = [images, padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
    return [*seen, *(view.flip(3) for view in seen)] if mirrors else seen
