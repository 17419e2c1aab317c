"""Memory 01: half precision.

Idea       Activations of 16 bits take half the memory, and Tensor Cores multiply them several times as fast.
Change     torch.autocast in bf16; in fp16 where the GPU has no bf16, with gradients scaled so that none underflows.
Look for   Memory: a lower peak, not half of it: weights, gradients, moments and what batch norm computes stay float32.
Caution    Without scaling, small gradients become 0 in fp16. On a CPU without AMX autocast stays off: a note says so.
"""

from common import autocast_dtype, cifar10, run_step, start, step_options
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
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            x = model.stem(images)
            for stage in model.stages:
                x = stage(x)
            loss = criterion(model.head(x), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)


if __name__ == "__main__":
    main()
