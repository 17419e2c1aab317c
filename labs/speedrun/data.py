"""The data that programs race on, and how each program races on each data set: its epochs and its learning rate.

Those of digits were chosen on the validation part alone: with `--fold`, which holds a fifth of the training part out,
so no test image was looked at. The naive learning rate is the exception: it is what people write down first, and the
study says what a better one does. Programs 00 to 04 had no weight decay then. Those of the other data sets are guesses:
no race was run on them here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labs.shared.images import DataSet, image_data

import torch
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


@dataclass(frozen=True)
class Plan:
    """epochs: after which a race ends. lr: the learning rate, its highest where there is a schedule."""

    epochs: int
    lr: float


@dataclass(frozen=True)
class Setting:
    """A data set's race. target: the accuracy (0..1) to reach. image_size: px. model, batch_size: where none are given.

    plans: {program, or "muon": `Plan`}; a program that is not named has that of the one before it.
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
    "08_lookahead": Plan(5, 0.4),
    "muon": Plan(5, 0.2),
}
PHOTOGRAPHS = {"00_naive": Plan(60, 0.01), "04_one_cycle": Plan(24, 0.4), "muon": Plan(10, 0.24)}
SETTINGS = {
    "digits": Setting(0.98, 16, "w16", 64, DIGITS),
    "cifar10": Setting(0.94, 32, "w64", 512, PHOTOGRAPHS),
    "imagenette": Setting(0.85, 64, "w64", 128, PHOTOGRAPHS),
}
