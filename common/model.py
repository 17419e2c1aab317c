"""The one model that every step trains, with random weights: a torchvision classifier, or a small one of our own."""

import difflib
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torchvision import models

from walkthrough.results.errors import InputError

TINY = "tiny_convmixer"


class TinyConvMixer(nn.Module):
    """A classifier so small that on a CPU preparing an image costs about what training on it does, as on a GPU.

    After ConvMixer ("Patches Are All You Need?", Trockman and Kolter 2022), much smaller: one strided convolution makes
    a vector of `width` numbers of each `patch` x `patch` pixels, then each of `depth` blocks mixes neighbouring
    vectors (depthwise convolution) and the numbers within each (pointwise convolution).

    Float images [N, 3, H, W] in, H and W at least `patch`; [N, classes] out.
    """

    def __init__(self, classes: int = 10, width: int = 16, patch: int = 12, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(3, width, kernel_size=patch, stride=patch),
            *[_Block(width) for _ in range(depth)],
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(*_convolution(width, width, kernel_size=3, padding=1, groups=width))
        self.pointwise = nn.Sequential(*_convolution(width, width, kernel_size=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(x + self.depthwise(x))


def _convolution(channels_in: int, channels_out: int, **settings: Any) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels_out, bias=False, **settings)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU()]


def classifier(name: str, image_size: int = 224, classes: int = 10) -> nn.Module:
    """`TinyConvMixer` or torchvision's classifier of that name, for float images [N, 3, image_size, image_size].

    Its output is [N, classes] in training too: Inception's and GoogLeNet's auxiliary outputs are left off.
    Raises InputError for an unknown name and for an image size that the model cannot take.
    """
    known = [TINY, *models.list_models(module=models)]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"{TINY}, or one of torchvision's {len(known) - 1}"
        raise InputError(f"unknown model {name!r}: {hint}")
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name in ("inception_v3", "googlenet"):
        options.update(aux_logits=False, init_weights=True)
    elif name.startswith("vit_"):
        options["image_size"] = image_size
    elif name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    try:
        model = TinyConvMixer(classes) if name == TINY else models.get_model(name, **options)
        # On the meta device only shapes are computed: a size that does not fit is found before any training.
        state = {key: tensor.to("meta") for key, tensor in (*model.named_parameters(), *model.named_buffers())}
        with torch.no_grad():
            functional_call(model.eval(), state, torch.empty(2, 3, image_size, image_size, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise InputError(f"{name} cannot take {image_size} px images ({reason}): try --image-size 224") from error
    return model.train()
