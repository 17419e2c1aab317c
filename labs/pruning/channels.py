"""Channel pruning: what a mask only sets to zero is taken out, so that layers are smaller, and faster."""

import copy

import torch
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual


def without_channels(model: nn.Module, share: float, judged: nn.Module | None = None) -> nn.Module:
    """A copy of a `small_mobilenet`, without a share (0..1) of the channels inside each block that expands.

    judged: the same network with the weights that decide which channels go, by default `model` itself. Those with the
    smallest L1 norm of their depthwise filter times the factor of its batch norm go; what leads to them and from them
    goes with them. What a block takes and gives stays as wide. At least one channel stays.
    """
    smaller = copy.deepcopy(model)
    pairs = list(zip(smaller.modules(), (judged or model).modules(), strict=True))
    for block, by in pairs:
        if isinstance(block, InvertedResidual) and len(block.conv) == 4:  # expand, depthwise, project, normalise
            expand, depthwise, project, _ = block.conv
            filters, norm = by.conv[1][0].weight, by.conv[1][1].weight  # pyright: ignore
            scores = filters.detach().abs().sum((1, 2, 3)) * norm.detach().abs()
            count = max(1, round((1 - share) * len(scores)))
            kept = scores.topk(count).indices.sort().values
            expand[0] = _like(expand[0], expand[0].in_channels, count, 1, expand[0].weight[kept])
            expand[1] = _chosen_norm(expand[1], kept)
            depthwise[0] = _like(depthwise[0], count, count, count, depthwise[0].weight[kept])
            depthwise[1] = _chosen_norm(depthwise[1], kept)
            block.conv[2] = _like(project, count, project.out_channels, 1, project.weight[:, kept])
    return smaller


def _like(of: nn.Conv2d, inputs: int, outputs: int, groups: int, weight: torch.Tensor) -> nn.Conv2d:
    """A convolution of other channels and weights, else the same."""
    conv = nn.Conv2d(
        inputs, outputs, of.kernel_size, of.stride, of.padding, groups=groups, bias=False,  # pyright: ignore
        device=weight.device,
    )  # fmt: skip
    with torch.no_grad():
        conv.weight.copy_(weight)
    return conv


def _chosen_norm(of: nn.BatchNorm2d, kept: torch.Tensor) -> nn.BatchNorm2d:
    """Batch norm of those channels alone, its statistics too."""
    norm = nn.BatchNorm2d(len(kept), of.eps, of.momentum, device=kept.device)
    state = {name: value if value.ndim == 0 else value[kept] for name, value in of.state_dict().items()}
    norm.load_state_dict(state)
    return norm
