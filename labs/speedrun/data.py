"""The data that programs race on and their augmentation; each program's epochs and learning rate on each data set.

Those of digits were chosen on the validation part alone: with `--fold`, which holds a fifth of the training part out,
so no test image was looked at. The naive learning rate is the exception: it is what people write down first, and the
study says what a better one does. Programs 00 to 04 had no weight decay then, and 07 had label smoothing. Those of the
other data sets are guesses: no race was run on them here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from common.loaders import Batch
from labs.shared.images import DataSet, image_data

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset


def data_set(args: Any) -> DataSet:
    """The `DataSet` of a program's `race.RaceOptions`. Raises InputError, see `image_data`."""
    return image_data(args.dataset, args.data, args.image_size, "speedrun", args.download, args.fold)


class OneByOne(Dataset):
    """The training images, each passed through `transform` when it is asked for: (result, label).

    As they are stored, uint8 [C, H, W]; or `prepared` together: enlarged and normalised, float32.
    """

    def __init__(
        self, data: DataSet, transform: Callable[[torch.Tensor], torch.Tensor], prepared: bool = False
    ) -> None:
        self.source, self.transform = data.source, transform
        stored = data.train.images, data.train.labels
        self.images, self.labels = data.prepared(data.train, torch.device("cpu")) if prepared else stored

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, torch.Tensor]:
        return self.transform(self.images[index]), self.labels[index]


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
    last, smaller batch is dropped. shift, cutout: px, an eighth and a quarter of an image: Page's 4 and 8 of 32. Where
    `data.mirrors`, what was mirrored in one epoch is not in the next (Jordan 2024), so that two epochs show every image
    both ways.
    """

    num_workers, prefetch_factor, pin_memory = 0, None, False

    def __init__(self, data: DataSet, batch_size: int, device: torch.device) -> None:
        self.dataset, self.batch_size, self.device = data, batch_size, device
        self.shift, self.cutout = data.image_size // 8, data.image_size // 4
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
        images = cutouts(crops(images, self.shift), self.cutout)
        for batch in torch.randperm(len(images), device=self.device).split(self.batch_size)[: len(self)]:
            yield images[batch], labels[batch]


def views(images: torch.Tensor, mirrors: bool) -> list[torch.Tensor]:
    """The same images as a test may see them: shifted by a px, and mirrored where that is allowed (Page 2019)."""
    padded = F.pad(images, (1,) * 4, mode="reflect")
    height, width = images.shape[2:]
    seen = [images, padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
    return [*seen, *(view.flip(3) for view in seen)] if mirrors else seen


@dataclass(frozen=True)
class Plan:
    """epochs: after which a race ends. lr: the learning rate, its highest where there is a schedule."""

    epochs: int
    lr: float


@dataclass(frozen=True)
class Setting:
    """A data set's race. target: the accuracy (0..1) to reach. image_size: px. model, batch_size: where none are given.

    plans: {program: `Plan`}; a program that is not named has that of the one before it.
    """

    target: float
    image_size: int
    model: str
    batch_size: int
    plans: dict[str, Plan]

    def plan(self, program: str) -> Plan:
        """The `Plan` of a program."""
        return self.plans[max(name for name in self.plans if name <= program)]


DIGITS = {
    "00_naive": Plan(40, 0.01),
    "03_resnet9": Plan(20, 0.32),  # its scores are scaled by 1/8, and so are its gradients
    "04_one_cycle": Plan(8, 2.0),
    "05_momentum": Plan(6, 0.4),
    "07_lookahead": Plan(5, 0.4),
}
PHOTOGRAPHS = {"00_naive": Plan(60, 0.01), "04_one_cycle": Plan(24, 0.4)}
SETTINGS = {
    "digits": Setting(0.98, 16, "w16", 64, DIGITS),
    "cifar10": Setting(0.94, 32, "w64", 512, PHOTOGRAPHS),
    "imagenette": Setting(0.85, 64, "w64", 128, PHOTOGRAPHS),
}
