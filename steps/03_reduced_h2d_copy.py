"""Step 03: copy uint8 to the device instead of float32.

Idea       A pixel is one byte until it is converted to float32, which has four. Convert after the copy, not before it.
Change     The loader yields uint8; conversion to float and normalisation happen in the train step, on the device.
Look for   Overview: "Memcpy" shrinks; Trace: a shorter "Memcpy HtoD" at the start of each step.
Caution    Convert on the device before normalising, and only once: dividing by 255 twice still trains, badly.
No GPU     Nothing is copied to a device; what is saved then is only work in the main process.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, autocast_dtype, cifar10, classifier, resized_uint8, run_step, start, step_options

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=resized_uint8(args.image_size), download=args.download)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
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
