"""Epochs of two steps: no window of three is without a new epoch."""

import parts
import torch

network, train = parts.model(), parts.loader(32)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(40):
    for inputs, labels in train:
        parts.loss(network, inputs, labels).backward()
        optimizer.step()
