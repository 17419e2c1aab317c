"""The data: a folder of JPEG files, train/CLASS/*.jpg and val/CLASS/*.jpg, as ImageNet's is; or one that is drawn.

    python labs/scale/jpegs.py --out DIR [--images 2000] [--classes 10]

draws one of a chosen size. Before a folder is used for the first time every file is decoded once, and what is corrupt
is named, counted and left out, so that all pipelines have the same images; the result is kept in the folder.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labs.scale import drawing
from labs.scale.decoding import middle_square, why_corrupt
from walkthrough.results import result
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, OneLineParser, folder, printable, whole_number

import numpy as np
import torch
from torch.utils.data import Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's images, for values in 0..1
ENDINGS = (".jpg", ".jpeg")  # in small letters
IMAGES, CLASSES, VAL_SHARE = 2000, 10, 0.2  # of a folder that is drawn: validation images, as a share of the others
DRAWN = "drawn JPEGs"  # what they are called
MADE = "made.json"  # in such a folder, once it is whole
BEGUN = "begun.json"  # until then
CORRUPT_FILES, CORRUPT_SHARE = 10, 0.01  # skipped at most: so many, or that share of the files, whichever is more
NAMED = 10  # corrupt files, at most; all of them are in the folder's own list
AT_A_TIME = 16  # files that a process is given
PROCESS_LOST = "a process was ended, as the system does where memory runs out; the same command goes on"

Engine = Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]]  # as `on_all_cores`


@dataclass(frozen=True)
class Listing:
    """The JPEG files of one part of a folder, sorted by class and name, without those that are corrupt.

    root: the part's folder, "DIR/train". classes: their folders, sorted, which are the labels. files: "class/name.jpg"
    below `root`. labels: of each file, in 0 .. classes - 1. corrupt: {file: why}, what was left out. digest: of the
    names, sizes and times of all files; another one means other images. source: what the data are called in results.
    """

    root: Path
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    corrupt: Mapping[str, str]
    digest: str
    source: str

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.files[index])

    def first_classes(self, count: int) -> "Listing":
        """The images of the first so many classes alone. Raises InputError where there are fewer."""
        if not 1 <= count <= len(self.classes):
            raise InputError(f"{self.root} has {len(self.classes)} classes: choose from 1 to that many, not {count}")
        kept = [(file, label) for file, label in zip(self.files, self.labels, strict=True) if label < count]
        files, labels = zip(*kept, strict=True)
        digest = f"{self.digest}, {count} classes"
        return replace(self, classes=self.classes[:count], files=files, labels=labels, digest=digest)


class Jpegs(Dataset):
    """Items (image, label) of a `Listing`: decoded when asked for. transform(path): see `as_float`, `as_uint8`."""

    def __init__(self, listing: Listing, transform: Callable[[str], Any]) -> None:
        self.listing, self.transform = listing, transform
        self.classes, self.source = listing.classes, listing.source

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.listing.path(index)), self.listing.labels[index]


def as_uint8(size: int) -> Callable[[str], torch.Tensor]:
    """JPEG file -> uint8 [3, size, size]: its middle square, resized."""
    return partial(_uint8, size=size)


def as_float(size: int) -> Callable[[str], torch.Tensor]:
    """JPEG file -> float32 [3, size, size]: its middle square, resized and normalised, all of it image by image."""
    return partial(_float, size=size)


def normalised(images: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 3, H, W] -> float32 of the same shape, on the same device: ImageNet's mean and deviation 0 and 1."""
    mean, std = (255 * torch.tensor(values, device=images.device).view(3, 1, 1) for values in (MEAN, STD))
    return images.float().sub_(mean).div_(std)


def _uint8(path: str, size: int) -> torch.Tensor:
    return torch.from_numpy(middle_square(path, size)).permute(2, 0, 1)


def _float(path: str, size: int) -> torch.Tensor:
    return normalised(_uint8(path, size))


def image_folder(data: Path) -> Path:
    """The folder of JPEGs that --data means: it, where it holds train/; drawn at the first time where it is the
    default. Raises InputError for another folder without train/.
    """
    if (data / BEGUN).exists() and not (data / MADE).exists():
        raise InputError(f"the pictures in {data} are not all drawn: python labs/scale/jpegs.py --out {data} goes on")
    if (data / "train").is_dir():
        return data
    if data.resolve() != ROOT / "data":
        raise InputError(
            f"--data {data} has no folder train/ with a folder of JPEGs for each class: name one that has, leave it "
            f"out to use pictures that are drawn, or draw some there: python labs/scale/jpegs.py --out {data}"
        )
    return drawn_folder(data / f"drawn-{IMAGES}")


def drawn_folder(out: Path, images: int = IMAGES, classes: int = CLASSES, seed: int = 0) -> Path:
    """Draw a folder of JPEGs, unless it is there and whole: `images` in train/, a fifth of that in val/; returns it.

    One that was cut off goes on. Raises InputError where it cannot be written, and where `out` holds other pictures.
    """
    settings = {"images": images, "classes": classes, "seed": seed}
    made, begun = out / MADE, out / BEGUN
    for path in (made, begun):
        if path.exists() and (there := result.read_json(path)) != settings:
            raise InputError(f"{out} holds other pictures ({there}): choose another folder, or remove it")
    if made.exists():
        return out
    if (out / "train").exists() and not begun.exists():
        raise InputError(f"{out / 'train'} was not drawn by this program: choose another folder")
    if not 1 <= classes <= min(images, drawing.MOST_CLASSES):
        raise InputError(f"--classes {classes}: from 1 to {drawing.MOST_CLASSES}, and no more than images ({images})")
    print(f"drawing {images} JPEGs of {classes} classes into {out}, once", flush=True)
    counts = {"train": images, "val": max(classes, round(images * VAL_SHARE))}
    jobs = [
        (out / part / f"class_{number % classes:03d}" / f"{number:06d}.jpg", number % classes, (seed, which, number))
        for which, (part, count) in enumerate(counts.items())
        for number in range(count)
    ]
    with result.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        result.write_json(begun, settings)
        for parent in {path.parent for path, _, _ in jobs}:
            parent.mkdir(parents=True, exist_ok=True)
        on_all_cores(_draw, [job for job in jobs if not job[0].exists()])
        result.write_json(made, settings)
        begun.unlink(missing_ok=True)
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
        raise InputError(PROCESS_LOST) from error


def listed(data: Path, part: str = "train", engine: Engine = on_all_cores) -> Listing:
    """The `Listing` of DIR/train or DIR/val; which files are corrupt is found out once, then read from the folder.

    engine: what decodes them for that. The first corrupt files are named. Raises InputError where there is no such
    folder, no class, no image; and where more files are corrupt than `CORRUPT_FILES` and `CORRUPT_SHARE` allow.
    """
    root = data / part
    try:
        classes, own = _class_folders(data / "train"), _class_folders(root)
        found = [f"{name}/{file.name}" for name in own for file in sorted(os.scandir(root / name), key=_name)]
    except OSError as error:
        raise InputError(f"cannot read {root}: {error.strerror or error}; it needs a folder for each class") from error
    files = [file for file in found if file.lower().endswith(ENDINGS) and "/." not in file]
    if unknown := [name for name in own if name not in classes]:
        raise InputError(f"{root / unknown[0]} is a class that {data / 'train'} does not have: remove it")
    if not files:
        raise InputError(f"{root} has no folder of .jpg files: it needs one for each class")
    digest = _digest(root, files)
    corrupt = _corrupt(data / f".{part}-checked.json", root, files, digest, engine)
    _tell(root, corrupt, len(files))
    labels = {name: label for label, name in enumerate(classes)}
    kept = tuple(file for file in files if file not in corrupt)
    source = DRAWN if (data / MADE).exists() else data.resolve().name
    return Listing(root, classes, kept, tuple(labels[file.split("/")[0]] for file in kept), corrupt, digest, source)


def _class_folders(root: Path) -> tuple[str, ...]:
    """Names, sorted; hidden folders, as editors leave them, are no classes."""
    return tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _digest(root: Path, files: Sequence[str]) -> str:
    """SHA-256 over the files' names, sizes and times; of a link to nothing, over its name."""
    digest = hashlib.sha256()
    for file in files:
        try:
            state = os.stat(root / file)
            digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file}\0\n".encode())
    return digest.hexdigest()


def kept_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file that can be made again; {} where there is none, or it cannot be read."""
    try:
        return result.read_json(path)
    except InputError:
        return {}


def _corrupt(kept: Path, root: Path, files: Sequence[str], digest: str, engine: Engine) -> dict[str, str]:
    """{file: why}, of those that cannot be decoded: from the file `kept`, if it is of these very files."""
    if (there := kept_json(kept)).get("files") == digest:
        return there["corrupt"]
    reasons = engine(why_corrupt, [str(root / file) for file in files], AT_A_TIME)
    corrupt = {file: printable(why, 120) for file, why in zip(files, reasons, strict=True) if why}
    try:
        result.write_json(kept, {"files": digest, "corrupt": corrupt})
    except InputError as error:
        print(f"{error}: the JPEGs will be checked again at each start")
    return corrupt


def _tell(root: Path, corrupt: Mapping[str, str], of: int) -> None:
    """Name what is corrupt. Raises InputError where it is too much."""
    limit = max(CORRUPT_FILES, int(CORRUPT_SHARE * of))
    if len(corrupt) > limit or len(corrupt) == of:
        name, why = next(iter(corrupt.items()))
        raise InputError(
            f"{len(corrupt)} of {of} JPEGs in {root} are corrupt, such as {name} ({why}): more than {limit}, which are "
            "skipped; remove them or bring them again"
        )
    for name, why in list(corrupt.items())[:NAMED]:
        print(f"corrupt JPEG, skipped: {root / name}: {why}")
    if corrupt:
        print(f"{len(corrupt)} of {of} JPEGs in {root} are corrupt and skipped")


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--out", type=folder, required=True, metavar="DIR", help="folder that is made")
    for flag, default, low, what in (
        ("--images", IMAGES, 1, "training images; validation images are a fifth of that"),
        ("--classes", CLASSES, 1, f"at most {drawing.MOST_CLASSES}"),
        ("--seed", 0, 0, "of the pictures"),
    ):
        parser.add_argument(
            flag, type=whole_number(low, 10**7), default=default, metavar="N", help=f"{what} (default: %(default)s)"
        )
    args = parser.parse_args()
    out = drawn_folder(args.out, args.images, args.classes, args.seed)
    for part in ("train", "val"):
        listing = listed(out, part)
        bytes_each = np.mean([os.path.getsize(listing.path(index)) for index in range(len(listing))])
        print(f"{listing.root}: {len(listing)} JPEGs, {bytes_each / 1000:.0f} kB each")


if __name__ == "__main__":
    main()
