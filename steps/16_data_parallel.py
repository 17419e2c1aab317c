"""Step 16: several processes train together, each on its own GPU.

Idea       Each process trains on its own share of the data, and the gradients are averaged after every backward pass:
           one model, a batch as many times as large. DDP sends each bucket of gradients while the rest is computed.
Change     DistributedDataParallel, with torchrun --nproc-per-node 2 steps/16_data_parallel.py (one process per GPU).
Look for   A trace per rank: `explain` on the run's folder shows them together; Distributed view: how much of the time
           the ranks communicate, and how much of that is hidden behind computing.
Caution    Compile the module, then wrap it: a compiled function that calls a wrapped model is three graphs. For the
           learning rate the batches of all processes count. Never save or evaluate on rank 0 while others wait for it.
Needs      a second process. One alone trains as step 15 does.
"""

import os

from common import CIFAR10_MEAN, CIFAR10_STD, DeviceLoader, autocast_dtype, cifar10, classifier, run_step, start, step_options

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.transforms.v2.functional import resize


class ImagesToLoss(nn.Module):
    def __init__(self, model, scale, bias, amp_dtype):
        super().__init__()
        self.model, self.criterion = model, nn.CrossEntropyLoss()
        self.scale, self.bias, self.amp_dtype = scale, bias, amp_dtype

    def forward(self, images, labels):
        with torch.autocast(images.device.type, self.amp_dtype, enabled=self.amp_dtype != torch.float32):
            return self.criterion(self.model(images * self.scale + self.bias), labels)


def main():
    args = step_options(__doc__)
    device = start(args)
    torch.backends.cudnn.benchmark = True
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun's

    train_set = cifar10(args.data, download=args.download)
    loader = DeviceLoader(train_set, args.batch_size, device, args.seed, rank, world_size)
    model = classifier(args.model, args.image_size).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    forward = ImagesToLoss(model, 1 / (255 * std), -mean / std, amp_dtype)
    forward.compile(mode="reduce-overhead")
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        forward = DistributedDataParallel(forward, gradient_as_bucket_view=True)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = images.contiguous(memory_format=torch.channels_last)
        images = resize(images, [args.image_size] * 2, antialias=False)
        loss = forward(images, labels).clone()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
