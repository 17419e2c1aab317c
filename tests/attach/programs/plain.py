"""Epochs of 16 steps, each with a validation."""

import parts
import torch

network, train, valid = parts.model(), parts.loader(), parts.loader(16)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(4):
    network.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        parts.loss(network, inputs, labels).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        for inputs, _ in valid:
            network(inputs)
    scheduler.step()
