"""An optimizer that has no hash before its constructor has ended, and a data set whose `==` is no truth value."""

import parts
import torch
from torch.utils.data import DataLoader


class Named(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.name = "named"

    def __hash__(self):
        return hash(self.name)


network = parts.model()
optimizer = Named(network.parameters())
for _ in range(3):
    for inputs in DataLoader(torch.randn(64, 8), batch_size=4):
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
