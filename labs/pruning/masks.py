"""Which weights stay: masks by magnitude or at random, and fewer channels, which unlike a mask make layers smaller."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils import prune
from torchvision.models.mobilenetv2 import InvertedResidual

HOW = ("layer-wise", "global", "random")  # the first is what the study's grid is of
Masks = Mapping[str, torch.Tensor]  # {module: bool, the shape of its weight: True for what stays}


def prunable(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """{name: module} of all that has a weight matrix: convolutions and linear layers, no normalisation and no bias."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


def masks_of(model: nn.Module, share: float, how: str = HOW[0], seed: int = 0) -> dict[str, torch.Tensor]:
    """The `Masks` that leave out a share (0..1) of the weights of a model, which stays as it is.

    how: "layer-wise" leaves out the smallest weights of each layer, "global" the smallest of all, "random" any, drawn
    from `seed`. By magnitude, what is masked already is zero, so it is left out again.
    """
    layers = {name: _Layer(module.weight) for name, module in prunable(model).items()}
    weights = [(layer, "weight") for layer in layers.values()]
    if how == "layer-wise":
        for layer, name in weights:
            prune.l1_unstructured(layer, name, share)
    else:
        method = {"global": prune.L1Unstructured, "random": prune.RandomUnstructured}[how]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            prune.global_unstructured(weights, method, amount=share)
    return {name: layer.weight_mask.bool() for name, layer in layers.items()}  # pyright: ignore


class _Layer(nn.Module):
    """A copy of a layer's weight as it is now, masked or not, for `prune` to work on, on the CPU on any device."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().cpu().clone())


def apply(model: nn.Module, masks: Masks) -> None:
    """Mask a model's weights from now on: in each forward pass, so that those left out are zero and get no gradient."""
    for name, module in prunable(model).items():
        prune.custom_from_mask(module, "weight", masks[name].to(module.weight.device))


def remove(model: nn.Module) -> None:
    """Make masks permanent: weights are plain parameters again, those left out are zero. No mask, nothing happens."""
    for module in prunable(model).values():
        if prune.is_pruned(module):
            prune.remove(module, "weight")


def magnitudes(model: nn.Module, of: str) -> torch.Tensor:
    """The magnitudes of a model's numbers, float32 [N].

    of: "weights", those that can be pruned; "parameters", all that is trained; "pooled", all parameters and the
    running statistics of batch norm, which no pruning can remove.
    """
    tensors: Sequence[torch.Tensor] = [module.weight for module in prunable(model).values()]
    if of != "weights":
        tensors = list(model.parameters())
    if of == "pooled":
        statistics = [own for name, own in model.named_buffers() if name.endswith(("running_mean", "running_var"))]
        tensors = [*tensors, *statistics]
    return torch.cat([tensor.detach().float().abs().flatten().cpu() for tensor in tensors])


def threshold(values: torch.Tensor, share: float) -> float:
    """The value below which a share (0..1) of them lies; no interpolation, so it is one of them."""
    return values.sort().values[min(len(values) - 1, int(share * len(values)))].item()


def without_channels(model: nn.Module, share: float, judged: nn.Module | None = None) -> nn.Module:
    """A copy of a MobileNetV2, without a share (0..1) of the channels inside each block that expands.

    judged: the same network with the weights that decide which channels go, by default `model` itself. Those with the
    smallest L1 norm of their depthwise filter times the factor of its batch norm go; what leads to them and from them
    goes with them. What a block takes and gives stays as wide. At least one channel stays.
    """
    smaller = copy.deepcopy(model)
    for block, by in zip(smaller.modules(), (judged or model).modules(), strict=True):
        if isinstance(block, InvertedResidual) and len(block.conv) == 4:  # expand, depthwise, project, normalise
            parts, judges = cast(Any, block.conv), cast(Any, by).conv
            filters, norm = judges[1][0].weight, judges[1][1].weight
            scores = filters.detach().abs().sum((1, 2, 3)) * norm.detach().abs()
            count = max(1, round((1 - share) * len(scores)))
            kept = scores.topk(count).indices.sort().values
            for conv, norm, *_ in parts[:2]:
                conv.weight = nn.Parameter(conv.weight.detach()[kept])
                conv.out_channels = norm.num_features = count
                for name, values in norm.state_dict().items():
                    if values.ndim:  # all but the count of batches
                        setattr(norm, name, type(getattr(norm, name))(values[kept]))
            depthwise, project = parts[1][0], parts[2]
            depthwise.in_channels = depthwise.groups = project.in_channels = count
            project.weight = nn.Parameter(project.weight.detach()[:, kept])
    return smaller
