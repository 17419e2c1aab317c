"""Speed run 00: a naive residual network, trained as it is written down first.

Idea       The time to a given accuracy is what counts: how fast a step is, and how many of them it takes.
Change     None yet: every image is prepared in Python, one by one; SGD without momentum, with weight
           decay and a learning rate that stays; fp32.
Look for   Overview: "DataLoader" in the step time. `--cprofile naive.prof`: many calls for every image.
Caution    The target is reached when a test after an epoch first says so, as in DAWNBench: that is optimistic, as
           the next epoch may be below it again. The accuracy after the last epoch is reported, too.
"""

from common import start
from labs.speedrun.data import OneByOne, data_set
from labs.speedrun.model import naive_resnet, width_of
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    size = args.image_size

    data = data_set(args)
    transform = transforms.Compose([
        transforms.ToPILImage(),
        transforms.Resize((size, size)),
        transforms.RandomCrop(size, padding=size // 8, padding_mode="reflect"),
        transforms.RandomHorizontalFlip(0.5 if data.mirrors else 0),
        transforms.ToTensor(),
        transforms.Normalize(data.mean, data.std),
        transforms.RandomErasing(1, scale=(1 / 16, 1 / 16), ratio=(1, 1)),
    ])
    loader = DataLoader(OneByOne(data, transform), args.batch_size, shuffle=True, drop_last=True)
    model = naive_resnet(width_of(args.model), data.channels, data.classes).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, weight_decay=5e-4)

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return run_race(__file__, args, data, loader, train_step, [model, optimizer])


if __name__ == "__main__":
    main()
