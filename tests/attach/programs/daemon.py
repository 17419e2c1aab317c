"""Trains in a daemon thread, which is stopped as the program ends: while it is traced."""

import atexit
import threading

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
traced, stop = threading.Event(), threading.Event()


def train():
    step = 0
    while not stop.is_set():
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
        step += 1
        if step == 6:
            traced.set()
            stop.wait(1.0)  # a step that takes long


def end():
    stop.set()
    thread.join()


atexit.register(end)
thread = threading.Thread(target=train, daemon=True)
thread.start()
traced.wait()
