"""LBFGS runs the model several times in each step, in a closure."""

import parts
import torch

network, batches = parts.model(), parts.batches(batch_size=32)
optimizer = torch.optim.LBFGS(network.parameters(), max_iter=20)
for _ in range(20):
    inputs, labels = next(batches)

    def closure(inputs=inputs, labels=labels):
        optimizer.zero_grad()
        loss = parts.loss(network, inputs, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
