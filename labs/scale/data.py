"""The data: a folder of JPEG files, train/CLASS/*.jpg and val/CLASS/*.jpg, as ImageNet's is; or one that is drawn.

Also one of Parquet files, as the Hugging Face hub stores ImageNet, of which `preprocess` makes images of one size.
The one place where JPEGs are decoded, cropped and resized on the CPU, so that all pipelines agree.
"""

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from labs.scale import drawing
from labs.shared.images import MEAN, STD, Box, middle_square
from walkthrough.results import result
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, printable

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchvision.datasets import DatasetFolder
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

CROP_AREA, CROP_RATIO = (0.35, 1.0), (3 / 4, 4 / 3)  # of a random crop in training: of the image's; width over height
QUALITY = 90  # of JPEGs that are made small
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what PIL raises for a broken file
IMAGES, CLASSES, VAL_SHARE = 2000, 10, 0.2  # of a folder that is drawn: validation images, as a share of the others
DRAWN, INDEX = "drawn.json", "index.json"  # in a folder that was drawn, and in one that `preprocess` made
AT_A_TIME = 16  # files that a process is given


class Corrupt(InputError):
    """A file that is no JPEG. A loader's worker passes it on inside of its traceback, of which this keeps the line."""

    def __init__(self, text: str) -> None:
        super().__init__(text.strip().rpartition("Corrupt: ")[2])


class Jpegs(DatasetFolder):
    """The JPEGs of DIR/train or DIR/val, sorted by class and name: items (transform(path), label).

    classes: the folders of DIR/train, which are the labels of both parts; the first `most` of them, all by default.
    source: what results call the data. Raises InputError for a folder without images, and when it reads a file that is
    none.
    """

    def __init__(self, data: Path, part: str, transform: Callable[[str], Any], most: int | None = None) -> None:
        self.data, self.most = data, most
        try:
            # The "image" that it loads is the path.
            super().__init__(str(data / part), str, (".jpg", ".jpeg"), transform, allow_empty=True)
        except OSError as error:
            reason = printable(error.strerror or error, 100)
            raise InputError(f"cannot read {data / part} ({reason}): it needs a folder for each class") from error
        if not self.samples:
            raise InputError(f"{data / part} has no .jpg files in folders named as the classes of {data / 'train'}")
        self.source = source_of(data)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """Those of train/, also for val/."""
        names = class_names(self.data)[: self.most]
        return names, {name: label for label, name in enumerate(names)}

    def __getitem__(self, index: int) -> tuple[Any, int]:
        try:
            return super().__getitem__(index)
        except UNREADABLE as error:
            raise Corrupt(
                f"{self.samples[index][0]} cannot be decoded ({printable(error, 80)}): remove it, or train from what "
                "preprocess.py makes, which leaves such files out"
            ) from error


def class_names(data: Path) -> list[str]:
    """The folders of DIR/train, sorted; hidden ones, as editors leave them, are no classes."""
    entries = os.scandir(data / "train")
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def source_of(data: Path) -> str:
    """What results call the data of a folder."""
    if (data / INDEX).exists():
        return result.read_json(data / INDEX)["source"]
    return "drawn JPEGs" if (data / DRAWN).exists() else data.resolve().name


class Cached(Dataset):
    """Decoded images of DIR/train or DIR/val, as `preprocess` stores them: items (uint8 [3, size, size], label).

    images: uint8 [N, 3, size, size], a file that is mapped into memory: all processes of a machine share one copy.
    """

    def __init__(self, data: Path, part: str) -> None:
        self.path, index = data / f"{part}.npy", result.read_json(data / INDEX)
        self.labels = np.load(data / f"{part}-labels.npy").tolist()
        self.classes, self.source = index["classes"], index["source"]

    @cached_property
    def images(self) -> np.ndarray:
        return np.load(self.path, mmap_mode="c")  # copy on write: torch warns about arrays that cannot be written

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "images"}  # a worker maps it itself

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[index]), self.labels[index]


# From files to tensors


def random_crop(image: Image.Image | torch.Tensor) -> Box:
    """A part of an image for training, by torch's random numbers: of `CROP_AREA` and `CROP_RATIO`."""
    top, left, height, width = RandomResizedCrop.get_params(cast(Any, image), list(CROP_AREA), list(CROP_RATIO))
    return left, top, left + width, top + height


def pixels(
    file: str | Path | io.BytesIO, size: int | None = None, part: Callable[[Any], Box] = middle_square
) -> np.ndarray:
    """A part of a JPEG, resized: uint8 [size, size, 3]. Bilinear, over all pixels that an output pixel covers.

    size: None decodes and does nothing else. Raises one of `UNREADABLE`.
    """
    with Image.open(file) as image:
        rgb = image.convert("RGB")
    if size and (box := part(rgb)) != (0, 0, size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR, box)
    return np.array(rgb)


def as_uint8(size: int | None = None) -> Callable[[Any], torch.Tensor]:
    """JPEG file -> uint8 [3, size, size]: its middle square, resized; without a size, the image as it is stored."""
    return partial(_tensor, size=size)


def as_float(size: int) -> Callable[[str], torch.Tensor]:
    """JPEG file -> float32 [3, size, size]: its middle square, resized and normalised, all of it image by image."""
    return Compose([as_uint8(size), normalised])


def as_random_crop(size: int) -> Callable[[str], torch.Tensor]:
    """JPEG file -> uint8 [3, size, size]: a random part of the photograph, mirrored in half of the cases."""
    return Compose([partial(_tensor, size=size, part=random_crop), RandomHorizontalFlip()])


def _tensor(file: Any, size: int | None, part: Callable[[Any], Box] = middle_square) -> torch.Tensor:
    return torch.from_numpy(pixels(file, size, part)).permute(2, 0, 1)


def small_jpeg(file: str | Path | io.BytesIO, size: int) -> bytes:
    """A JPEG file of another's middle square, size x size px. Raises one of `UNREADABLE`.

    Colours are kept at full resolution (4:4:4): of 64 px, a half would be few.
    """
    small = io.BytesIO()
    Image.fromarray(pixels(file, size)).save(small, "JPEG", quality=QUALITY, subsampling=0)
    return small.getvalue()


# Batches


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Values 0..255 [..., 3, H, W] -> float32 of the same shape and device: ImageNet's mean and deviation 0 and 1."""
    mean, std = (255 * torch.tensor(values, device=images.device).view(3, 1, 1) for values in (MEAN, STD))
    return images.float().sub(mean).div_(std)


def normalised_batch(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[(uint8 [3, H, W], label)] -> (float32 [N, 3, H, W] normalised, int64 [N]): one operation for all images."""
    images, labels = zip(*samples, strict=True)
    return normalised(torch.stack(images)), torch.tensor(labels)


def random_crops(images: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [N, 3, H, W] -> float32 [N, 3, size, size], 0..255, on the same device: of each image a random square.

    Squares are of `CROP_AREA`, mirrored in half of the cases: all images at once, for prepared images in training.
    """
    count, device = len(images), images.device
    side = torch.empty(count, device=device).uniform_(*CROP_AREA).sqrt_()
    mirrored = 2 * torch.randint(0, 2, (count,), device=device) - 1
    place = (1 - side)[:, None] * (2 * torch.rand(count, 2, device=device) - 1)
    maps = torch.zeros(count, 2, 3, device=device)
    maps[:, 0, 0], maps[:, 1, 1], maps[:, :, 2] = side * mirrored, side, place
    grid = F.affine_grid(maps, [count, 3, size, size], align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)


# A folder that is drawn


def parquet_files(data: Path) -> dict[str, list[Path]]:
    """{"train", "val": train-*.parquet, validation-*.parquet} of a folder, or of data/ in it; {} where it has none.

    Raises InputError where it has one part only.
    """
    names = {"train": "train-*.parquet", "val": "validation-*.parquet"}
    files = {part: sorted([*data.glob(name), *data.glob(f"data/{name}")]) for part, name in names.items()}
    if not files["train"]:
        return {}
    if not files["val"]:
        raise InputError(f"{data} has {names['train']} and no {names['val']}")
    return files


def image_folder(data: Path) -> Path:
    """The folder of JPEGs or Parquet files that --data means: it, where it holds them; one that is drawn, where it is
    the default. Raises InputError for another folder without them.
    """
    if (data / "train").is_dir() or parquet_files(data):
        return data
    if data.resolve() != ROOT / "data":
        raise InputError(
            f"--data {data} has no folder train/ with a folder of JPEGs for each class: name one that has, or leave it "
            "out to use pictures that are drawn"
        )
    return drawn_folder(data / f"drawn-{IMAGES}")


def drawn_folder(out: Path, images: int = IMAGES, classes: int = CLASSES) -> Path:
    """Draw a folder of JPEGs, but for files that are there: `images` in train/, a fifth of that in val/; returns it.

    Raises InputError where it cannot be written.
    """
    counts = {"train": images, "val": max(classes, round(images * VAL_SHARE))}
    jobs = [
        (out / part / f"class_{number % classes:03d}" / f"{number:06d}.jpg", number % classes, (0, which, number))
        for which, (part, count) in enumerate(counts.items())
        for number in range(count)
    ]
    if missing := [job for job in jobs if not job[0].exists()]:
        print(f"drawing {len(missing)} JPEGs of {classes} classes into {out}, once", flush=True)
        with result.writing(out):
            for parent in {path.parent for path, *_ in jobs}:
                parent.mkdir(parents=True, exist_ok=True)
            result.write_json(out / DRAWN, {"images": images, "classes": classes})
            on_all_cores(_draw, missing)
    return out


def _draw(job: tuple[Path, int, tuple[int, ...]]) -> None:
    path, label, seed = job
    write_beside(path, drawing.drawn_jpeg(label, seed))


def write_beside(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; unlike `result.write_whole` it does not wait for the disk, file by file."""
    partial_file = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial_file.write_bytes(content)
        os.replace(partial_file, path)
    finally:
        partial_file.unlink(missing_ok=True)


def on_all_cores(function: Callable[[Any], Any], items: Sequence[Any], at_a_time: int = AT_A_TIME) -> list[Any]:
    """[function(item) for each item], by as many processes as there are cores to use.

    at_a_time: items that a process is given; where there are no more than that, this process does them. Raises
    InputError where a process was killed.
    """
    processes = min(usable_cores(), len(items) // at_a_time)
    if processes < 2:
        return [function(item) for item in items]
    try:
        with ProcessPoolExecutor(processes) as pool:
            return list(pool.map(function, items, chunksize=at_a_time))
    except BrokenProcessPool as error:
        raise InputError(
            "a process was ended, as the system does where memory runs out; the same command goes on"
        ) from error
