"""GradScaler skips every third step: its gradients are infinite."""

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for number in range(60):
    optimizer.zero_grad()
    loss = parts.loss(network, *next(batches))
    scaler.scale(loss * (float("inf") if number % 3 == 0 else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update(4.0)
