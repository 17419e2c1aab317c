"""ResNeXt for images of CIFAR-10's size, in parts that can be checkpointed one by one, and this lab's defaults.

"Aggregated Residual Transformations for Deep Neural Networks", Xie et al. 2017, section 5.3: three stages of bottleneck
blocks, whose 3x3 convolutions are in groups, and shortcuts. The first convolution is 1x1, as in the widely copied
`pytorch-cifar`; with it the memory that is predicted as reserved is the published one, within a few percent. With 50
layers it has the four stages of table 1, but for ImageNet's first convolution and pooling, which leave 8 px of 32.
"""

import re
from collections.abc import Sequence

from common.options import Defaults, Workload
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

import torch
from torch import nn

PUBLISHED = "resnext29_4x64d"  # the variant whose predicted memory, with checkpointing and without, is the published
FOUR_STAGES = {50: (3, 4, 6, 3)}  # {layers: blocks of each stage}
DEFAULTS = Defaults(
    cuda=Workload(PUBLISHED, batch_size=128, image_size=32),
    cpu=Workload("resnext11_2x8d", batch_size=32, image_size=32, quick_image_size=16),
    logdir=ROOT / "logs" / "labs" / "memory",
    models="resnextD_CxWd: depth D, a multiple of 9 plus 2, such as 11, 20 or 29, or 50; C groups of W channels",
    texts={"--image-size": "images are resized to PX x PX (default: 32; on a CPU 16 with --quick)"},
)


class Block(nn.Module):
    """A bottleneck: 1x1, 3x3 in groups, 1x1 convolutions, and a shortcut around them.

    Float images [N, channels_in, H, W] in, [N, 2 * groups * width, H / stride, W / stride] out.
    """

    def __init__(self, channels_in: int, groups: int, width: int, stride: int) -> None:
        super().__init__()
        inner, channels_out = groups * width, 2 * groups * width
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class ResNeXt(nn.Module):
    """A classifier of float images [N, 3, H, W], H and W at least 8; [N, classes] out.

    stem, stages and head, one after the other, are the model. blocks: how many, for each stage. groups, width: of the
    first stage's 3x3 convolutions; the width doubles with every stage.
    """

    def __init__(self, blocks: Sequence[int], groups: int, width: int, classes: int = 10) -> None:
        super().__init__()
        channels = min(64, 2 * groups * width)
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.stages = nn.ModuleList()
        for number, count in enumerate(blocks):
            stage = []
            for block in range(count):
                stage.append(Block(channels, groups, width << number, stride=2 if number and not block else 1))
                channels = 2 * groups * (width << number)
            self.stages.append(nn.Sequential(*stage))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


def resnext(name: str, classes: int = 10) -> ResNeXt:
    """The `ResNeXt` of a name such as "resnext29_4x64d": 29 layers, 4 groups of 64 channels. Raises InputError."""
    parts = re.fullmatch(r"resnext(\d+)_(\d+)x(\d+)d", name)
    depth, groups, width = map(int, parts.groups()) if parts else (0, 0, 0)
    blocks = FOUR_STAGES.get(depth, (depth // 9,) * 3)
    if depth < 11 or 2 + 3 * sum(blocks) != depth or not 1 <= groups <= 64 or not 1 <= width <= 256:
        raise InputError(
            f"unknown model {name!r}: this lab trains resnextD_CxWd, such as {PUBLISHED} (D = 11, 20, 29 … or 50, "
            "C up to 64, W up to 256)"
        )
    return ResNeXt(blocks, groups, width, classes)
