"""Ends by os._exit while it is traced."""

import os

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(6):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
os._exit(5)
