"""Speed run 08: an average of the weights.

Idea       While the learning rate is high, weights circle around where they should be: their average is nearer to it.
Change     Lookahead(model, steps): an exponential moving average, to which the weights return every 5 steps.
           One epoch fewer.
Look for   A better accuracy in the last epochs.
Caution    An average over too many steps is of weights that were still bad: its memory grows with the training. Batch
           norm's statistics are averaged, too, as others do not fit the averaged weights.
"""

from common import start
from labs.shared.training import rising_then_falling
from labs.speedrun.augment import DeviceBatches, cutout_of, shift_of
from labs.speedrun.data import data_set
from labs.speedrun.model import resnet9, width_of
from labs.speedrun.optimizers import Lookahead
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    size = args.image_size

    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device, shift=shift_of(size), cutout=cutout_of(size))
    model = resnet9(width_of(args.model), data.channels, data.classes)
    model = model.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
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
