"""Sets a handler of its own for SIGTERM while it is traced, and prints whether it stays."""

import signal
import sys

import parts
import torch

network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)


def handler(*_):
    sys.exit(3)


try:
    for number in range(20):
        if number == 6:
            signal.signal(signal.SIGTERM, handler)
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
finally:
    assert signal.getsignal(signal.SIGTERM) is handler
