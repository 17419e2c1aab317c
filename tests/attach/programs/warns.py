"""Its DataLoaders warn: of the length of their data, of too many workers, of memory that cannot be pinned."""

import os

import parts
import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __len__(self):
        return 6

    def __iter__(self):
        return iter(parts.data(8))

    def __repr__(self):
        return "a stream"


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
network = parts.model()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
stream = DataLoader(Stream())
assert len(stream) == 6
loaders = stream, parts.loader(num_workers=2, pin_memory=not torch.cuda.is_available(), persistent_workers=True)
for _ in range(2):
    for loader in loaders:
        for inputs, labels in loader:
            parts.loss(network, inputs, labels).backward()
            optimizer.step()
