"""The optimizer's step is compiled, so that nothing of it is seen; and the model."""

import parts
import torch

network = torch.compile(parts.model(), backend="eager")
batches = parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
