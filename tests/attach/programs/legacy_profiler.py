"""A profiler of torch.autograd starts while the steps are traced."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for number in range(30):
    if number == 6:
        legacy = torch.autograd.profiler.profile().__enter__()
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
