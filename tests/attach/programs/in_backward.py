"""An optimizer for each parameter, which steps in a hook of the backward pass."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in network.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in network.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for _ in range(60):
    parts.loss(network, *next(batches)).backward()
