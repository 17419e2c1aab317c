"""Speed run 02: data and augmentation on the device.

Idea       A random crop of a whole epoch is one indexing operation; image by image it is thousands of Python calls.
Change     DeviceBatches: the data set moves to the device once, and an epoch is shifted, mirrored and cut out there.
Look for   Trace: no copy to the device, no DataLoader. `--cprofile`: the calls of an epoch are those of the network.
Caution    Images that are mirrored alternate: a random half in one epoch, the other half in the next. Digits are not
           mirrored at all, since a mirrored digit is another sign. Moving the data is on the race's clock here.
"""

from common import start
from labs.speedrun.data import DeviceBatches, data_set
from labs.speedrun.model import naive_resnet, width_of
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device)
    model = naive_resnet(width_of(args.model), data.channels, data.classes).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, weight_decay=5e-4)

    def train_step(images, labels):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return run_race(__file__, args, data, loader, train_step, [model, optimizer])


if __name__ == "__main__":
    main()
