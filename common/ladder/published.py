"""Figures that others published, with the walkthrough that this course is based on; none of them measured by us.

MobileNetV2, CIFAR-10 at 224 px, SGD, on a Quadro RTX 4000 ("PyTorch Training Optimizations using Memory Analysis").
One run each, no spread; from steps under the profiler.
"""

from dataclasses import dataclass
from typing import Literal

DEVICE = "Quadro RTX 4000"
MODEL = "mobilenet_v2"  # as `--model` names it


@dataclass(frozen=True)
class Published:
    """One row of its table; relative: times the baseline's images/s."""

    batch_size: int
    memory_gb: float
    step_ms: float
    images_per_second: float
    relative: float


PUBLISHED = {
    "00_baseline": Published(32, 2.51, 117.1, 273.5, 1.00),
    "01_amp": Published(32, 1.32, 81.1, 395.1, 1.44),
    "02_bigger_batch": Published(128, 4.95, 232.1, 551.5, 2.01),
    "03_reduced_h2d_copy": Published(128, 4.95, 202.6, 631.63, 2.30),
    "04_multiprocess_loading": Published(128, 4.95, 145.8, 877.84, 3.20),
    "05_pinned_memory": Published(128, 4.95, 92.6, 1381.6, 5.05),
}
RELATIVE = {step: row.relative for step, row in PUBLISHED.items()}
TENSOR_CORES = {"00_baseline": 0.0, "01_amp": 0.263}  # share of the kernels' time, as its TensorBoard showed it


# Another study, "ResNeXt memory study": ResNeXt on CIFAR-10, an A100, batch 128. By number of workers: ms that the
# loop waits for a batch, ms per step, s per epoch.
WORKERS = {0: (63, 104, 67.7), 1: (1.9, 105, 44.6), 2: (1.6, 104, 44.5), 4: (1.6, 104, 44.7), 8: (1.6, 104, 44.9)}


@dataclass(frozen=True)
class PublishedMemory:
    """GPU memory as published. program: which of ours is nearest, with `words` on its command line.

    counts: "allocated", what the program holds, or "reserved", what it took from CUDA.
    """

    program: str
    words: tuple[str, ...]
    memory_gb: float
    counts: Literal["allocated", "reserved"]


# The walkthrough's, as the profiler plugin's Memory view shows them; and those of "ResNeXt memory study" on an A100 by
# Nsight Systems, whose memory usage is that of the calls of cudaMalloc. Its model is ResNeXt-29 4x64d most likely.
MEMORY = (
    *(PublishedMemory(step, (), PUBLISHED[step].memory_gb, "allocated") for step in list(PUBLISHED)[:3]),
    PublishedMemory("labs/memory/00_baseline", ("--batch-size", "128"), 7.82, "reserved"),
    PublishedMemory("labs/memory/02_checkpointing", ("--precision", "fp32", "--batch-size", "128"), 5.11, "reserved"),
    PublishedMemory("labs/memory/00_baseline", ("--batch-size", "512"), 33.79, "reserved"),
    PublishedMemory("labs/memory/02_checkpointing", ("--precision", "fp32", "--batch-size", "896"), 33.93, "reserved"),
)
