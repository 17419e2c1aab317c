"""Speed run 08: channels last.

Reaches    98 % of digits in 1.06 s (median of 5 races, 5 reached it), 99.2 % at the end, on AMD EPYC, 2 CPU cores
Idea       Tensor Cores read the channels of a pixel together, so images are best stored that way; in torch's own order
           every convolution converts them, there and back.
Change     The network in memory_format=torch.channels_last; batches come in it already.
Look for   Trace: no layout conversions (nchwToNhwc) around convolutions.
Caution    What copies a tensor may change its layout back. On a CPU it depends on the library which order is faster.
"""

from common import autocast_dtype, start
from labs.speedrun.augment import DeviceBatches, cutout_of, shift_of
from labs.speedrun.data import data_set
from labs.speedrun.model import resnet9, width_of
from labs.speedrun.optimizers import DecoupledSGD, one_cycle
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    size = args.image_size

    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device, shift=shift_of(size), cutout=cutout_of(size))
    model = resnet9(width_of(args.model), data.channels, data.classes)
    model = model.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = DecoupledSGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=0.005)
    schedule = one_cycle(optimizer, args.epochs * len(loader))
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(images, labels):
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        return loss

    return run_race(__file__, args, data, loader, train_step, [model, optimizer, schedule, scaler], precision=amp_dtype)


if __name__ == "__main__":
    main()
