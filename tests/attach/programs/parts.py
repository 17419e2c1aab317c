"""What the small trainings share: a model of two layers, and data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def data(samples=64):
    return TensorDataset(torch.randn(samples, 8), torch.randint(2, (samples,)))


def loader(batch_size=4, **more):
    return DataLoader(data(), batch_size=batch_size, **more)


def loss(network, inputs, labels):
    return nn.functional.cross_entropy(network(inputs), labels)


def batches(**more):
    """Batches without an end."""
    source = loader(**more)
    while True:
        yield from source
