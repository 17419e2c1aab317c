"""Which weights stay: masks by magnitude, over all layers or within each, or at random; and magnitudes by quantile."""

from collections.abc import Mapping, Sequence

from labs.pruning.model import prunable

import torch
from torch import nn
from torch.nn.utils import prune

HOW = ("layer-wise", "global", "random")  # the first is what the grid is of
Masks = Mapping[str, torch.Tensor]  # {module: bool, the shape of its weight: True for what stays}


def masks_of(model: nn.Module, share: float, how: str = HOW[0], seed: int = 0) -> dict[str, torch.Tensor]:
    """The `Masks` that leave out a share (0..1) of the weights of a model, which stays as it is.

    how: "layer-wise" leaves out the smallest weights of each layer, "global" the smallest of all, "random" any, drawn
    from `seed`. By magnitude, what is masked already is zero, so it is left out again.
    """
    layers = {name: _Layer(module.weight) for name, module in prunable(model).items()}  # pyright: ignore
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


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """bool, as large as `weight` [out, in]: of each four neighbours in a row True for the two largest in magnitude."""
    groups = weight.detach().abs().reshape(-1, 4)
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(1, groups.topk(2).indices, True).view_as(weight)


def apply(model: nn.Module, masks: Masks) -> None:
    """Mask a model's weights from now on: in each forward pass, so that those left out are zero and get no gradient."""
    for name, module in prunable(model).items():
        prune.custom_from_mask(module, "weight", masks[name].to(module.weight.device))  # pyright: ignore


def remove(model: nn.Module) -> None:
    """Make masks permanent: weights are plain parameters again, those left out are zero. No mask, nothing happens."""
    for module in prunable(model).values():
        if prune.is_pruned(module):
            prune.remove(module, "weight")


def emptied(masks: Masks) -> int:
    """How many layers have no weight left: what comes out of them does not depend on what goes in."""
    return sum(not mask.any() for mask in masks.values())


def magnitudes(model: nn.Module, of: str) -> torch.Tensor:
    """The magnitudes of a model's numbers, float32 [N].

    of: "weights", those that can be pruned; "parameters", all that is trained; "pooled", all parameters and the
    running statistics of batch norm, which no pruning can remove.
    """
    tensors: Sequence[torch.Tensor] = [module.weight for module in prunable(model).values()]  # pyright: ignore
    if of != "weights":
        tensors = list(model.parameters())
    if of == "pooled":
        tensors = [*tensors, *running_statistics(model)]
    return torch.cat([tensor.detach().float().abs().flatten().cpu() for tensor in tensors])


def running_statistics(model: nn.Module) -> list[torch.Tensor]:
    """Means and variances that batch norm has seen; not its count of batches."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith(("running_mean", "running_var"))]


def threshold(values: torch.Tensor, share: float) -> float:
    """The value below which a share (0..1) of them lies; no interpolation, so it is one of them."""
    return values.sort().values[min(len(values) - 1, int(share * len(values)))].item()
