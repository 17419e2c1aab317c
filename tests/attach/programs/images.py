"""Optimises one image after the other, each with an optimizer of its own, for five steps."""

import parts
import torch

network = parts.model().requires_grad_(False)
for _ in range(20):
    image = torch.randn(1, 8, requires_grad=True)
    optimizer = torch.optim.Adam([image], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        parts.loss(network, image, torch.zeros(1, dtype=torch.long)).backward()
        optimizer.step()
