"""Memory 03: selective checkpointing: convolutions are kept, the rest is recomputed.

Idea       Convolutions are nearly all of the work; what batch norm and ReLU keep is cheap to compute again.
Change     A context_fn from create_selective_checkpoint_contexts: outputs of convolutions are kept.
Look for   Memory: a peak between 00's and 02's; Trace: no convolution of the forward pass within the backward pass.
Caution    Every operator passes through Python (a dispatch mode) twice: small operators become slower.
"""

from functools import partial

from common import autocast_dtype, cifar10, run_step, start, step_options
from labs.memory.data import augmented
from labs.memory.model import DEFAULTS, resnext
from labs.memory.recompute import convolutions_kept

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
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
            for stage in model.stages:
                x = checkpoint(stage, x, use_reentrant=False, context_fn=partial(convolutions_kept, stage))
            loss = criterion(model.head(x), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)


if __name__ == "__main__":
    main()
