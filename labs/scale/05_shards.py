"""Scale 05: small images are read from shards, with WebDataset.

Idea       A million small files cost a million seeks, and a file system on a network answers each one late. Packed into
           tar files of about a thousand images they are read from front to back.
Change     webdataset.DataPipeline over shards in place of files; preprocess.py makes the shards, with Spark or without
Look for   Overview: "DataLoader" as small as with small files; on disk: few files. What shards save, a local disk that
           has all of it in memory does not show.
Caution    Only whole shards are shuffled, and the images within one: they were dealt into shards at random before.
           Each worker reads its own shards, so workers beyond the number of shards have nothing to do.
"""

from common import run_step, start, step_options
from labs.scale.batches import normalised_batch
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.preprocess import train_shards
from labs.scale.shards import Reading, ShardSet, decoded
from labs.shared.extras import imported

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    wds = imported("webdataset", "scale", "reading shards")
    folder, index = train_shards(args.data, args.image_size)
    reading = Reading(folder, index, args.batch_size, args.workers, args.seed)
    stages = [reading.shards, wds.tarfile_to_samples(), reading.samples, wds.map(decoded)]
    train_set = ShardSet(wds.DataPipeline(*stages), reading, index)
    loader = DataLoader(
        train_set, args.batch_size, collate_fn=normalised_batch,
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
