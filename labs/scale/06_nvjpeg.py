"""Scale 06: the GPU decodes, with nvJPEG.

Idea       Where photographs must be decoded in each epoch (large crops, other sizes), a GPU decodes a batch of JPEGs at
           once, on hardware of its own where it has it; workers only read files.
Change     From 02: as_bytes in place of as_uint8; NvjpegDecoder, torchvision's decode_jpeg on CUDA, in the train step
Look for   GPU Kernel: nvJPEG's kernels next to the model's. Memcpy: files are copied, not pixels.
Caution    Needs an NVIDIA GPU, and takes its time from the model. Values differ from a CPU's decoder by a few of 255.
"""

from common import run_step, start, step_options
from labs.scale.data import Jpegs, image_folder
from labs.scale.gpu_decode import NvjpegDecoder, as_bytes, encoded_batch, needs_cuda
from labs.scale.model import DEFAULTS, mobilenet

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args, keep_tf32=True)
    needs_cuda(device, "nvJPEG")

    train_set = Jpegs(image_folder(args.data), "train", as_bytes)
    decoder = NvjpegDecoder(args.image_size, device)
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
