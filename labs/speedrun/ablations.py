"""Ideas that are not in the ladder, added to its last program by name: `ablations.py --add whitening celu`.

half_precision  autocast: bf16 where the GPU has it, otherwise fp16 with a GradScaler. Off on a CPU without AMX.
compile         torch.compile around forward and loss, which are one graph: between convolutions, normalisation,
                activation and pooling are few kernels. Compiling takes longer than a race; it is off the clock.
whitening       the first convolution is computed, not learned: its outputs are uncorrelated and vary alike. That is on
                the clock, and sees no label.
bias_only       batch norm without a learned factor: the next convolution can learn it as well (Page 2019).
celu            a smooth activation instead of ReLU. It needs an exponential for each number.
muon            an orthogonal step for each convolution; fewer epochs, half the rate. Its steps cost more, the more so
                the smaller the batch.

None of them was measurably faster on our CPU as a step of the ladder, so they are here, a line or two each. Without
--add the program trains exactly as 09_test_time_views does (a test holds that).
"""

from functools import partial

from common import autocast_dtype, start
from labs.shared.training import rising_then_falling
from labs.speedrun.augment import DeviceBatches, cutout_of, shift_of, views
from labs.speedrun.data import data_set
from labs.speedrun.model import patch_stem, resnet9, whiten, width_of
from labs.speedrun.optimizers import Lookahead, Muon, parameter_groups
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn

IDEAS = ("half_precision", "compile", "whitening", "bias_only", "celu", "muon")


def main():
    args = race_options(__doc__, __file__, IDEAS)
    device = start(args)
    size = args.image_size

    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device, shift=shift_of(size), cutout=cutout_of(size))
    stem = patch_stem(data.channels) if "whitening" in args.add else None
    activation = partial(nn.CELU, 0.075) if "celu" in args.add else nn.ReLU
    model = resnet9(width_of(args.model), data.channels, data.classes, activation, stem)
    model = model.to(device, memory_format=torch.channels_last)
    if "bias_only" in args.add:
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.requires_grad_(False)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    convolutions, others = parameter_groups(model) if "muon" in args.add else ([], model.parameters())
    momentum = args.momentum
    optimizers = [torch.optim.SGD(others, args.lr, momentum, nesterov=momentum > 0, weight_decay=5e-4)]
    optimizers += [Muon(convolutions, args.lr)] if convolutions else []
    steps = args.epochs * len(loader)
    schedules = [rising_then_falling(optimizer, steps, rising=0.25) for optimizer in optimizers]
    lookahead = Lookahead(model, steps)
    amp_dtype = autocast_dtype(device, args.precision) if "half_precision" in args.add else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def forward(images, labels):
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            return criterion(model(images), labels)

    if "compile" in args.add:
        forward = torch.compile(forward)

    def train_step(images, labels):
        loss = forward(images, labels)
        model.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for part in (*schedules, lookahead):
            part.step()
        return loss

    def predict(images):
        return sum(model(view) for view in views(images, data.mirrors))

    def prepare():
        if stem is not None:
            whiten(stem, loader.prepared()[0][:5000])

    state = [model, *optimizers, *schedules, scaler, lookahead]
    return run_race(__file__, args, data, loader, train_step, state, predict, prepare, amp_dtype)


if __name__ == "__main__":
    main()
