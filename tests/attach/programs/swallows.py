"""Catches everything, SystemExit too."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(40):
    try:
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
    except BaseException:
        continue
