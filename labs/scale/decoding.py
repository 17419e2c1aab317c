"""JPEG files to small images: the one way in which every pipeline of this lab decodes and resizes.

Without torch, so that Spark's workers and other processes import it quickly.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image

QUALITY = 90  # of JPEGs that are made small
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what PIL raises for a broken file


def pixels(file: str | Path | io.BytesIO) -> np.ndarray:
    """A JPEG as it is: uint8 [height, width, 3]. Raises one of `UNREADABLE`."""
    with Image.open(file) as image:
        return np.array(image.convert("RGB"))


def middle_square(file: str | Path | io.BytesIO, size: int) -> np.ndarray:
    """A JPEG's middle square, resized: uint8 [size, size, 3]. Bilinear, over all pixels that an output pixel covers.

    One that has that size is decoded and nothing else. Raises one of `UNREADABLE`.
    """
    with Image.open(file) as image:
        rgb = image.convert("RGB")
    if rgb.size != (size, size):
        side, (width, height) = min(rgb.size), rgb.size
        left, top = (width - side) // 2, (height - side) // 2
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    return np.array(rgb)


def small_jpeg(file: str | Path | io.BytesIO, size: int) -> bytes:
    """A JPEG file of another's middle square, size x size px. Raises one of `UNREADABLE`.

    Colours are kept at full resolution (4:4:4): of 64 px, a half would be few.
    """
    small = io.BytesIO()
    Image.fromarray(middle_square(file, size)).save(small, "JPEG", quality=QUALITY, subsampling=0)
    return small.getvalue()


def why_corrupt(path: str | Path) -> str | None:
    """Why a file is no JPEG that can be decoded, in words; None where it can be.

    It is decoded at an eighth of its size: all of the file is read, in less than half of the time.
    """
    try:
        with Image.open(path) as image:
            if image.format not in ("JPEG", "MPO"):  # MPO: several JPEGs in one file, as some cameras write
                return f"a {image.format} file, not a JPEG"
            image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
    except UNREADABLE as error:
        return str(error).replace(repr(str(path)), "the file")
    return None
