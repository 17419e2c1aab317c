"""The optimizer's step is called in a function that is compiled."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)


@torch.compile(backend="eager")
def update():
    optimizer.step()


for _ in range(60):
    optimizer.zero_grad()
    parts.loss(network, *next(batches)).backward()
    update()
