"""Speed run 07: an average of the weights.

Idea       While the learning rate is high, weights circle around where they should be: their average is nearer to it.
Change     Lookahead(model, steps): an exponential moving average, to which the weights return every 5 steps.
           One epoch fewer.
Look for   A better accuracy in the last epochs.
Caution    An average over too many steps is of weights that were still bad: its memory grows with the training. Batch
           norm's statistics are averaged, too, as others do not fit the averaged weights.
"""

from common import start
from labs.shared.training import rising_then_falling
from labs.speedrun.data import DeviceBatches, data_set
from labs.speedrun.model import Lookahead, resnet9, width_of
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
    lookahead = Lookahead(model, args.epochs * len(loader))

    def train_step(images, labels):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        lookahead.step()
        return loss

    return run_race(__file__, args, data, loader, train_step, [model, optimizer, schedule, lookahead])


if __name__ == "__main__":
    main()
