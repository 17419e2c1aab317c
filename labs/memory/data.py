"""The images that this lab trains on: CIFAR-10, or where it is not at hand, for curves, scikit-learn's digits."""

from pathlib import Path

from common.data import CIFAR10_MEAN, CIFAR10_STD, Transform, check_cifar10, cifar10, fetch_cifar10
from labs.shared.images import image_data

from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, ToTensor

STORED_SIZE = 32  # px of CIFAR-10's images, and of the digits as we enlarge them


def augmented(size: int, mirrored: bool = True) -> Compose:
    """As `plain`, but shifted by up to 4 px, and mirrored, at random. mirrored: False for what is then another sign."""
    return Compose([RandomCrop(STORED_SIZE, padding=4), RandomHorizontalFlip(0.5 * mirrored), plain(size)])


def plain(size: int) -> Compose:
    """PIL image of 32 px -> float32 tensor [3, size, size], normalised."""
    resize = [] if size == STORED_SIZE else [Resize((size, size))]
    return Compose([*resize, ToTensor(), Normalize(CIFAR10_MEAN, CIFAR10_STD)])


class Digits(Dataset):
    """scikit-learn's handwritten digits as PIL images of 32 px, split as in all labs; see `labs.shared.images`.

    Items are (image passed through `transform`, int in 0..9).
    """

    source = "digits"

    def __init__(self, transform: Transform, train: bool = True) -> None:
        both = image_data(self.source, Path(), STORED_SIZE, "memory")
        part, size = both.train if train else both.test, (STORED_SIZE, STORED_SIZE)
        greys = [Image.fromarray(grey[0].numpy()) for grey in part.images]
        self.images = [grey.resize(size, Image.Resampling.BILINEAR).convert("RGB") for grey in greys]
        self.targets, self.transform = part.labels.tolist(), transform

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
    digits = Digits(augmented(size, mirrored=False)), Digits(plain(size), train=False)
    print(f"DIGITS: no CIFAR-10 in {root}, so this trains on scikit-learn's digits, enlarged; --download fetches it")
    return digits
