"""Figures that others published, with the walkthrough that this course is based on; none of them measured by us.

MobileNetV2, CIFAR-10 at 224 px, SGD, on a Quadro RTX 4000 ("PyTorch Training Optimizations using Memory Analysis").
One run each, no spread; from steps under the profiler.
"""

from dataclasses import dataclass

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

# Of another article with steps like the walkthrough's: resnet18 on a V100, one run. Mixed precision at batch 1024:
# Tensor Cores' share of the kernels' time, and images/s, before and after.
ARTICLE = "https://towardsdatascience.com/pytorch-model-performance-analysis-and-optimization-10c3c5822869"
ARTICLE_TENSOR_CORES = (0.0, 0.263)
ARTICLE_IMAGES_PER_SECOND = (1670, 2477)
