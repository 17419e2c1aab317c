"""Trains a classifier on the spectrograms of made-up sounds."""

import argparse
from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sounds(Dataset):
    def __init__(self, count, samples):
        self.sounds = torch.randn(count, samples)
        self.labels = torch.randint(10, (count,))
        self.window = torch.hann_window(512)
        self.spectrogram = lru_cache(maxsize=None)(self.compute)

    def __len__(self):
        return len(self.sounds)

    def compute(self, index):
        spectrum = torch.stft(self.sounds[index], 512, hop_length=128, window=self.window, return_complex=True)
        return nn.functional.avg_pool2d(spectrum.abs().log1p()[None], 4)

    def __getitem__(self, index):
        return self.spectrogram(index), self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for tensors this small, more threads mostly wait for each other

    loader = DataLoader(Sounds(count=512, samples=16000), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    for epoch in range(args.epochs):
        losses = []
        for spectrograms, labels in loader:
            loss = criterion(model(spectrograms), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.6f}", flush=True)


if __name__ == "__main__":
    main()
