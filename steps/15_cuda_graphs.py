"""Step 15: CUDA graphs.

Idea       The CPU needs some microseconds to launch a kernel. Where kernels are shorter than that, the GPU waits.
           A CUDA graph records the launches once and replays them with a single call.
Change     forward.compile(mode="reduce-overhead").
Look for   Trace: "cudaGraphLaunch" in place of hundreds of "cudaLaunchKernel"; the gaps between kernels close.
Caution    It matters only where launches are the limit: small models, small batches, fast GPUs. A graph keeps memory of
           its own, needs fixed shapes, and its outputs are overwritten by the next replay: hence .clone().
Needs      a GPU. On a CPU there are no launches to save, and the mode compiles as the default does.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, DeviceLoader, autocast_dtype, cifar10, classifier, run_step, start, step_options

import torch
from torch import nn
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

    train_set = cifar10(args.data, download=args.download)
    loader = DeviceLoader(train_set, args.batch_size, device, args.seed)
    model = classifier(args.model, args.image_size).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    forward = ImagesToLoss(model, 1 / (255 * std), -mean / std, amp_dtype)
    forward.compile(mode="reduce-overhead")
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


if __name__ == "__main__":
    main()
