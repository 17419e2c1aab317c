"""Step 06: prefetch on a CUDA stream of its own.

Idea       Work in one stream runs in order: a batch is copied when the kernels before it are done. In a second stream
           the next batch is copied while this one is trained on.
Change     Prefetcher(loader, device) yields batches that are on the device already, so the train step copies none.
Look for   Trace: "Memcpy HtoD" in a row of its own, while kernels of the step before run.
Caution    Streams are not ordered among each other: the one that trains must wait for the copy (wait_stream), and the
           batch's memory is not free before (record_stream). It needs pinned memory and room for one more batch.
Needs      a GPU. On a CPU there is no copy to overlap: batches are passed on as they are.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, Prefetcher, autocast_dtype, cifar10, classifier, resized_uint8, run_step, start, step_options

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=resized_uint8(args.image_size), download=args.download)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True)
    loader = Prefetcher(loader, device)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
