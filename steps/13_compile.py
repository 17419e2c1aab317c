"""Step 13: compile the model.

Idea       Between convolutions the model adds, scales and clips: small kernels that read and write whole tensors.
           torch.compile generates kernels that do several such operations in one pass, and fewer are launched.
Change     model.compile(), in torch.compile's default mode. The module stays itself: state_dict keeps its keys.
Look for   Trace: "Torch-Compiled Region" and kernels called triton_…, fewer of them; Memory: a lower peak.
Caution    The first step compiles, maybe for minutes: it is in no window, and cached on disk for the next run. A second
           batch size compiles again, for any size: hence drop_last. Needs a C++ compiler (CPU) or a C compiler (GPU).
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
    model.compile()
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
