"""Step 09: channels last.

Idea       Tensor Cores want the channels of a pixel side by side (NHWC). Where images and weights have that layout,
           no kernels are needed that convert it before a convolution and back after it.
Change     The model and the images in memory_format=torch.channels_last; shapes stay [N, C, H, W]. On a GPU depthwise
           convolutions in bf16 or float32 then run cuDNN's kernels; in NCHW they run PyTorch's own.
Look for   GPU Kernel: "nchwToNhwc" and "nhwcToNchw" gone; Trace: fewer kernels per convolution.
Caution    A layer that supports only NCHW converts everything twice. Convert images after the copy, not before: on
           the device, still uint8, they are a quarter of float32's bytes.
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
        losses.append(loss.item())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
