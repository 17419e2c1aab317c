"""The networks of this lab, in parts that the programs choose from, an average of their weights, and its defaults.

ResNet-9: David Page, "How to Train Your ResNet", 2018 to 2019, the network behind DAWNBench's fastest entries on one
GPU. The naive network is what it grew from: a residual network of pre-activated blocks (He et al. 2016) with two
convolutions in each, put together from modules as small as `Add`. "wN" is either of them with N channels in
its first layer.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.options import Defaults, Workload
from walkthrough.results.errors import InputError

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
OUTPUT_SCALE = 0.125  # of ResNet-9's logits, as Page has it
STATISTICS = 0.4  # the share of a step in ResNet-9's running statistics (Jordan 2024): with torch's 0.1 they lag behind
DEFAULTS = Defaults(
    cuda=Workload("w64", batch_size=512, image_size=32),
    cpu=Workload("w16", batch_size=64, image_size=16),
    logdir=ROOT / "logs" / "labs" / "speedrun",
    models="wN: N channels in the first layer",
    without=("--image-size",),  # it is the data set's
    texts={
        "--data": "folder that holds the data set: cifar-10-batches-py, or train/ and val/",
        "--download": "fetch CIFAR-10 into --data first, 170 MB",
        "--model": "wN, N channels in the first layer (default: by the data set, w64 for CIFAR-10, w16 for digits)",
        "--batch-size": "images per step (default: by the data set, 512 for CIFAR-10, 64 for digits)",
    },
)


def width_of(name: str) -> int:
    """The channels of the first layer of a model called "wN". Raises InputError."""
    parts = re.fullmatch(r"w(\d+)", name)
    width = int(parts[1]) if parts else 0
    if not 4 <= width <= 512:
        raise InputError(f"unknown model {name!r}: this lab trains wN, N channels in the first layer, such as w16")
    return width


class Add(nn.Module):
    """The sum of what two modules make of the same input."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


class Scale(nn.Module):
    """The input times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def convolution(channels_in: int, channels_out: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps height and width, but for its stride."""
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


def naive_resnet(width: int, channels: int = 3, classes: int = 10) -> nn.Sequential:
    """A residual network of 8 pre-activated blocks; images [N, channels, H, W], H and W at least 8, to [N, classes]."""

    def block(channels_in: int, channels_out: int, stride: int) -> nn.Module:
        residual = nn.Sequential(
            nn.BatchNorm2d(channels_in), nn.ReLU(), convolution(channels_in, channels_out, stride=stride),
            nn.BatchNorm2d(channels_out), nn.ReLU(), convolution(channels_out, channels_out),
        )  # fmt: skip
        same = stride == 1 and channels_in == channels_out
        return Add(nn.Identity() if same else convolution(channels_in, channels_out, 1, stride), residual)

    widths = [width, width, 2 * width, 4 * width, 4 * width]  # of what enters each stage, and leaves the last
    stages = []
    for channels_in, channels_out in pairwise(widths):
        stages += [block(channels_in, channels_out, 2 if stages else 1), block(channels_out, channels_out, 1)]
    last = widths[-1]
    head = [nn.BatchNorm2d(last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return nn.Sequential(convolution(channels, width), *stages, *head)


def resnet9(
    width: int,
    channels: int = 3,
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    stem: nn.Conv2d | None = None,
) -> nn.Sequential:
    """ResNet-9; images [N, channels, H, W], H and W at least 8, to [N, classes].

    stem: in place of the first convolution of 3x3, followed by one of 1x1; see `patch_stem`.
    """

    def layer(channels_in: int, channels_out: int, size: int = 3, pool: bool = False) -> nn.Sequential:
        parts = [convolution(channels_in, channels_out, size), *([nn.MaxPool2d(2)] if pool else [])]
        return nn.Sequential(*parts, nn.BatchNorm2d(channels_out, momentum=STATISTICS), activation())

    def residual(channels_inside: int) -> nn.Module:
        layers = [layer(channels_inside, channels_inside) for _ in range(2)]
        return Add(nn.Identity(), nn.Sequential(*layers))

    first = [layer(channels, width)]
    if stem is not None:
        first = [stem, activation(), layer(stem.out_channels, width, size=1)]
    return nn.Sequential(
        *first,
        layer(width, 2 * width, pool=True), residual(2 * width),
        layer(2 * width, 4 * width, pool=True),
        layer(4 * width, 8 * width, pool=True), residual(8 * width),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes, bias=False), Scale(OUTPUT_SCALE),
    )  # fmt: skip


def patch_stem(channels: int, size: int = 3) -> nn.Conv2d:
    """A frozen convolution for `whiten`, with 2 * channels * size² channels out."""
    stem = nn.Conv2d(channels, 2 * channels * size * size, size, padding=size // 2, bias=False)
    stem.weight.requires_grad_(False)
    return stem


@torch.no_grad()
def whiten(stem: nn.Conv2d, images: torch.Tensor, relative_eps: float = 1e-2) -> None:
    """Make a `patch_stem` turn the patches of normalised images into numbers that are uncorrelated and vary alike.

    images: float [N, C, H, W], a few thousand are enough. Filters are the eigenvectors of the patches' covariance over
    the roots of their eigenvalues, and the same negated, so that an activation keeps both signs (Page 2019; Jordan
    2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU"). relative_eps: of the mean eigenvalue, is added to each, so
    that what hardly varies is not blown up.
    """
    size, channels = stem.kernel_size[0], images.shape[1]
    patches = F.unfold(images, size).transpose(1, 2).reshape(-1, channels * size * size)
    patches = patches - patches.mean(0)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = vectors.T / (values + relative_eps * values.mean()).sqrt().unsqueeze(1)
    stem.weight.copy_(torch.cat([filters, -filters]).view(stem.weight.shape))


class Lookahead:
    """Slow weights that follow the model's, which return to them every few steps (Zhang et al. 2019; Jordan 2024).

    An exponential moving average whose memory grows with the training, from none to 0.95 for every step. It holds
    batch norm's statistics too, and replaces the model's own after the last step, so that the average is tested.
    """

    def __init__(self, model: nn.Module, steps: int, every: int = 5, decay: float = 0.95) -> None:
        self.fast = [value for value in model.state_dict().values() if value.is_floating_point()]
        self.slow = [value.clone() for value in self.fast]
        self.steps, self.every, self.decay, self.done = steps, every, decay, 0

    @torch.no_grad()
    def step(self) -> None:
        """To be called after each step of the optimizer."""
        self.done += 1
        if self.done > self.steps or (self.done % self.every and self.done != self.steps):
            return
        kept = self.decay**self.every * (self.done / self.steps) ** 3
        for slow, fast in zip(self.slow, self.fast, strict=True):
            fast.copy_(slow.lerp_(fast, 1 - kept))

    def state_dict(self) -> dict[str, Any]:
        return {"slow": [value.clone() for value in self.slow], "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slow, self.done = [value.clone() for value in state["slow"]], state["done"]
