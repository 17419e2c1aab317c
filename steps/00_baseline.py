"""Step 00: the baseline, a plain training loop with nothing done for speed.

Idea       Have something true to compare with: fp32 in full, images prepared in the main process, one batch at a time.
Change     None yet. `start` seeds torch and switches off TF32, which cuDNN uses in "fp32" from Ampere on. `run_step`
           times the loop, then traces three steps: torch.profiler's lines are `trace_steps` in common/tracing.py.
Look for   Overview: GPU Utilization low, "DataLoader" a large part of the step time; GPU Kernel: Tensor Cores at 0 %.
Caution    Not every step helps on every machine. Measure before you keep a change.
"""

from common import cifar10, classifier, resized_float, run_step, start, step_options

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=resized_float(args.image_size), download=args.download)
    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    run_step(__file__, args, loader, train_step)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
