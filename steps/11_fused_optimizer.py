"""Step 11: a fused optimizer.

Idea       SGD reads and writes every weight, its gradient and its momentum: for a model of many small tensors, a kernel
           for each of them or, in torch's default on a GPU, a few for each kind of operation. Fused, all of it is one.
Change     SGD(fused=True). With fp16 it also checks gradients for infinities without reading the result back.
Look for   Trace: one "_fused_sgd_" for three "_foreach_…" (CPU: for hundreds); with fp16, no "aten::item" before it.
Caution    The work saved is per step, not per image: the smaller the batch, the more it matters.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, DeviceLoader, autocast_dtype, cifar10, classifier, run_step, start, step_options

import torch
from torch import nn
from torchvision.transforms.v2.functional import resize


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, download=args.download)
    loader = DeviceLoader(train_set, args.batch_size, device, args.seed)
    model = classifier(args.model, args.image_size).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = images.contiguous(memory_format=torch.channels_last)
        images = resize(images, [args.image_size] * 2, antialias=False)
        images = (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
