"""NVIDIA's DALI as the decoder of batches."""

from importlib import import_module
from typing import Any

from labs.scale.jpegs import MEAN, STD
from walkthrough.results.errors import InputError

import torch


class DaliDecoder:
    """decoder(lengths, files) -> float32 [N, 3, size, size] on the device, normalised: see `gpu.decoded_batch`.

    On a CPU DALI decodes on the CPU. Raises InputError where DALI is not installed: its package is named after the
    CUDA version, which has to be torch's.
    """

    def __init__(self, batch_size: int, size: int, device: torch.device, threads: int) -> None:
        dali, fn, types = _dali()
        on_gpu = device.type == "cuda"
        self.files, self.device = [], device
        self.pipeline = dali.Pipeline(
            batch_size, max(1, threads), torch.cuda.current_device() if on_gpu else None, prefetch_queue_depth=1
        )
        with self.pipeline:
            files = fn.external_source(source=lambda: self.files, dtype=types.UINT8, ndim=1)
            kind = "mixed" if on_gpu else "cpu"
            images = fn.decoders.image(files, device=kind, output_type=types.RGB, jpeg_fancy_upsampling=True)
            side = fn.cast(fn.reductions.min(fn.peek_image_shape(files)[0:2]), dtype=types.FLOAT)
            square = fn.crop(images, crop_w=side, crop_h=side, rounding="truncate")
            small = fn.resize(square, size=[size, size], interp_type=types.INTERP_TRIANGULAR, antialias=True)
            scaled = [[255 * value for value in values] for values in (MEAN, STD)]
            self.pipeline.set_outputs(
                fn.crop_mirror_normalize(small, dtype=types.FLOAT, output_layout="CHW", mean=scaled[0], std=scaled[1])
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
        name, cuda = error.name or "", torch.version.cuda
        if not name.startswith("nvidia"):
            raise InputError(f"DALI needs {name}, which is not installed: pip install {name}") from error
        if cuda is None:
            raise InputError(
                f"decoding with DALI needs an NVIDIA GPU and a torch for CUDA, not this one ({torch.__version__})"
            ) from error
        package = f"nvidia-dali-cuda{cuda.partition('.')[0]}0"
        raise InputError(
            f"decoding with DALI needs {package}, which is not installed: pip install {package} "
            f"(this torch is built for CUDA {cuda})"
        ) from error
