"""A `while True` loop without a DataLoader, which evaluates and saves every sixth step, as language models do."""

import io

import parts
import torch

network = parts.model()
optimizer = torch.optim.AdamW(network.parameters())
number = 0
while True:
    if number % 6 == 0:
        network.eval()
        with torch.no_grad():
            for _ in range(20):
                network(torch.randn(4, 8))
        network.train()
        torch.save(network.state_dict(), io.BytesIO())
    inputs, labels = torch.randn(4, 8), torch.randint(2, (4,))
    parts.loss(network, inputs, labels).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    number += 1
    if number > 60:
        break
