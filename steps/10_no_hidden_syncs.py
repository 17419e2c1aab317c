"""Step 10: no hidden synchronisation.

Idea       loss.item() looks harmless, but it waits until the GPU has done all that was launched. Then the GPU waits
           for the first kernels of the next step. Losses can stay on the device until somebody reads them.
Change     losses.append(loss.detach()).
Look for   Trace: no "aten::item", no "cudaStreamSynchronize" at the end of a step; the CPU runs ahead of the GPU.
Caution    print(loss), an `if` on a tensor, .cpu() and .tolist() wait as well. Read losses once per epoch, with
           torch.stack(losses).tolist(). With fp16, GradScaler still reads one number per step: see step 11.
Needs      a GPU. A CPU has the loss at once: there is nothing to wait for.
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
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
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
