"""Step 14: compile normalisation and loss with the model.

Idea       Converting and normalising a batch is four kernels. Each reads and writes all of it in float32.
           Inside the compiled module they are one, with the conversion to autocast's dtype; so is the loss.
Change     One compiled module, from images to loss. The normalisation as one multiply-add, images * scale + bias.
Look for   Trace: aten::div, aten::sub and aten::_to_copy gone from the start of a step. Memory: a lower peak.
Caution    What is compiled must not read a tensor's value (.item(), an `if` on one): each such place splits the graph.
           Resizing stays outside: on a CPU the generated code for it is slower than torch's own.
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
    forward.compile()
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = images.contiguous(memory_format=torch.channels_last)
        images = resize(images, [args.image_size] * 2, antialias=False)
        loss = forward(images, labels)
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
