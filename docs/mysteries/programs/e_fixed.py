"""Trains a classifier on made-up table rows: 64 columns of categories, 32 different values in each."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS, VALUES, WIDTH = 64, 32, 16


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(COLUMNS * VALUES, WIDTH)  # the columns' tables, one below the other
        self.register_buffer("first", torch.arange(COLUMNS) * VALUES)
        self.layers = nn.Sequential(nn.Linear(COLUMNS * WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, rows):
        return self.layers(self.embedding(rows + self.first).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for tensors this small, more threads mostly wait for each other

    rows = TensorDataset(torch.randint(VALUES, (8192, COLUMNS)), torch.randint(2, (8192,)))
    loader = DataLoader(rows, batch_size=128, shuffle=True)
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    for epoch in range(args.epochs):
        losses = []
        for values, labels in loader:
            loss = criterion(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.6f}", flush=True)


if __name__ == "__main__":
    main()
