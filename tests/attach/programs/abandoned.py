"""An optimizer that stepped three times at first and never again does not mark the steps."""

import parts
import torch

network, batches = parts.model(), parts.batches()
first, second = (kind(network.parameters(), lr=0.1) for kind in (torch.optim.Adagrad, torch.optim.SGD))
for optimizer, steps in ((first, 3), (second, 40)):
    for _ in range(steps):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
