"""Speed run 06: channels last.

Idea       Tensor Cores read the channels of a pixel together, so images are best stored that way; in torch's own order
           every convolution converts them, there and back.
Change     The network in memory_format=torch.channels_last; batches come in it already.
Look for   Trace: no layout conversions (nchwToNhwc) around convolutions.
Caution    What copies a tensor may change its layout back. On a CPU it depends on the library which order is faster.
"""

from common import start
from labs.shared.training import rising_then_falling
from labs.speedrun.data import DeviceBatches, data_set
from labs.speedrun.model import resnet9, width_of
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device)
    model = resnet9(width_of(args.model), data.channels, data.classes).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    momentum = args.momentum
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum, nesterov=momentum > 0, weight_decay=5e-4)
    schedule = rising_then_falling(optimizer, args.epochs * len(loader), rising=0.25)

    def train_step(images, labels):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    return run_race(__file__, args, data, loader, train_step, [model, optimizer, schedule])


if __name__ == "__main__":
    main()
