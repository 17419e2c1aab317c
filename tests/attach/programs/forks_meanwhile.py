"""Forks a process that trains as well, while its own training is traced."""

import multiprocessing

import parts
import torch


def train(steps, at=None):
    network, batches = parts.model(), parts.batches()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(steps):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
        if step == at:
            process = multiprocessing.get_context("fork").Process(target=train, args=(20,))
            process.start()
            process.join()
    print(f"trained {steps} steps", flush=True)


torch.set_num_threads(1)
train(20, at=6)
