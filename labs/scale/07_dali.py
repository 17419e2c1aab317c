"""Scale 07: the GPU decodes, resizes and normalises, with DALI.

Idea       DALI runs the whole pipeline on the GPU: JPEGs of a batch are decoded together, cropped, resized and
           normalised by kernels made for it.
Change     From 06: DaliDecoder in place of NvjpegDecoder; the loader and the train step stay
Look for   GPU Kernel: one decoding and one resizing kernel per batch, where 06 launches some for each image.
Caution    Needs an NVIDIA GPU and nvidia-dali. DALI can read and shuffle files too; here it does not, so that batches
           are those of the other programs.
"""

from common import run_step, start, step_options
from labs.scale.data import Jpegs, image_folder
from labs.scale.gpu_decode import DaliDecoder, as_bytes, encoded_batch, needs_cuda
from labs.scale.model import DEFAULTS, mobilenet

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)
    needs_cuda(device, "DALI")

    train_set = Jpegs(image_folder(args.data), "train", as_bytes)
    decoder = DaliDecoder(args.batch_size, args.image_size, device, args.workers)
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=encoded_batch,
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )

    model = mobilenet(args.model, len(train_set.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(labels, lengths, files):
        images, labels = decoder(lengths, files), labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step)


if __name__ == "__main__":
    main()
