"""The optimizer is made anew in each epoch of three steps."""

import parts
import torch

network, batches = parts.model(), parts.batches()
for _ in range(30):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
