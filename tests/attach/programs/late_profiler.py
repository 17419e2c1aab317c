"""A profiler of its own starts while the steps are traced."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()


train(6)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    train(20)
