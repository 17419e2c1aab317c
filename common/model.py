"""The one model that every step trains: any torchvision classifier, with random weights."""

import difflib
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torchvision import models

from common.errors import InputError


def classifier(name: str = "mobilenet_v2", image_size: int = 224, classes: int = 10) -> nn.Module:
    """torchvision's classifier of that name, weights random, for float images [N, 3, image_size, image_size].

    Its output is [N, classes] in training too: Inception's and GoogLeNet's auxiliary outputs are left off.
    Raises InputError for an unknown name and for an image size that the model cannot take.
    """
    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"torchvision has {len(known)}, from {known[0]} on"
        raise InputError(f"unknown model {name!r}: {hint}")
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name in ("inception_v3", "googlenet"):
        options.update(aux_logits=False, init_weights=True)
    elif name.startswith("vit_"):
        options["image_size"] = image_size
    elif name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    try:
        model = models.get_model(name, **options)
        # On the meta device only shapes are computed: a size that does not fit is found before any training.
        state = {key: tensor.to("meta") for key, tensor in (*model.named_parameters(), *model.named_buffers())}
        with torch.no_grad():
            functional_call(model.eval(), state, torch.empty(2, 3, image_size, image_size, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise InputError(f"{name} cannot take {image_size} px images ({reason}): try --image-size 224") from error
    return model.train()
