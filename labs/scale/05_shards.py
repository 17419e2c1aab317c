"""Scale 05: small images are read from shards, with WebDataset.

Idea       A million small files cost a million seeks, and a file system on a network answers each one late. Packed into
           tar files of about a thousand images they are read from front to back.
Change     ShardSet, a webdataset.DataPipeline, in place of files; preprocess.py makes the shards, with Spark or without
Look for   Overview: "DataLoader" as small as with small files; on disk: few files. What shards save, a local disk that
           has all of it in memory does not show.
Caution    Only shards are shuffled, and images among a thousand: they were dealt into shards at random before.
           Each worker reads its own shards, so workers beyond the number of shards have nothing to do.
"""

from common import run_step, start, step_options
from labs.scale.data import image_folder, normalised_batch
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.preprocess import prepared
from labs.scale.shards import ShardSet

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    data = prepared(image_folder(args.data), "shards", args.image_size)
    train_set = ShardSet(data, "train", args.seed)
    loader = DataLoader(
        train_set, args.batch_size, drop_last=True, collate_fn=normalised_batch,
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
