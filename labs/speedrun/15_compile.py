"""Speed run 15: compile forward and loss.

Reaches    98 % of digits in 1.15 s (median of 20 races, 20 reached it), 99.7 % at the end, on AMD EPYC, 2 CPU cores
Idea       Between convolutions, normalisation, activation and pooling each read and write the whole batch. Compiled,
           they are few kernels.
Change     torch.compile around forward and loss, a function of tensors: both are one graph. model.compile() would leave
           the loss out, and compile the tests too, which are off the clock.
Look for   Trace: kernels named triton_… on a GPU, cpp_fused_… on a CPU.
Caution    Compiling takes longer than the whole race. It is off the clock, and reported: one race is not worth it. A
           search over settings may be, where a compiled step is faster.
"""

from functools import partial

from common import autocast_dtype, start
from labs.speedrun.augment import DeviceBatches, cutout_of, shift_of, views
from labs.speedrun.data import data_set
from labs.speedrun.model import GhostNorm, patch_stem, resnet9, whiten, width_of
from labs.speedrun.optimizers import DecoupledSGD, Lookahead, Muon, one_cycle, parameter_groups
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn


def main():
    args = race_options(__doc__, __file__)
    device = start(args)
    size = args.image_size

    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device, shift=shift_of(size), cutout=cutout_of(size))
    stem = patch_stem(data.channels)
    parts = {"stem": stem, "norm": partial(GhostNorm, ghost=32), "activation": partial(nn.CELU, 0.075)}
    model = resnet9(width_of(args.model), data.channels, data.classes, **parts)
    model = model.to(device, memory_format=torch.channels_last)
    convolutions, others = parameter_groups(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = DecoupledSGD(others, lr=args.lr, momentum=0.9, weight_decay=0.005)
    muon = Muon(convolutions, lr=args.lr)
    schedule = one_cycle(optimizer, args.epochs * len(loader))
    muon_schedule = one_cycle(muon, args.epochs * len(loader))
    lookahead = Lookahead(model, args.epochs * len(loader))
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    @torch.compile
    def forward(images, labels):
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            return criterion(model(images), labels)

    def train_step(images, labels):
        loss = forward(images, labels)
        model.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(muon)
        scaler.update()
        schedule.step()
        muon_schedule.step()
        lookahead.step()
        return loss

    def predict(images):
        return sum(model(view) for view in views(images, data.mirrors))

    def prepare():
        whiten(stem, loader.prepared()[0][:5000])

    state = [model, optimizer, muon, schedule, muon_schedule, scaler, lookahead]
    return run_race(__file__, args, data, loader, train_step, state, predict, prepare, precision=amp_dtype)


if __name__ == "__main__":
    main()
