"""Augmentation: of one tensor after the other for a DataLoader, and of a whole epoch at once on the device."""

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


class Cutout:
    """Sets a square at a random place of one image [C, H, W] to 0, the mean (DeVries and Taylor 2017)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        top, left = (int(torch.randint(side - self.size + 1, ())) for side in image.shape[1:])
        image = image.clone()
        image[:, top : top + self.size, left : left + self.size] = 0
        return image


class Crop:
    """One image [C, H, W] shifted by up to `most` px in each direction, what comes in from outside mirrored."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        top, left = (int(torch.randint(2 * self.most + 1, ())) for _ in range(2))
        padded = F.pad(image.unsqueeze(0), (self.most,) * 4, mode="reflect")[0]
        return padded[:, top : top + image.shape[1], left : left + image.shape[2]]


class Flip:
    """One image [C, H, W] mirrored left to right in half of all cases, where `mirrors`."""

    def __init__(self, mirrors: bool) -> None:
        self.mirrors = mirrors

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.flip(2) if self.mirrors and torch.rand(()) < 0.5 else image


def crops(images: torch.Tensor, most: int) -> torch.Tensor:
    """`Crop` of each of [N, C, H, W], all at once; the result is channels_last in memory."""
    count, _, height, width = images.shape
    padded = F.pad(images, (most,) * 4, mode="reflect").permute(0, 2, 3, 1)
    top, left = torch.randint(2 * most + 1, (2, count, 1), device=images.device)
    rows = (top + torch.arange(height, device=images.device)).unsqueeze(2)
    columns = (left + torch.arange(width, device=images.device)).unsqueeze(1)
    return padded[torch.arange(count, device=images.device).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)


def cutouts(images: torch.Tensor, size: int) -> torch.Tensor:
    """`Cutout` of each of [N, C, H, W], all at once."""
    inside = []
    for side in images.shape[2:]:
        begin = torch.randint(side - size + 1, (len(images), 1), device=images.device)
        at = torch.arange(side, device=images.device)
        inside.append((at >= begin) & (at < begin + size))
    return images.masked_fill((inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1), 0)


class DeviceBatches:
    """Batches of a training set that is on the device as a whole, augmented there an epoch at a time.

    It is moved there, enlarged and normalised when it is first asked for a batch, so that a race's clock sees it. A
    last, smaller batch is dropped. flip: mirrored images, where `data.mirrors`. They alternate (Jordan 2024): what was
    mirrored in one epoch is not in the next, so that two epochs show every image both ways. shift, cutout: px; 0 for
    none. order: of the images in the present epoch, or in the last.
    """

    num_workers, prefetch_factor, pin_memory = 0, None, False

    def __init__(
        self, data: DataSet, batch_size: int, device: torch.device, shift: int = 0, cutout: int = 0, flip: bool = True
    ) -> None:
        self.dataset, self.batch_size, self.device = data, batch_size, device
        self.shift, self.cutout, self.flip = shift, cutout, flip and data.mirrors
        self.reset()

    def reset(self) -> None:
        """Forget what was moved to the device and what was drawn, as before the first batch was asked for."""
        self._prepared: tuple[torch.Tensor, torch.Tensor] | None = None
        self.mirrored = self.order = torch.empty(0)

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
        if self.flip:
            images = torch.where(self.mirrored.view(-1, 1, 1, 1), images.flip(3), images)
            self.mirrored = ~self.mirrored
        images = crops(images, self.shift) if self.shift else images
        images = cutouts(images, self.cutout) if self.cutout else images
        self.order = torch.randperm(len(images), device=self.device)
        for batch in self.order.split(self.batch_size)[: len(self)]:
            yield images[batch], labels[batch]


def views(images: torch.Tensor, mirrors: bool) -> list[torch.Tensor]:
    """The same images as a test may see them: shifted by a px, and mirrored where that is allowed (Page 2019)."""
    padded = F.pad(images, (1,) * 4, mode="reflect")
    height, width = images.shape[2:]
    seen = [images, padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
    return [*seen, *(view.flip(3) for view in seen)] if mirrors else seen
