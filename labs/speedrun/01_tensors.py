"""Speed run 01: images are tensors from the start.

Idea       Decoding, enlarging and normalising an image gives the same result in every epoch, so do it once, for all.
Change     The data set is prepared as one tensor; what is random is done on tensors, still image by image.
Look for   Overview: less "DataLoader". `--cprofile`: the calls of PIL and of ToTensor are gone, those of
           RandomCrop and RandomErasing are left.
Caution    All images have to fit into memory: 600 MB as float32 for CIFAR-10. The clock of a race sees only the
           training, so what is prepared before it is not on it.
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
        transforms.RandomCrop(size, padding=size // 8, padding_mode="reflect"),
        transforms.RandomHorizontalFlip(0.5 if data.mirrors else 0),
        transforms.RandomErasing(1, scale=(1 / 16, 1 / 16), ratio=(1, 1)),
    ])
    loader = DataLoader(OneByOne(data, transform, prepared=True), args.batch_size, shuffle=True, drop_last=True)
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
