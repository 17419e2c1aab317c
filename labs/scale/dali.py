"""NVIDIA's DALI as the decoder of batches."""

# `common` before torch: it sets how OpenMP's threads wait.
from common.studies.extras import imported
from labs.scale.jpegs import MEAN, STD

import torch


class DaliDecoder:
    """decoder(lengths, files) -> float32 [N, 3, size, size] on the device, normalised: see `gpu.decoded_batch`.

    On a CPU DALI decodes on the CPU. Raises InputError where DALI is not installed.
    """

    def __init__(self, batch_size: int, size: int, device: torch.device, threads: int) -> None:
        dali = imported("nvidia.dali", "scale", "decoding with DALI")
        fn, types = imported("nvidia.dali.fn", "scale", "DALI"), imported("nvidia.dali.types", "scale", "DALI")
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
