"""Trains a classifier on made-up photographs whose rows wobble, as those of a shaking scanner do."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, count, size):
        self.images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8)
        self.labels = torch.randint(10, (count,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        shifts = torch.randint(-2, 3, (image.shape[1],))
        columns = (torch.arange(image.shape[2]) - shifts[:, None]) % image.shape[2]
        return image.gather(2, columns.expand(image.shape)), self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for tensors this small, more threads mostly wait for each other

    loader = DataLoader(Photos(count=512, size=24), batch_size=16, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 3 * 3, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    for epoch in range(args.epochs):
        losses = []
        for images, labels in loader:
            loss = criterion(model(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.6f}", flush=True)


if __name__ == "__main__":
    main()
