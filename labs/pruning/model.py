"""The networks that are pruned: torchvision's MobileNetV2, and one of the same blocks for small images.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018. "wN" has N channels in its first layer
where the original has 32, and its other layers in proportion; fewer blocks, and fewer strides, as images are small.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from common.options import Defaults, Workload
from walkthrough.results.errors import InputError, printable

import torch
from torch import nn
from torchvision.models import MobileNetV2
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

ROOT = Path(__file__).resolve().parents[2]
STEM = 32  # channels of the original's first layer, of which "wN" is N
FIRST_LAYER = "features.0.0.weight"  # in torchvision's
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2), (6, 48, 2, 1))  # expansion, channels, how many, first stride
LAST = 192  # channels before the classifier, of w32
DEFAULTS = Defaults(
    cuda=Workload("w64", batch_size=128, image_size=32),
    cpu=Workload("w32", batch_size=64, image_size=8),
    logdir=ROOT / "logs" / "labs" / "pruning",
    models="wN, for small images, with N channels in the first layer; or mobilenet_v2, torchvision's",
    without=("--image-size", "--precision"),  # the first is the data set's; weights are compared in float32
    texts={
        "--data": "folder that holds the data set: cifar-10-batches-py, or train/ and val/ (without one: digits)",
        "--download": "fetch CIFAR-10 into --data first, 170 MB",
        "--quick": "a smoke run: fewer images and epochs",
    },
)


def network(name: str, channels: int, classes: int) -> nn.Module:
    """The network called "wN" or "mobilenet_v2", random weights: [N, channels, H, W] -> [N, classes].

    Raises InputError for another name, and for images that are not in colour where it needs those.
    """
    if name == "mobilenet_v2":
        if channels != 3:
            raise InputError("mobilenet_v2 takes images in colour: name their folder with --data")
        return MobileNetV2(classes)
    parts = re.fullmatch(r"w(\d+)", name)
    width = int(parts[1]) if parts else 0
    if not 4 <= width <= 256:
        raise InputError(f"unknown model {name!r}: wN, N channels in the first layer, such as w32; or mobilenet_v2")
    return small_mobilenet(width, channels, classes)


def network_like(weights: Mapping[str, torch.Tensor], name: str, channels: int, classes: int) -> nn.Module:
    """The network that these weights are of, and with them: torchvision's of any width, or the one of that name.

    Raises InputError where they are of something else, or of images or classes other than these.
    """
    try:
        stem = weights.get(FIRST_LAYER, ())
        is_theirs = len(stem) and channels == 3
        model = MobileNetV2(classes, len(stem) / STEM) if is_theirs else network(name, channels, classes)
        model.load_state_dict(weights)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise InputError(
            f"--trained is no MobileNetV2 for {classes} classes of images with {channels} channel(s), as --data has: "
            f"{printable(error, 160)}"
        ) from error
    return model


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
