"""Eighteen steps, of which each third one validates."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.RMSprop(network.parameters())
for number in range(1, 19):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
    if number % 3 == 0:
        network.eval()
        with torch.no_grad():
            network(torch.randn(64, 8))
        network.train()
