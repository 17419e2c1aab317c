"""Thirty clients, each with a copy of the model, an optimizer and four batches of its own."""

import copy

import parts
import torch

server = parts.model()
for _ in range(30):
    client = copy.deepcopy(server)
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for inputs, labels in torch.utils.data.DataLoader(parts.data(16), 4):
        parts.loss(client, inputs, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    server.load_state_dict(client.state_dict())
