"""Scale 01: worker processes decode.

Idea       Images do not depend on each other, so processes decode them side by side, ahead of the model.
Change     DataLoader(num_workers=args.workers, persistent_workers=True, pin_memory=True), .to(…, non_blocking=True)
Look for   Overview: "DataLoader" shrinks by the number of cores at best. On a CPU workers and model share the cores.
Caution    The work is only spread: images/s per core stay as they were. The write-up had 144 workers on one pipeline.
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
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True,
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )

    model = mobilenet(args.model, len(train_set.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(images, labels):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step)


if __name__ == "__main__":
    main()
