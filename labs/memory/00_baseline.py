"""Memory 00: the baseline: ResNeXt on CIFAR-10, float32, everything that the backward pass needs is kept.

Idea       Weights, gradients and Adam's two moments are 16 bytes per parameter, whatever the batch. Activations, what
           each operator keeps for the backward pass, grow with the batch, and soon are nearly all of the memory.
Change     Nothing yet. The stages are in `train_step` one by one, since the next programs treat each on its own.
Look for   Memory: a saw tooth per step: it rises through the forward pass, falls through the backward pass.
Caution    What is held at the peak is not what `nvidia-smi` shows, which adds the CUDA context and what torch reserves.
"""

from common import cifar10, run_step, start, step_options
from labs.memory.data import augmented
from labs.memory.model import DEFAULTS, resnext

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args)

    train_set = cifar10(args.data, transform=augmented(args.image_size), download=args.download)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    model = resnext(args.model).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        x = model.stem(images)
        for stage in model.stages:
            x = stage(x)
        loss = criterion(model.head(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step)


if __name__ == "__main__":
    main()
