"""Step 12: let cuDNN measure which algorithm is fastest.

Idea       For each convolution cuDNN has several algorithms. By default it picks one by a heuristic; with benchmark on
           it times several of them, once for each new shape, and keeps the fastest.
Change     torch.backends.cudnn.benchmark = True.
Look for   GPU Kernel: other names among the convolutions, and less time in them; the first step takes longer.
Caution    Every new shape is measured again: batches that vary in size pay each time, hence drop_last. The choice may
           differ from run to run, and so may the last digits of a loss.
Needs      a GPU. On a CPU there is no cuDNN.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, DeviceLoader, autocast_dtype, cifar10, classifier, run_step, start, step_options

import torch
from torch import nn
from torchvision.transforms.v2.functional import resize


def main():
    args = step_options(__doc__)
    device = start(args)
    torch.backends.cudnn.benchmark = True

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
