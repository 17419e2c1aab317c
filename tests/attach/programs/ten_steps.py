"""Ten steps in all, then an evaluation."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(10):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
network.eval()
with torch.no_grad():
    network(torch.randn(64, 8))
