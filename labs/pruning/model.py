"""MobileNetV2 for small images, from torchvision's own blocks, and what of it is pruned.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018. "wN" has N channels in its first layer
where the original has 32, and its other layers in proportion; fewer blocks, and fewer strides, as images are small.
"""

import re
from pathlib import Path

from common.options import Defaults, Workload
from walkthrough.results.errors import InputError

from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

ROOT = Path(__file__).resolve().parents[2]
STEM = 32  # channels of the original's first layer, of which "wN" is N
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2), (6, 48, 2, 1))  # expansion, channels, how many, first stride
LAST = 192  # channels before the classifier, of w32
DEFAULTS = Defaults(
    cuda=Workload("w64", batch_size=128, image_size=32),
    cpu=Workload("w32", batch_size=64, image_size=8),
    logdir=ROOT / "logs" / "labs" / "pruning",
    models="wN: N channels in the first layer",
    without=("--image-size", "--precision"),  # the first is the data set's; weights are compared in float32
    texts={
        "--data": "folder that holds the data set: cifar-10-batches-py, or train/ and val/ (without one: digits)",
        "--download": "fetch CIFAR-10 into --data first, 170 MB",
    },
)


def width_of(name: str) -> int:
    """The channels of the first layer of a model called "wN". Raises InputError."""
    parts = re.fullmatch(r"w(\d+)", name)
    width = int(parts[1]) if parts else 0
    if not 4 <= width <= 256:
        raise InputError(f"unknown model {name!r}: this lab trains wN, N channels in the first layer, such as w32")
    return width


def small_mobilenet(width: int, channels: int, classes: int) -> nn.Sequential:
    """A MobileNetV2 with `width` channels in its first layer: [N, channels, H, W] -> [N, classes]."""

    def scaled(of: int) -> int:
        return max(4, round(of * width / STEM))

    layers: list[nn.Module] = [Conv2dNormActivation(channels, width, activation_layer=nn.ReLU6)]
    before = width
    for expansion, out, count, stride in BLOCKS:
        for number in range(count):
            layers.append(InvertedResidual(before, scaled(out), stride if number == 0 else 1, expansion))
            before = scaled(out)
    layers.append(Conv2dNormActivation(before, scaled(LAST), kernel_size=1, activation_layer=nn.ReLU6))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(scaled(LAST), classes)]
    return nn.Sequential(*layers)


def prunable(model: nn.Module) -> dict[str, nn.Module]:
    """{name: module} of all that has a weight matrix: convolutions and linear layers, no normalisation and no bias."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
