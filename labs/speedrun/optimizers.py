"""What moves the weights beyond torch's own: an average of the weights that they return to, and Muon."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan 2024: singular values come near 1 quickly, not exactly


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


class Muon(torch.optim.Optimizer):
    """Each convolution's step is made orthogonal: all its directions are of one length.

    Jordan 2024, "Muon: An optimizer for hidden layers in neural networks", as in his record on CIFAR-10: weights
    [out, in, size, size] count as matrices [out, in * size²], and are kept at the norm √out, as their scale does not
    matter before a batch norm. For convolutions only: the rest is left to another optimizer. `torch.optim.Muon` is for
    matrices.
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
