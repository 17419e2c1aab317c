"""What was published about ResNeXt on CIFAR-10: batch 128, Adam with a learning rate of 0.01, 200 epochs, one A100.

One run, no spread, from a write-up of the memory of its training, seen with Nsight Systems. Not measured here.
"""

from dataclasses import dataclass

SETUP = "ResNeXt on CIFAR-10, batch 128, one A100, one run, no spread"
# {workers: (ms to load a batch, ms per step, s per epoch)}
WORKERS = {0: (63, 104, 67.7), 1: (1.9, 105, 44.6), 2: (1.6, 104, 44.5), 4: (1.6, 104, 44.7), 8: (1.6, 104, 44.9)}


@dataclass(frozen=True)
class Run:
    """One published training; total_seconds: of 200 epochs; optimizer_ms: read without synchronising, it seems."""

    batch_size: int
    step_ms: float
    epoch_seconds: float
    total_seconds: float
    optimizer_ms: float | None = None
    memory_gb: float | None = None


BASE = Run(128, 104, 44.5, 8934, 28, 7.82)
HALF = Run(128, 78, 33.7, 6744)
CHECKPOINT = Run(128, 152, 63.5, 12703, 34, 5.11)
BASE_LARGE = Run(512, 380, 40, 8097, 200, 33.79)
CHECKPOINT_LARGE = Run(896, 948, 56.5, 11302, 560, 33.93)
A100_BYTES_PER_SECOND = 1.555e12  # of its memory, by NVIDIA's data sheet (40 GB)
ADAM_BYTES_PER_PARAMETER = 28  # float32: reads weight, gradient and two moments, writes weight and both moments
