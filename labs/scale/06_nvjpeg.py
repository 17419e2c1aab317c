"""Scale 06: the GPU decodes, with nvJPEG.

Idea       Where photographs must be decoded in each epoch (large crops, other sizes), a GPU decodes a batch of JPEGs at
           once, on hardware of its own where it has it; workers only read files.
Change     From 02: as_bytes in place of as_uint8; decoded_batch, torchvision's decode_jpeg on CUDA, in the train step
Look for   GPU Kernel: nvJPEG's kernels next to the model's. Memcpy: files are copied, not pixels.
Caution    Needs an NVIDIA GPU, and takes its time from the model. Values differ from a CPU's decoder by a few of 255.
"""

from common import run_step, start, step_options
from labs.scale.gpu import as_bytes, decoded_batch, encoded_batch, needs_cuda
from labs.scale.jpegs import Jpegs, image_folder, listed
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.order import ShardOrder

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)
    needs_cuda(device, "nvJPEG")

    listing = listed(image_folder(args.data))
    train_set = Jpegs(listing, as_bytes)
    order = ShardOrder(len(train_set), args.batch_size, args.workers, args.seed)
    loader = DataLoader(
        train_set, args.batch_size, sampler=order, collate_fn=encoded_batch,
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )

    model = mobilenet(args.model, len(train_set.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(labels, lengths, files):
        images, labels = decoded_batch(lengths, files, args.image_size, device), labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step)


if __name__ == "__main__":
    main()
