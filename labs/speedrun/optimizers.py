"""What moves the weights beyond torch's own: SGD with decoupled decay, Muon, Lookahead, and the one-cycle schedule."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan 2024: singular values come near 1 quickly, not exactly


def one_cycle(optimizer: torch.optim.Optimizer, steps: int, peak: float = 0.25) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate rises from 0 to the optimizer's own in that share of the steps, and falls to 0; both linearly.

    After Smith 2018, "A disciplined approach to neural network hyper-parameters". Beyond the last step it stays at 0.
    """

    def factor(step: int) -> float:
        done = min(1.0, (step + 1) / (steps + 1))
        return min(done / peak, (1 - done) / (1 - peak))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class DecoupledSGD(torch.optim.Optimizer):
    """SGD with Nesterov momentum, whose decay shrinks the weights and is no part of the gradient.

    Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization": momentum does not carry it on. A step shrinks
    weights by the factor 1 - lr * weight_decay.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, nesterov: bool = True
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            updates = [weight.grad for weight in weights]
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            if group["momentum"]:
                moments = [self.state[weight].setdefault("moment", torch.zeros_like(weight)) for weight in weights]
                torch._foreach_mul_(moments, group["momentum"])
                torch._foreach_add_(moments, updates)
                ahead = torch._foreach_add(updates, moments, alpha=group["momentum"])
                updates = ahead if group["nesterov"] else moments
            torch._foreach_add_(weights, updates, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Each convolution's step is made orthogonal: all its directions are of one length.

    Jordan 2024, "Muon: An optimizer for hidden layers in neural networks", as in his record on CIFAR-10: weights
    [out, in, size, size] count as matrices [out, in * size²], and are kept at the norm √out, as their scale does not
    matter before a batch norm. For convolutions only: the rest is left to another optimizer.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.6, steps: int = 3) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "steps": steps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                moment = self.state[weight].setdefault("moment", torch.zeros_like(weight))
                moment.mul_(group["momentum"]).add_(weight.grad)
                ahead = weight.grad.add(moment, alpha=group["momentum"])
                weight.mul_(len(weight) ** 0.5 / weight.norm().clamp(min=1e-7))
                update = orthogonal(ahead.flatten(1), group["steps"]).view(weight.shape)
                weight.add_(update, alpha=-group["lr"])


def orthogonal(matrix: torch.Tensor, steps: int = 3) -> torch.Tensor:
    """The matrix with its singular values near 1, by steps of a Newton-Schulz iteration; in bf16 on a GPU."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).to(matrix.dtype)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(weights of convolutions, all others) of those that are trained."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return [weight for weight in trained if weight.ndim == 4], [weight for weight in trained if weight.ndim != 4]


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
        torch._foreach_lerp_(self.slow, self.fast, 1 - kept)
        torch._foreach_copy_(self.fast, self.slow)

    def state_dict(self) -> dict[str, Any]:
        return {"slow": [value.clone() for value in self.slow], "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch._foreach_copy_(self.slow, state["slow"])
        self.done = state["done"]
