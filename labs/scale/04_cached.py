"""Scale 04: images are decoded once and kept in memory.

Idea       Small images, decoded, often fit into memory: 12 kB each at 64 px, 150 kB at 224 px. Then no epoch decodes.
Change     train_set = Cached(Jpegs(…)): uint8 in memory, from which the workers read
Look for   Overview: no "DataLoader" to speak of; what remains is copying images into a batch.
Caution    All images are decoded before the first step. ImageNet's 1.28 million take 16 GB at 64 px and 193 GB at 224.
           Between machines nothing is shared: each keeps all of it.
"""

from common import run_step, start, step_options
from labs.scale.batches import normalised_batch
from labs.scale.jpegs import Jpegs, as_uint8, image_folder, listed
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.order import ShardOrder
from labs.scale.resized import Cached, resized_once

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    listing = resized_once(listed(image_folder(args.data)), args.image_size)
    train_set = Cached(Jpegs(listing, as_uint8(args.image_size)))
    order = ShardOrder(len(train_set), args.batch_size, args.workers, args.seed)
    loader = DataLoader(
        train_set, args.batch_size, sampler=order, collate_fn=normalised_batch,
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
