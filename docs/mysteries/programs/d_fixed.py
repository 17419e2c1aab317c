"""Trains a deep, narrow classifier on made-up measurements; a step with an infinite gradient is left out."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for tensors this small, more threads mostly wait for each other

    measurements = TensorDataset(torch.rand(4096, 32), torch.randint(10, (4096,)))
    loader = DataLoader(measurements, batch_size=32, shuffle=True)
    layers = []
    for _ in range(32):
        layers += [nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    for epoch in range(args.epochs):
        losses = []
        for values, labels in loader:
            loss = criterion(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
            if norm.isfinite():
                optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.6f}", flush=True)


if __name__ == "__main__":
    main()
