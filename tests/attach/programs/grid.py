"""A grid search: twelve trainings of six steps, of models of different widths."""

import parts
import torch
from torch import nn

for width in range(8, 32, 2):
    network = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(network.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(6):
        parts.loss(network, torch.randn(16, 8), torch.randint(2, (16,))).backward()
        optimizer.step()
        scheduler.step()
