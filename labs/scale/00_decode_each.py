"""Scale 00: every image is decoded when it is needed, in the main process.

Idea       A photograph has many times the pixels that the model gets, and all of them are decoded: where the model is
           fast, it waits.
Change     None yet: a JPEG is read, decoded, resized and normalised, then the next; in each epoch all over again.
Look for   Overview: "DataLoader" is most of the step time. On a GPU its utilisation stays low.
Caution    Without random crops, so that the pipelines differ in speed alone; train.py trains from each with crops.
"""

from common import run_step, start, step_options
from labs.scale.data import Jpegs, as_float, image_folder
from labs.scale.model import DEFAULTS, mobilenet

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    train_set = Jpegs(image_folder(args.data), "train", as_float(args.image_size))
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)

    model = mobilenet(args.model, len(train_set.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(images, labels):
        images, labels = images.to(device), labels.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step)


if __name__ == "__main__":
    main()
