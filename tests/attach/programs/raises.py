"""Ends by an exception while the third step is traced."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for number in range(40):
    if number == 7:  # 4 of warm-up, 1 of the profiler's, 2 whole ones
        parts.loss(network, *next(batches)).backward()
        raise ValueError("the data are at an end")
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
