"""Step 01: automatic mixed precision.

Idea       Convolutions and matrix products in 16 bits run on Tensor Cores and keep activations of half the size.
Change     torch.autocast around forward and loss: bf16 where the GPU has it, otherwise fp16 with a GradScaler.
Look for   GPU Kernel: Tensor Cores no longer at 0 %; Memory: a lower peak; Overview: less "Kernel" time per step.
Caution    fp16 needs the scaler: small gradients underflow to zero without it.
Needs      bf16 units (fp16 on older GPUs). On most CPUs bf16 is slower than fp32, without its instructions many times:
           there autocast is on only with AMX.
"""

from common import autocast_dtype, cifar10, classifier, resized_float, run_step, start, step_options

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
