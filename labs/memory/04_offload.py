"""Memory 04: activations are moved to the host.

Idea       Recompute nothing: copy what the stages keep to main memory, and back when the backward pass needs it.
Change     save_on_cpu(pin_memory=True) around the stages, in place of checkpointing.
Look for   Memory: a peak below 02's; Trace: the copy engine busy all the time, the kernels waiting for it.
Caution    It pays where the bus is faster than recomputing; without pinned memory every copy waits.
No GPU     What the stages keep is in main memory already, so nothing is moved.
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
            with torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda"):
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
