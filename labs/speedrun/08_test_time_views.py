"""Speed run 08: test-time augmentation.

Idea       Show each test image several times, a little shifted and, where that is allowed, mirrored, and average the
           scores. A network that needs fewer epochs for the same accuracy is what a race is about.
Change     predict(): the mean of the scores of all `views`.
Look for   A better accuracy of the same weights. DAWNBench allowed it; a test takes as many times as long.
Caution    It moves work from training, which the clock sees, to testing, which it does not.
"""

from common import start
from labs.shared.training import rising_then_falling
from labs.speedrun.data import DeviceBatches, data_set, views
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

    def predict(images):
        return sum(model(view) for view in views(images, data.mirrors))

    return run_race(__file__, args, data, loader, train_step, [model, optimizer, schedule, lookahead], predict)


if __name__ == "__main__":
    main()
