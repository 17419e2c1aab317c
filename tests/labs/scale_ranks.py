"""What the processes of test_scale_train.py do: `python scale_ranks.py WHAT FOLDER`, started by `labs.scale.launch`."""

import json
import os
import signal
import sys
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import TensorDataset

from common.errors import InputError, one_line_errors
from common.options import resolved
from labs.scale import train
from labs.scale.model import DEFAULTS
from labs.scale.ranks import joined, reported
from labs.scale.training import Settings, Training

CLASSES = 7
JPEG_WORDS = "--device cpu --model w8 --image-size 32 --batch-size 8 --epochs 1 --workers 0 --precision fp32".split()


def images(count, seed):
    """Noise in which a class is a bright corner: (float32 [count, 3, 4, 4], int64 [count])."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    pictures = torch.randn(count, 3, 4, 4, generator=generator)
    pictures.flatten(1)[torch.arange(count), labels] += 3
    return TensorDataset(pictures, labels)


def settings(**changes):
    own = {"model": "tiny", "data": "noise", "image_size": 4, "batch_size": 8, "epochs": 4, "lr": 0.1}
    return Settings(**{**own, "precision": "fp32", "seed": 3, **changes})


def tiny(validation=13, train_images=45, passes=1, norm=False, **changes):
    """A training of a model without batch norm and dropout; neither 45 nor 13 can be divided by two or eight."""
    torch.manual_seed(dist.get_rank() if norm else 0)  # rank 0's weights count
    layers = [nn.Conv2d(3, 8, 3), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(32, CLASSES))
    sets = images(train_images, 1), images(validation, 2)
    return Training(settings(**changes), model, *sets, torch.device("cpu"), passes=passes)


def facts(training):
    """What has to be the same for any number of processes, as JSON."""
    weights = [parameter.flatten().tolist() for parameter in training.module.parameters()]
    numbers = [[epoch.loss, epoch.validation_loss, epoch.top1, epoch.top5] for epoch in training.epochs]
    return {"epochs": numbers, "weights": list(chain(*weights))}


def trained(**changes):
    training = tiny(**changes)
    for _ in range(3):
        training.epoch()
    return facts(training)


def exchanges(passes):
    """How many buckets of gradients are exchanged in a step."""
    training, buckets = tiny(passes=passes), []

    def hook(state, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(None, bucket)

    training.model.register_comm_hook(None, hook)
    training.step(iter([images(2, number).tensors for number in range(passes)]))
    return len(buckets)


def same():
    """Trainings that differ in passes and sizes alone; and the running statistics of batch norm after validation."""
    normed = tiny(norm=True)
    normed.epoch()
    return {
        "one pass": trained(),
        "two passes": trained(passes=2),
        "one validation image": trained(validation=1),
        "exchanges": [exchanges(1), exchanges(4)],
        "statistics": next(iter(normed.module.children())).weight.sum().item()
        + sum(buffer.double().sum().item() for buffer in normed.module.buffers()),
    }


def killed(folder):
    """Train, but rank 1 is killed in the second step of epoch 3, and after a restart in that of epoch 4."""
    training, steps = tiny(), []
    real, last = training.step, 3 + int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def step(batches):
        steps.append(len(training.epochs) + 1)
        if dist.get_rank() == 1 and steps.count(last) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(batches)

    training.step = step
    train.fit(training, folder)


def of_files(folder):
    """Train on JPEGs as `train.main` does; then rank 1 refuses, while rank 0 waits for it."""
    args = train.options(["--data", str(folder / "jpegs"), "--logdir", str(folder / "train"), *JPEG_WORDS])
    train.train(resolved(args, defaults=DEFAULTS), args)
    if dist.get_rank() == 1:
        raise InputError(f"nothing to train on in {folder}: choose another")
    dist.barrier()


@one_line_errors()
def main():
    with reported(), joined(torch.device("cpu")):
        what, folder = sys.argv[1], Path(sys.argv[2])
        if what == "killed":
            return killed(folder)
        (folder / f"same{dist.get_rank()}.json").write_text(json.dumps(same()))
        of_files(folder)


if __name__ == "__main__":
    main()
