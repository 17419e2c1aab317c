"""Trains each epoch in a thread of its own, which ends while it is traced."""

import threading

import parts
import torch

network = parts.model()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
loader = parts.loader(batch_size=8)


def epoch():
    for inputs, labels in loader:
        optimizer.zero_grad()
        parts.loss(network, inputs, labels).backward()
        optimizer.step()


for _ in range(5):
    thread = threading.Thread(target=epoch)
    thread.start()
    thread.join()
