"""Step 10: the data set on the device.

Idea       50,000 images of 3 x 32 x 32 bytes are 154 MB, which fits on a GPU. Then it shuffles and resizes them
           itself, a batch at a time, and there is no copy and no worker any more.
Change     DeviceLoader(train_set, …) instead of the DataLoader: torch.randperm and torchvision's resize, on the device.
Look for   Trace: no "Memcpy HtoD" and no DataLoader; a few kernels that pick and resize the batch. Memory: 154 MB more.
Caution    It works for data that fits and for transforms that the device can do. Its resize rounds differently from
           PIL's, by at most 1 of 255, and it shuffles in another order.
No GPU     The data is in memory already; images are resized a batch at a time, without PIL and without workers.
"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # finds `common` from any folder, installed or not

from common.data import CIFAR10_MEAN, CIFAR10_STD, cifar10
from common.device import autocast_dtype
from common.errors import one_line_errors
from common.loaders import DeviceLoader
from common.model import classifier
from common.options import step_options
from common.session import run_step


@one_line_errors()
def main():
    args = step_options(__doc__, __file__)
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    train_set = cifar10(args.data, download=args.download)
    loader = DeviceLoader(train_set, args.batch_size, args.image_size, device, args.seed)
    model = classifier(args.model, args.image_size).to(device, memory_format=torch.channels_last)
    model = torch.compile(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = images.contiguous(memory_format=torch.channels_last)
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
