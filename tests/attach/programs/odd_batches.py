"""Batches are objects of the program's own, and lists of images; a sampler's length may have effects."""

import parts
import torch


class Batch(dict):
    __getattr__ = dict.__getitem__


class Sampler(torch.utils.data.BatchSampler):
    def __len__(self):
        raise RuntimeError("nobody else asks for this")


data = parts.data()
sampler = Sampler(torch.utils.data.SequentialSampler(data), 2, drop_last=True)
network = parts.model()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for collate in (lambda rows: Batch(rows=rows), lambda rows: tuple(zip(*rows, strict=True))):
    for batch in torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=collate):
        rows = batch.rows if isinstance(batch, Batch) else list(zip(*batch, strict=True))
        inputs, labels = (torch.stack(column) for column in zip(*rows, strict=True))
        parts.loss(network, inputs, labels).backward()
        optimizer.step()
