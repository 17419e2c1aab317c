"""What this lab trains: torchvision's MobileNetV2, as wide as the machine can take.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018. "wN" has N channels in its first layer
where the original, w32, has 32, and its other layers in proportion.
"""

import re
from pathlib import Path

from common.options import Defaults, Workload
from walkthrough.results.errors import InputError

from torchvision.models import MobileNetV2

ROOT = Path(__file__).resolve().parents[2]
STEM = 32  # channels of the original's first layer
DEFAULTS = Defaults(
    cuda=Workload("w32", batch_size=96, image_size=224, quick_image_size=64),
    cpu=Workload("w8", batch_size=64, image_size=64),
    logdir=ROOT / "logs" / "labs" / "scale",
    models="wN: N channels in the first layer, a multiple of 8; w32 is MobileNetV2 as published",
    without=("--precision", "--download"),
    texts={"--data": "folder of train/CLASS/*.jpg and val/CLASS/*.jpg (without one: pictures that are drawn)"},
)


def width_of(name: str) -> int:
    """The channels of the first layer of a model called "wN". Raises InputError."""
    parts = re.fullmatch(r"w(\d+)", name)
    width = int(parts[1]) if parts else 0
    if width % 8 or not 8 <= width <= 128:
        raise InputError(f"unknown model {name!r}: this lab trains wN, N a multiple of 8 from 8 to 128, such as w32")
    return width


def mobilenet(name: str, classes: int) -> MobileNetV2:
    """A MobileNetV2 called "wN", random weights: float [N, 3, H, W] -> [N, classes]. Raises InputError."""
    return MobileNetV2(num_classes=classes, width_mult=width_of(name) / STEM)
