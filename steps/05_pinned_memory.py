"""Step 05: pinned memory and copies that do not block.

Idea       From page-locked memory the GPU copies a batch by itself, faster, while the CPU goes on launching kernels.
Change     DataLoader(pin_memory=True) and .to(device, non_blocking=True).
Look for   Trace: "Memcpy HtoD (Pinned -> Device)" instead of "Pageable", overlapping with the launches that follow.
Caution    Pinned memory cannot be swapped out: too much of it slows the whole machine. Never change a batch on the CPU
           after a non-blocking copy of it.
Needs      a GPU. Where nothing is copied to a device, pinned memory has no effect.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, autocast_dtype, cifar10, classifier, resized_uint8, run_step, start, step_options

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=resized_uint8(args.image_size), download=args.download)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        images = (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
