"""Memory 05: compiled, with a budget for activations.

Idea       The compiler sees the whole graph: it chooses what to recompute so that as little work as possible is added.
Change     model.compile() with activation_memory_budget = 0.5: half of what it would keep by itself; no save_on_cpu.
Look for   Memory: a peak near 02's in less time; Trace: fused kernels that recompute on the fly.
Caution    The first step compiles. The setting is private to torch: its public prototype for a part of a model,
           torch.autograd.graph.region_activation_memory_budget, refuses one that updates buffers, as batch norm does.
"""

from common import autocast_dtype, cifar10, run_step, start, step_options
from labs.memory.data import augmented
from labs.memory.model import DEFAULTS, resnext

import torch
import torch._functorch.config
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args)

    train_set = cifar10(args.data, transform=augmented(args.image_size), download=args.download)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    model = resnext(args.model).to(device)
    torch._functorch.config.activation_memory_budget = 0.5
    model.compile()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)


if __name__ == "__main__":
    main()
