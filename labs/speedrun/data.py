"""The data that programs race on, image by image where a program works so; see `labs.shared.images`."""

from collections.abc import Callable
from typing import Any

from labs.shared.images import DataSet, image_data

import torch
from PIL import Image
from torch.utils.data import Dataset


def data_set(args: Any) -> DataSet:
    """The `DataSet` of a program's `race.RaceOptions`. Raises InputError, see `image_data`."""
    return image_data(args.dataset, args.data, args.image_size, "speedrun", args.download, args.fold)


class OneByOne(Dataset):
    """Images of a part as PIL images, each passed through `transform` when it is asked for: (result, int label)."""

    def __init__(self, data: DataSet, transform: Callable[[Any], Any]) -> None:
        self.source, self.transform = data.source, transform
        self.arrays, self.targets = data.train.images.permute(0, 2, 3, 1).numpy(), data.train.labels.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        array = self.arrays[index]
        return self.transform(Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)), self.targets[index]


class Prepared(Dataset):
    """Images of a part that were `prepared` together, each passed through `transform` when it is asked for."""

    def __init__(self, data: DataSet, transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.source, self.transform = data.source, transform
        self.images, self.targets = data.prepared(data.train, torch.device("cpu"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.images[index]), self.targets[index]
