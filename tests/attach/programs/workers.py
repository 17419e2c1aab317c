"""Worker processes load, started by each method in turn."""

import parts
import torch

network = parts.model()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        for inputs, labels in parts.loader(num_workers=1, multiprocessing_context=method):
            parts.loss(network, inputs, labels).backward()
            optimizer.step()
