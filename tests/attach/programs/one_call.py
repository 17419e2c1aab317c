"""All of a training is one step of LBFGS: an image, or a physical field, is optimised so."""

import parts
import torch

network, batches = parts.model(), parts.batches(batch_size=64)
inputs, labels = next(batches)
optimizer = torch.optim.LBFGS(network.parameters(), max_iter=60, tolerance_grad=0, tolerance_change=0)


def closure():
    optimizer.zero_grad()
    loss = parts.loss(network, inputs, labels)
    loss.backward()
    return loss


optimizer.step(closure)
