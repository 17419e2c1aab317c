"""Scale 02: what can be done for a batch at once is.

Idea       Converting to float and normalising cost a few operations per image, small ones; for a batch they cost the
           same few operations, on one array, and images stay uint8 until then, a quarter of the bytes.
Change     as_uint8 in place of as_float, and collate_fn=normalised_batch
Look for   Trace: the workers' time per batch, in images/s delivered. Decoding is most of it, and stays.
Caution    Photographs differ in size, so decoding and resizing remain work per image; only what follows is vectorised.
"""

from common import run_step, start, step_options
from labs.scale.data import Jpegs, as_uint8, image_folder, normalised_batch
from labs.scale.model import DEFAULTS, mobilenet

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    train_set = Jpegs(image_folder(args.data), "train", as_uint8(args.image_size))
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=normalised_batch,
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
