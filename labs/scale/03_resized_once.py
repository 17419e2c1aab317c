"""Scale 03: images are resized once, offline.

Idea       Every epoch decodes the same photographs to throw most pixels away. Made small once, they are a few
           kB each, with a small part of the pixels.
Change     data = prepared(data, "resized", args.image_size): the same images as small JPEGs, in DIR/resized-64px/
Look for   Overview: "DataLoader" almost vanishes. On disk: a fraction of the bytes, and less to read.
Caution    Each image is compressed a second time, so values differ a little; the size is fixed, and what augmentation
           could have cropped from the photograph is gone. The first run resizes, which is not in its figures.
"""

from common import run_step, start, step_options
from labs.scale.data import Jpegs, as_uint8, image_folder, normalised_batch
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.preprocess import prepared

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)

    data = prepared(image_folder(args.data), "resized", args.image_size)
    train_set = Jpegs(data, "train", as_uint8(args.image_size))
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
