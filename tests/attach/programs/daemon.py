"""Trains in a daemon thread, and ends while that is traced."""

import threading

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
traced = threading.Event()


def train():
    for step in range(10**6):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
        if step == 5:
            traced.set()
            threading.Event().wait(1.0)  # a step that takes long


threading.Thread(target=train, daemon=True).start()
traced.wait()
