"""Ideas that are not in the ladder, added to its last program by name: `ablations.py --add whitening celu`.

half_precision  autocast: bf16 where the GPU has it, otherwise fp16 with a GradScaler. Off on a CPU without AMX.
compile         torch.compile around forward and loss, which are one graph: between convolutions, normalisation,
                activation and pooling are few kernels. Compiling takes longer than a race; it is off the clock.
whitening       the first convolution is computed, not learned: its outputs are uncorrelated and vary alike. That is on
                the clock, and sees no label.
bias_only       batch norm without a learned factor: the next convolution can learn it as well (Page 2019).
celu            a smooth activation instead of ReLU. It needs an exponential for each number.
label_smoothing labels that ask for 80 %, not for certainty: images that are right already no longer move the weights.
                Losses with different smoothing cannot be compared.

None of them was measurably faster on our CPU as a step of the ladder, so they are here, a line or two each. Without
--add the program trains exactly as 08_test_time_views does (a test holds that).
"""

from functools import partial

from common import autocast_dtype, start
from labs.shared.training import rising_then_falling
from labs.speedrun.data import DeviceBatches, data_set, views
from labs.speedrun.model import Lookahead, patch_stem, resnet9, whiten, width_of
from labs.speedrun.race import race_options, run_race

import torch
from torch import nn

IDEAS = ("half_precision", "compile", "whitening", "bias_only", "celu", "label_smoothing")


def main():
    args = race_options(__doc__, __file__, IDEAS)
    device = start(args)
    data = data_set(args)
    loader = DeviceBatches(data, args.batch_size, device)
    stem = patch_stem(data.channels) if "whitening" in args.add else None
    activation = partial(nn.CELU, 0.075) if "celu" in args.add else nn.ReLU
    model = resnet9(width_of(args.model), data.channels, data.classes, activation, stem)
    model = model.to(device, memory_format=torch.channels_last)
    if "bias_only" in args.add:
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.requires_grad_(False)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2 if "label_smoothing" in args.add else 0)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, args.momentum, nesterov=args.momentum > 0, weight_decay=5e-4
    )
    schedule = rising_then_falling(optimizer, args.epochs * len(loader), rising=0.25)
    lookahead = Lookahead(model, args.epochs * len(loader))
    amp_dtype = autocast_dtype(device, args.precision) if "half_precision" in args.add else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def forward(images, labels):
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            return criterion(model(images), labels)

    if "compile" in args.add:
        forward = torch.compile(forward)

    def train_step(images, labels):
        loss = forward(images, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        lookahead.step()
        return loss

    def predict(images):
        return sum(model(view) for view in views(images, data.mirrors))

    def prepare():
        if stem is not None:
            whiten(stem, loader.prepared()[0][:5000])

    state = [model, optimizer, schedule, scaler, lookahead]
    return run_race(__file__, args, data, loader, train_step, state, predict, prepare, amp_dtype)


if __name__ == "__main__":
    main()
