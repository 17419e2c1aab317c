"""Trains in another thread than the main one, as some frameworks do."""

import threading

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
stop = threading.Event()


def train():
    for _ in range(600):
        if not stop.is_set():
            parts.loss(network, *next(batches)).backward()
            optimizer.step()


thread = threading.Thread(target=train)
thread.start()
try:
    thread.join()
finally:
    stop.set()
