"""JPEGs that a GPU decodes, by nvJPEG or by DALI: what a loader passes to it, and what is made of that there."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from labs.scale.data import CROP_AREA, CROP_RATIO, normalised, random_crop
from labs.shared.images import MEAN, STD, middle_square
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_jpeg


def needs_cuda(device: torch.device, what: str) -> None:
    """Raise InputError on any other device."""
    if device.type != "cuda":
        raise InputError(f"{what} needs an NVIDIA GPU, and this program runs on {device}: see 02_batched.py for a CPU")


def as_bytes(path: str) -> torch.Tensor:
    """JPEG file -> its bytes: uint8 [bytes]."""
    return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)


def encoded_batch(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, ...]:
    """(labels int64 [N], bytes of each file int64 [N], all files one after the other uint8 [bytes])."""
    files, labels = zip(*samples, strict=True)
    return torch.tensor(labels), torch.tensor([len(file) for file in files]), torch.cat(files)


class NvjpegDecoder:
    """decoder(lengths, files) -> float32 [N, 3, size, size] on the device, normalised; files as in `encoded_batch`.

    The middle squares, resized there as on the CPU; values differ by a few of 255, as nvJPEG rounds otherwise. crops:
    random parts for training instead, mirrored in half of the cases.
    """

    def __init__(self, size: int, device: torch.device, crops: bool = False) -> None:
        self.size, self.device, self.crops = size, device, crops

    def __call__(self, lengths: torch.Tensor, files: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():  # torchvision 0.29 announces that TorchCodec will replace it
            warnings.simplefilter("ignore", DeprecationWarning)
            images = decode_jpeg(list(files.split(lengths.tolist())), mode=ImageReadMode.RGB, device=self.device)
        small = normalised(torch.cat([self._resized(image) for image in images]))
        if self.crops:
            mirrored = torch.rand(len(small), 1, 1, 1, device=small.device) < 0.5
            small = torch.where(mirrored, small.flip(3), small)
        return small

    def _resized(self, image: torch.Tensor) -> torch.Tensor:
        """uint8 [3, H, W] -> uint8 [1, 3, size, size]."""
        left, top, right, bottom = (random_crop if self.crops else middle_square)(image)
        part, size = image[None, :, top:bottom, left:right].float(), (self.size, self.size)
        small = F.interpolate(part, size, mode="bilinear", align_corners=False, antialias=True)
        return small.round().clamp(0, 255).to(torch.uint8)


class DaliDecoder:
    """The same by NVIDIA's DALI, which decodes, resizes and normalises a batch at once; on a CPU it works there.

    threads: of its own. seed: of its crops. Raises InputError where DALI is not installed: its package is named after
    the CUDA version, which has to be torch's.
    """

    def __init__(
        self, batch_size: int, size: int, device: torch.device, threads: int, crops: bool = False, seed: int = 0
    ) -> None:
        dali, fn, types = _dali()
        on_gpu = device.type == "cuda"
        self.files, self.device = [], device
        gpu = torch.cuda.current_device() if on_gpu else None
        self.pipeline = dali.Pipeline(batch_size, max(1, threads), gpu, seed=seed, prefetch_queue_depth=1)
        with self.pipeline:
            files = fn.external_source(source=lambda: self.files, dtype=types.UINT8, ndim=1)
            kind = "mixed" if on_gpu else "cpu"
            images = fn.decoders.image(files, device=kind, output_type=types.RGB, jpeg_fancy_upsampling=True)
            how = {"size": [size, size], "interp_type": types.INTERP_TRIANGULAR, "antialias": True}
            if crops:
                area = {"random_area": CROP_AREA, "random_aspect_ratio": CROP_RATIO}
                small, mirror = fn.random_resized_crop(images, **area, **how), fn.random.coin_flip()
            else:
                side = fn.cast(fn.reductions.min(fn.peek_image_shape(files)[0:2]), dtype=types.FLOAT)
                square = fn.crop(images, crop_w=side, crop_h=side, rounding="truncate")
                small, mirror = fn.resize(square, **how), 0
            mean, std = [[255 * value for value in values] for values in (MEAN, STD)]
            self.pipeline.set_outputs(
                fn.crop_mirror_normalize(
                    small, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std, mirror=mirror
                )
            )
        self.pipeline.build()

    def __call__(self, lengths: torch.Tensor, files: torch.Tensor) -> torch.Tensor:
        self.files = [file.numpy() for file in files.split(lengths.tolist())]
        (images,) = self.pipeline.run()
        return torch.from_dlpack(images.as_tensor()).to(self.device).clone()


def _dali() -> list[Any]:
    """The modules nvidia.dali, its fn and its types."""
    try:
        return [import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types")]
    except ModuleNotFoundError as error:
        cuda = torch.version.cuda
        needed = f"an NVIDIA GPU and a torch for CUDA, not this one ({torch.__version__})"
        if cuda:
            package = f"nvidia-dali-cuda{cuda.partition('.')[0]}0"
            needed = f"{package}, which is not installed: pip install {package} (this torch is built for CUDA {cuda})"
        raise InputError(f"decoding with DALI needs {needed}") from error
