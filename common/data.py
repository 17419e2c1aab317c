"""The one data set that every step trains on: CIFAR-10, or a deterministic stand-in where it is not at hand."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.datasets import CIFAR10
from torchvision.transforms import Compose, Normalize, PILToTensor, Resize, ToTensor

from walkthrough.results import capture
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

Transform = Callable[[Any], Any]  # of a PIL image

# Per-channel mean and standard deviation of CIFAR-10's 50,000 training images, for values in 0..1.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def resized_float(size: int) -> Compose:
    """PIL image -> float32 tensor [3, size, size], normalised: all of it on the CPU, image by image."""
    return Compose([Resize((size, size)), ToTensor(), Normalize(CIFAR10_MEAN, CIFAR10_STD)])


def resized_uint8(size: int) -> Compose:
    """PIL image -> uint8 tensor [3, size, size], values 0..255: converting and normalising are left to the device."""
    return Compose([Resize((size, size)), PILToTensor()])


def stored_uint8() -> PILToTensor:
    """PIL image -> uint8 tensor [3, 32, 32], as it is stored: resizing is left to the device too."""
    return PILToTensor()


def cifar10(
    root: str | Path, transform: Transform | None = None, train: bool = True, download: bool = False
) -> "Cifar10 | StandIn":
    """CIFAR-10 from `root` through torchvision; the stand-in, with a banner, where `root` holds none.

    Items are (image, label): a 32x32 RGB PIL image passed through `transform`, and an int in 0..9; 50,000 of them
    with `train`, 10,000 without. The attribute `source` says which of the two it is: "cifar10" or "stand-in".

    Raises InputError for a CIFAR-10 that is partial, corrupt or unreadable, and for a download that fails.
    """
    if download:
        fetch_cifar10(root)
    if not capture.blank_data() and holds_cifar10(root):
        return _open(root, transform, train)
    print(
        f"STAND-IN DATA: no CIFAR-10 in {root}, so this run uses made-up images of the same shape, type and number. "
        "Speeds compare; accuracy does not. The real one: --download, or --data DIR with cifar-10-batches-py in it."
    )
    return StandIn(transform, train)


def holds_cifar10(root: str | Path) -> bool:
    """True where `root` has a folder of CIFAR-10, whole or not. Raises InputError where it cannot look into `root`."""
    if os.path.isfile(root):
        raise InputError(f"--data {root} is a file: name the folder that holds {CIFAR10.base_folder}")
    if Path(root).name == CIFAR10.base_folder:
        raise InputError(f"--data {root} is the data set's own folder: name the folder that it is in")
    try:
        return CIFAR10.base_folder in os.listdir(root)
    except FileNotFoundError as error:
        if Path(root) == ROOT / "data":  # the default: nobody asked for CIFAR-10
            return False
        raise InputError(f"--data {root} does not exist: leave it out to use the stand-in") from error
    except OSError as error:
        raise InputError(f"cannot look into --data {root}: {error.strerror or error}") from error


def check_cifar10(root: str | Path) -> bool:
    """True where `root` holds a whole CIFAR-10, False where it holds none. Raises InputError for a broken one."""
    return holds_cifar10(root) and bool(_open(root))


def fetch_cifar10(root: str | Path) -> None:
    """Download CIFAR-10 into `root` unless a whole one is there. Raises InputError where that fails."""
    if os.path.exists(root) and holds_cifar10(root):
        try:
            _open(root)
            return
        except InputError as error:
            print(f"{error}; fetching it now")
    _fetch(Path(root))


def _open(root: str | Path, transform: Transform | None = None, train: bool = True) -> "Cifar10":
    folder = Path(root) / CIFAR10.base_folder
    try:
        os.listdir(folder)  # torchvision takes a folder without permission for one without files
        return Cifar10(root, train=train, transform=transform)
    except OSError as error:
        raise InputError(f"cannot read CIFAR-10 in {folder}: {error.strerror or error}") from error
    except Exception as error:  # torchvision compares check sums first (RuntimeError); a pickle can fail in any way
        names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list] + [CIFAR10.meta["filename"]]
        missing = [name for name in names if not os.path.isfile(folder / name)]
        what = f"partial ({', '.join(missing)} missing)" if missing else "corrupt (check sums differ)"
        raise InputError(
            f"CIFAR-10 in {folder} is {what}: run with --download to fetch it again, or delete it to use the stand-in"
        ) from error


def _fetch(root: Path) -> None:
    """Download into a staging folder, check, then rename, so that a broken download never looks like a data set."""
    final = root / CIFAR10.base_folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as staging:
            archive = root / CIFAR10.filename
            if archive.exists():  # brought by hand to a machine without network
                shutil.copy(archive, staging)
            CIFAR10(staging, download=True)
            if final.exists():
                final.rename(Path(staging) / "broken")
            (Path(staging) / CIFAR10.base_folder).rename(final)
    except (OSError, RuntimeError) as error:  # urllib's errors are OSErrors; torchvision adds RuntimeError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InputError(
            f"CIFAR-10 could not be downloaded into {root} ({reason}): run without --download for the stand-in, "
            f"or bring {CIFAR10.filename} there from a machine with network and run with --download again"
        ) from error


class Cifar10(CIFAR10):
    """torchvision's CIFAR-10, which names its source as the stand-in does."""

    source = "cifar10"


class StandIn(CIFAR10):
    """Made-up images that cost what CIFAR-10's cost and that a model can really learn. Nothing is read from disk.

    A subclass, so that fetching an item is torchvision's own code: a row of `data` (uint8, [N, 32, 32, 3], laid out
    channels first in memory as CIFAR-10's) becomes a PIL image and passes through `transform`. Each class is a
    pattern of stripes, of its own direction and width, of which an image shows a random phase, brightness and tint
    under much noise. The same images in every run.
    """

    source = "stand-in"

    def __init__(self, transform: Transform | None = None, train: bool = True) -> None:
        # Not CIFAR10.__init__, which reads files: only what its __getitem__, __len__ and __repr__ need.
        self.root, self.train, self.transform, self.target_transform = None, train, transform, None
        self.classes = [f"stripes {kind}" for kind in range(10)]
        count = 50_000 if train else 10_000
        generator = np.random.default_rng(10 if train else 11)
        labels = generator.permutation(count) % 10
        blank = capture.blank_data()
        self.data = np.zeros((count, 32, 32, 3), np.uint8) if blank else _striped_images(labels, generator)
        self.targets = labels.tolist()

    def extra_repr(self) -> str:
        return f"Stand-in for CIFAR-10, {'train' if self.train else 'test'} split"


def _striped_images(labels: np.ndarray, generator: np.random.Generator, chunk: int = 2_000) -> np.ndarray:
    """uint8 images [N, 32, 32, 3], one for each of the int labels [N] in 0..9."""
    phases = 32
    y, x = np.mgrid[0:32, 0:32]
    patterns = np.empty((10, phases, 1, 32, 32), np.int16)
    for kind in range(10):
        angle, width = np.pi * (kind % 5) / 5, (5.0, 9.0)[kind // 5]
        along = (x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / width
        for phase in range(phases):
            patterns[kind, phase, 0] = 28 * np.sin(along + 2 * np.pi * phase / phases)
    # One pool of noise, read from a random place for each image: far cheaper than fresh noise.
    values_per_image = 3 * 32 * 32
    pool = generator.normal(0, 32, 64 * values_per_image).astype(np.int16)
    noise = np.lib.stride_tricks.sliding_window_view(pool, values_per_image)

    images = np.empty((len(labels), 3, 32, 32), np.uint8)
    for start in range(0, len(labels), chunk):
        kinds = labels[start : start + chunk]
        values = noise[generator.integers(0, len(noise), len(kinds))].reshape(-1, 3, 32, 32)
        values += patterns[kinds, generator.integers(0, phases, len(kinds))]
        values += generator.integers(88, 168, (len(kinds), 3, 1, 1), dtype=np.int16)  # brightness and tint
        images[start : start + len(kinds)] = np.clip(values, 0, 255, out=values)
    return images.transpose(0, 2, 3, 1)
