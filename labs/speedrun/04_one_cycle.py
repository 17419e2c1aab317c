"""Speed run 04: one cycle of the learning rate.

Idea       A high learning rate learns fast and cannot settle, a low one settles and takes forever: first rise to a rate
           many times as high, then fall to 0, in a number of epochs that is known beforehand.
Change     rising_then_falling(): the rate rises over a quarter of all steps, then falls to 0. Fewer epochs, a higher
           rate.
Look for   The accuracy: low while the rate is high, then it jumps within the last epochs.
Caution    It reaches nothing before its end: cut off in the middle, it is worse than a constant rate. The number of
           epochs is part of the method, and was chosen on images held out from the training part.
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
    optimizer = torch.optim.SGD(model.parameters(), args.lr, weight_decay=5e-4)
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
