"""The whole step inside `optimizer.step(closure)`, by an optimizer whose class calls its base class's step."""

import parts
import torch


class Careful(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


network, batches = parts.model(), parts.batches()
optimizer = Careful(network.parameters())


def closure():
    optimizer.zero_grad()
    loss = parts.loss(network, *next(batches))
    loss.backward()
    return loss


for _ in range(30):
    optimizer.step(closure)
