"""Step 02: a bigger batch.

Idea       Launching a kernel costs the same for 32 images as for 128; a bigger batch gives every launch more to do.
Change     batch_size=args.batch_size, 128 by default.
Look for   Memory: a peak about four times as high; Trace: longer kernels, smaller gaps. Compare images/s: GPU
           Utilization rises where waits per image shrink by a larger factor than kernels, and falls where kernels do.
Caution    Memory is the limit, and a bigger batch means fewer optimizer steps per epoch: accuracy may need another
           learning rate.
"""

from common import autocast_dtype, cifar10, classifier, resized_float, run_step, start, step_options

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=resized_float(args.image_size), download=args.download)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
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
