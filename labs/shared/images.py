"""Data sets of images, as tensors, whole in memory: scikit-learn's digits, CIFAR-10, Imagenette by folder.

Digits are what there is without a network. They are the UCI test set, and it is not known who wrote which, so a part of
them is held out at random, by class, from one fixed seed: the same images test every program. Writers are in both
parts, so this is easier than telling the digits of strangers.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from common.data import cifar10, fetch_cifar10, holds_cifar10
from labs.shared.extras import imported
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, printable

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import get_dimensions

NAMES = ("digits", "cifar10", "imagenette")
SPLIT_SEED = 2026
TEST_SHARE = 3  # one digit in so many tests: 599 of 1,797, so 98 % of them have a binomial standard error of 0.6 points
FEW = 2000  # images of a folder, which are read without worker processes
ENOUGH = 50_000  # images for mean and deviation, as floats in memory
FOLDS = 5  # of the training part, for validation
FOLDER_SIZE = 64  # px, at which images of a folder are kept unless the caller says
Box = tuple[int, int, int, int]  # left, top, right, bottom
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's images, for values in 0..1
MIRRORED = ("cifar10", "imagenette")  # a mirrored digit is another sign


@dataclass(frozen=True)
class Images:
    """images: uint8 [N, C, H, W] as they are stored. labels: int64 [N]."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, which: torch.Tensor) -> "Images":
        """Those of a mask, or of indices."""
        return Images(self.images[which], self.labels[which])


@dataclass(frozen=True)
class DataSet:
    """source: one of `NAMES`. train, test: `Images`. image_size: px that they are enlarged to. classes: how many.

    mean, std: [C] each, of the training images, for values in 0..1. mirrors: whether a mirrored image is of its class.
    """

    source: str
    train: Images
    test: Images
    image_size: int
    classes: int
    mean: torch.Tensor
    std: torch.Tensor

    def __len__(self) -> int:
        return len(self.train)

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def mirrors(self) -> bool:
        return self.source in MIRRORED

    def prepared(self, part: Images, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(float32 [N, C, image_size, image_size], normalised; labels), on the device: the whole part at once."""
        images = part.images.to(device).float()
        size = (self.image_size, self.image_size)
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bilinear", align_corners=False)
        mean, std = (values.to(device).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (images / 255 - mean) / std, part.labels.to(device)


def source_in(root: Path, name: str | None, download: bool) -> str:
    """Which data set is meant: the one that is named, CIFAR-10 where `root` has it, else digits."""
    return name or ("cifar10" if download or holds_cifar10(root) else "digits")


def image_data(
    name: str, root: Path, image_size: int, lab: str, download: bool = False, fold: int | None = None,
    folder_size: int = FOLDER_SIZE,
) -> DataSet:  # fmt: skip
    """The `DataSet` of that name, one of `NAMES`, from the folder `root`.

    image_size: px that images are enlarged to. lab: what needs them. download: fetch CIFAR-10 first. fold: leave the
    test set out, and test on that fifth of the training part: for choosing settings. folder_size: px at which images of
    a folder are kept in memory.

    Raises InputError for data that are missing or broken, and for a download that fails.
    """
    if name == "digits":
        train, test = _digits(lab)
    elif name == "imagenette":
        train, test = _folder(root, download, folder_size)
    else:
        train, test = _cifar10(root, download)
    if fold is not None:
        held_out = torch.arange(len(train)) % FOLDS == fold
        train, test = train.chosen(~held_out), train.chosen(held_out)
    values = train.images[:: max(1, len(train) // ENOUGH)].float() / 255
    std, mean = torch.std_mean(values, dim=(0, 2, 3))
    classes = int(torch.cat([train.labels, test.labels]).max()) + 1
    return DataSet(name, train, test, image_size, classes, mean, std)


def stored_digits(lab: str) -> tuple[np.ndarray, np.ndarray]:
    """(images uint8 [1797, 8, 8] with values 0..255, labels int64 [1797] in 0..9), in the order of the package.

    From the UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), whose test set they are; who
    wrote which is not known. lab: that needs them. Raises InputError where scikit-learn is not installed.
    """
    datasets = imported("sklearn.datasets", lab, "training without CIFAR-10, on real images of digits,")
    images, labels = datasets.load_digits(return_X_y=True)
    return (np.asarray(images).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), np.asarray(labels)


def _digits(lab: str) -> tuple[Images, Images]:
    images, labels = (torch.from_numpy(array) for array in stored_digits(lab))
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    testing = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = (labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        testing[own[: round(len(own) / TEST_SHARE)]] = True
    both = Images(images.unsqueeze(1), labels)
    shuffled = both.chosen(~testing)
    order = torch.randperm(len(shuffled), generator=generator)
    return shuffled.chosen(order), both.chosen(testing)


def _cifar10(root: Path, download: bool) -> tuple[Images, Images]:
    if download:
        fetch_cifar10(root)
    if not holds_cifar10(root):
        raise InputError(f"no CIFAR-10 in {root}: --download fetches it; digits do without")
    return _of_arrays(cifar10(root)), _of_arrays(cifar10(root, train=False))


def _of_arrays(data: Any) -> Images:
    images = torch.from_numpy(np.ascontiguousarray(data.data)).permute(0, 3, 1, 2).contiguous()
    return Images(images, torch.tensor(data.targets))


def _folder(root: Path, download: bool, size: int) -> tuple[Images, Images]:
    """Imagenette, or any folder of train/CLASS/*.jpg and val/CLASS/*.jpg: each image's middle square, made small."""
    if download:
        raise InputError("--download does not fetch Imagenette: unpack it and name its folder with --data")
    return _of_folder(root, "train", size), _of_folder(root, "val", size)


class _Photographs(ImageFolder):
    """Those of DIR/train or DIR/val; labels are the classes of DIR/train, of which val/ may lack some."""

    def __init__(self, root: Path, part: str, size: int) -> None:
        self.train = root / "train"
        super().__init__(str(root / part), partial(_middle, size=size), allow_empty=part != "train")
        if not self.samples:
            raise ValueError("it has no images of the classes of train/")

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        names, labels = super().find_classes(str(self.train))
        if unknown := sorted({*super().find_classes(directory)[0]} - {*names}):
            raise InputError(
                f"{directory} has a class {unknown[0]}, which {self.train} lacks: remove it, or add it there"
            )
        return names, labels


def _of_folder(root: Path, part: str, size: int) -> Images:
    folder = root / part
    try:
        items = _Photographs(root, part, size)
        images = torch.empty((len(items), 3, size, size), dtype=torch.uint8)
        for index, image in enumerate(DataLoader(items, batch_size=None, num_workers=_workers(len(items)))):
            images[index] = image[0]
    except (OSError, SyntaxError, ValueError) as error:  # no folder, no class, no image, a broken image
        raise InputError(
            f"cannot read images from {folder} ({printable(error, 100)}): it needs a folder for each class; name the "
            "folder that holds train/ and val/ with --data"
        ) from error
    return Images(images, torch.tensor(items.targets))


def middle_square(image: Image.Image | torch.Tensor) -> Box:
    """The largest square in the middle of an image."""
    _, height, width = get_dimensions(cast(Any, image))
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _middle(image: Image.Image, size: int) -> torch.Tensor:
    """uint8 [3, size, size]: the middle square."""
    square = image.resize((size, size), Image.Resampling.BILINEAR, middle_square(image))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _workers(images: int) -> int:
    return usable_cores() if images > FEW else 0
