"""Gradient noise: how much a batch's gradient varies from batch to batch, by how the batches are made.

The mean over an epoch is the same either way, since every text comes once; what differs is how far one batch's gradient
is from it. Batches of equal size, at the same weights, without dropout, so that nothing but the choice of texts varies.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.options import StepOptions
from labs.transformer.batches import UniformLengthBatches
from labs.transformer.quality import RANDOM, VARIANTS, training_for
from labs.transformer.training import Training

import torch


@dataclass(frozen=True)
class Plan:
    """tokens: real ones that are trained first, from random batches. batches: of each kind."""

    tokens: int
    batches: int


PLANS = {True: Plan(tokens=10_000, batches=24), False: Plan(tokens=200_000, batches=100)}  # by --quick


def measured(options: StepOptions, seed: int) -> dict[str, Any]:
    """{"random": variance, "uniform": variance, "squared_norm": of the mean gradient} after training from a seed.

    squared_norm: without the part of it that the noise of so many batches is; None where nothing else is left.
    """
    plan = PLANS[options.quick]
    training = training_for(options, VARIANTS[RANDOM], seed)
    training.until(plan.tokens)
    size, train = training.settings.batch_size, training.sets["train"]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator).tolist()
    uniform = UniformLengthBatches(train.lengths, size, generator).batches()
    random = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    random = random[: plan.batches]
    of_random, mean = variance(training, random)
    squared_norm = mean.square().sum().item() - of_random / len(random)
    return {
        "random": of_random,
        "uniform": variance(training, uniform[: plan.batches])[0],
        "squared_norm": squared_norm if squared_norm > 0 else None,
    }


def variance(training: Training, batches: Iterable[list[int]]) -> tuple[float, torch.Tensor]:
    """(The summed variance of all parameters' gradients over batches of text numbers, the mean gradient).

    Unbiased: squared distances from the mean, over one less than there are batches.
    """
    training.model.eval()
    total = squares = torch.zeros((), dtype=torch.float64, device=training.device)
    count = 0
    for numbers in batches:
        training.optimizer.zero_grad()
        training.loss_of(*training.padded([training.sets["train"][number] for number in numbers])).backward()
        gradient = torch.cat(
            [parameter.grad.flatten() for parameter in training.model.parameters() if parameter.grad is not None]
        ).double()
        total, squares, count = total + gradient, squares + gradient.square().sum(), count + 1
    training.model.train()
    mean = total / count
    return ((squares - count * mean.square().sum()) / (count - 1)).item(), mean
