"""The images that this lab trains on: CIFAR-10, or where it is not at hand, for curves, scikit-learn's digits."""

from pathlib import Path

from common.data import CIFAR10_MEAN, CIFAR10_STD, Transform, check_cifar10, cifar10, fetch_cifar10
from labs.shared.digits import stored_digits

import numpy as np
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, ToTensor

LAB = "memory"
STORED_SIZE = 32  # px of CIFAR-10's images, and of the digits as we enlarge them
TEST_SHARE = 5  # one digit in so many is for testing


def augmented(size: int) -> Compose:
    """PIL image of 32 px -> float32 tensor [3, size, size], randomly shifted by up to 4 px and mirrored, normalised."""
    return Compose([RandomCrop(STORED_SIZE, padding=4), RandomHorizontalFlip(), plain(size)])


def plain(size: int) -> Compose:
    """PIL image of 32 px -> float32 tensor [3, size, size], normalised."""
    resize = [] if size == STORED_SIZE else [Resize((size, size))]
    return Compose([*resize, ToTensor(), Normalize(CIFAR10_MEAN, CIFAR10_STD)])


def shifted(size: int) -> Compose:
    """As `augmented`, but never mirrored: a mirrored digit is another sign."""
    return Compose([RandomCrop(STORED_SIZE, padding=4), plain(size)])


class Digits(Dataset):
    """scikit-learn's handwritten digits, 8x8 greys, enlarged to PIL images of 32 px: real, small, in the package.

    1,797 items (image passed through `transform`, int in 0..9), every fifth of them for testing; see `stored_digits`.
    """

    source = "digits"

    def __init__(self, transform: Transform, train: bool = True) -> None:
        images, labels = stored_digits(LAB)
        testing = np.arange(len(labels)) % TEST_SHARE == 0
        chosen = ~testing if train else testing
        size = (STORED_SIZE, STORED_SIZE)
        self.images = [
            Image.fromarray(grey).resize(size, Image.Resampling.BILINEAR).convert("RGB") for grey in images[chosen]
        ]
        self.targets, self.transform = labels[chosen].tolist(), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple:
        return self.transform(self.images[index]), self.targets[index]


def real_data(root: Path, size: int, download: bool = False) -> tuple[Dataset, Dataset]:
    """(training set, test set) of real images: CIFAR-10 where `root` holds it or it is fetched, else `Digits`.

    Raises InputError for a CIFAR-10 that is broken, a download that fails, and where scikit-learn is not installed.
    """
    if download:
        fetch_cifar10(root)
    if check_cifar10(root):
        return cifar10(root, augmented(size)), cifar10(root, plain(size), train=False)
    digits = Digits(shifted(size)), Digits(plain(size), train=False)
    print(f"DIGITS: no CIFAR-10 in {root}, so this trains on scikit-learn's digits, enlarged; --download fetches it")
    return digits
