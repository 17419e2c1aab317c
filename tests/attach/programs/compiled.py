"""The model is compiled, the optimizer is not."""

import parts
import torch

network = torch.compile(parts.model(), backend="eager")
batches = parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
