"""Images that were made small once, before training: as a folder of small JPEGs, and in memory."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from labs.scale.decoding import UNREADABLE, small_jpeg
from labs.scale.jpegs import BEGUN, MADE, Jpegs, Listing, kept_json, on_all_cores, write_beside
from walkthrough.results import result
from walkthrough.results.errors import InputError

import torch
from torch.utils.data import Dataset


def resized_once(listing: Listing, size: int) -> Listing:
    """The same images as JPEGs of size x size px, in the same order: made at the first time, in DIR/resized-64px/.

    What was cut off goes on; a folder that was made of other images is made again. Raises InputError where it cannot
    be written, and where a JPEG was broken since it was checked.
    """
    root = listing.root.parent / f"resized-{size}px" / listing.root.name
    small = replace(listing, root=root)
    made, begun = (root.with_name(f".{root.name}-{name}") for name in (MADE, BEGUN))
    settings = {"made_from": listing.digest}
    if kept_json(made) == settings:
        return small
    with result.writing(root):
        if kept_json(begun) != settings:
            made.unlink(missing_ok=True)
            if root.exists():
                shutil.rmtree(root)
            root.mkdir(parents=True)
            result.write_json(begun, settings)
        print(f"resizing {len(listing)} JPEGs to {size} px into {root}, once", flush=True)
        for name in listing.classes:
            (root / name).mkdir(exist_ok=True)
        jobs = [(listing.path(index), small.path(index), size) for index in range(len(listing))]
        failures = on_all_cores(_resize, [job for job in jobs if not os.path.exists(job[1])])
        if failed := [failure for failure in failures if failure]:
            raise InputError(f"{failed[0]}: it was changed since it was checked; bring it again, or remove it")
        result.write_json(made, settings)
        begun.unlink(missing_ok=True)
    return small


def _resize(job: tuple[str, str, int]) -> str | None:
    """Why it failed, or None."""
    source, target, size = job
    try:
        content = small_jpeg(source, size)
    except UNREADABLE as error:
        return f"{source}: {error}"
    write_beside(Path(target), content)
    return None


class Cached(Dataset):
    """The items of a data set of uint8 images, decoded once and kept: images uint8 [N, 3, size, size] in memory.

    Raises InputError where the machine does not have that much memory.
    """

    def __init__(self, images: Jpegs) -> None:
        self.classes, self.source = images.classes, images.source
        first, _ = images[0]
        needed, there = len(images) * first.nbytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise InputError(
                f"{len(images)} decoded images are {needed / 1e9:.0f} GB, and this machine has {there / 1e9:.0f} GB of "
                "memory: choose a smaller --image-size, or read shards (05)"
            )
        self.images = torch.empty((len(images), *first.shape), dtype=torch.uint8)
        for index in range(len(images)):
            self.images[index] = images[index][0]
        self.labels = images.listing.labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.labels[index]
