"""Two trainings one after the other; the first ends while it is traced."""

import parts
import torch

for steps in (6, 60):
    network, batches = parts.model(), parts.batches()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
