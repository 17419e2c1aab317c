"""Trains a classifier on made-up photographs, which lie in memory as JPEG files."""

import argparse
from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_jpeg, encode_jpeg


class Photos(Dataset):
    def __init__(self, count, size):
        small = torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8)
        images = nn.functional.interpolate(small, (size, size), mode="bilinear")
        self.files = [encode_jpeg(image) for image in images]
        self.labels = torch.randint(10, (count,))
        self.decoded = lru_cache(self.decode)

    def __len__(self):
        return len(self.files)

    def decode(self, index):
        image = decode_jpeg(self.files[index])
        return nn.functional.interpolate(image[None], (64, 64), mode="bilinear", antialias=True)[0]

    def __getitem__(self, index):
        return self.decoded(index), self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for tensors this small, more threads mostly wait for each other

    loader = DataLoader(Photos(count=512, size=256), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
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
