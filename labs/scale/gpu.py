"""JPEGs that a GPU decodes: what a loader passes to it, and what is made of that there."""

import warnings
from pathlib import Path

from labs.scale.jpegs import normalised
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_jpeg

Encoded = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def needs_cuda(device: torch.device, what: str) -> None:
    """Raise InputError on any other device."""
    if device.type != "cuda":
        raise InputError(f"{what} needs an NVIDIA GPU, and this program runs on {device}: see 02_batched.py for a CPU")


def as_bytes(path: str) -> torch.Tensor:
    """JPEG file -> its bytes: uint8 [bytes]."""
    return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)


def encoded_batch(samples: list[tuple[torch.Tensor, int]]) -> Encoded:
    """(labels int64 [N], bytes of each file int64 [N], all files one after the other uint8 [bytes])."""
    files, labels = zip(*samples, strict=True)
    return torch.tensor(labels), torch.tensor([len(file) for file in files]), torch.cat(files)


def decoded_batch(lengths: torch.Tensor, files: torch.Tensor, size: int, device: torch.device) -> torch.Tensor:
    """Files as `encoded_batch` lays them out -> float32 [N, 3, size, size] on the device, normalised.

    The middle squares, resized there as on the CPU; values differ by a few of 255, as nvJPEG rounds otherwise.
    """
    with warnings.catch_warnings():  # torchvision 0.29 announces that TorchCodec will replace it
        warnings.simplefilter("ignore", DeprecationWarning)
        images = decode_jpeg(list(files.split(lengths.tolist())), mode=ImageReadMode.RGB, device=device)
    return normalised(torch.cat([_middle_square(image, size) for image in images]))


def _middle_square(image: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [3, H, W] -> uint8 [1, 3, size, size]."""
    height, width = image.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side].float()
    small = F.interpolate(square, (size, size), mode="bilinear", align_corners=False, antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)
