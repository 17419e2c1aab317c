"""Eight backward passes per step."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.AdamW(network.parameters())
for _ in range(30):
    for _ in range(8):
        (parts.loss(network, *next(batches)) / 8).backward()
    optimizer.step()
    optimizer.zero_grad()
