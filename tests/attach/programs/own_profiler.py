"""A profiler of its own runs all the time."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
with torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=1, active=1)) as profiler:
    for _ in range(30):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
        profiler.step()
