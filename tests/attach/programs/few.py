"""Three steps."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(3):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
