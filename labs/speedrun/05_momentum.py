"""Speed run 05: Nesterov momentum.

Idea       Momentum averages the gradients of many batches; Nesterov's looks one step ahead.
Change     torch.optim.SGD(momentum=0.9, nesterov=True). Two things belong to it: a lower rate, and fewer epochs, which
           were chosen with it (see data.py).
Look for   The accuracy after the same number of steps: the page has the curves for several values of --momentum, from
           0 on.
Caution    With momentum 0.9 a gradient counts ten times, so the learning rate has to be a tenth for that alone: compare
           with that, not with the same rate.
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
    model = resnet9(width_of(args.model), data.channels, data.classes).to(device)
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
