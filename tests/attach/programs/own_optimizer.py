"""An optimizer that is not torch's, as fastai's is not; ten steps in all."""

import parts
import torch


class Momentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self):
        for parameter, velocity in zip(self.parameters, self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity * 0.1)
            parameter.grad = None


network, batches = parts.model(), parts.batches()
optimizer = Momentum(network.parameters())
for _ in range(10):
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
