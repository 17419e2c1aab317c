"""What the processes of test_scale_train.py do in one start: `python scale_ranks.py FOLDER`, by `labs.scale.launch`.

They import torch once, and a second time after one of them was killed.
"""

import json
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import TensorDataset

from common.options import resolved
from labs.scale import one_rank, train
from labs.scale.model import DEFAULTS
from labs.scale.one_rank import Measurement
from labs.scale.ranks import joined, reported
from labs.scale.training import Settings, Training
from walkthrough.results.errors import InputError, exit_in_one_line

CLASSES = 7
JPEG_WORDS = "--device cpu --model w8 --image-size 32 --batch-size 8 --epochs 1 --workers 0 --precision fp32".split()
STRAGGLER = Measurement(
    folder="", device="cpu", model="w8", image_size=32, images=2, passes=2, bucket_mb=None,
    exchanges=("last pass", "never"), slow_rank=1, delay_ms=150.0, windows=1, steps=1, traced=True,
)  # fmt: skip


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


def of_files(folder):
    """Train on JPEGs as `train.main` does."""
    args = train.options(["--data", str(folder / "jpegs"), "--logdir", str(folder / "train"), *JPEG_WORDS])
    train.train(resolved(args, defaults=DEFAULTS), args)


def straggling(folder):
    """Measure what `STRAGGLER` says, in the group that is there."""
    with (
        patch.object(one_rank, "joined", lambda device: nullcontext()),
        patch.object(one_rank, "WARMUP_STEPS", 1),
    ):
        one_rank.run(replace(STRAGGLER, folder=str(folder)))


def killed(folder, restarted):
    """Train, but rank 1 is killed in the second step of epoch 3; after the restart it refuses that of epoch 4."""
    training, steps = tiny(), []
    real, last = training.step, 3 + restarted

    def step(batches):
        steps.append(len(training.epochs) + 1)
        if dist.get_rank() == 1 and steps.count(last) == 2:
            if restarted:
                raise InputError(f"nothing to train on in {folder}: choose another")
            os.kill(os.getpid(), signal.SIGKILL)
        return real(batches)

    training.step = step
    train.fit(training, folder)


def main():
    exit_in_one_line()
    with reported(), joined(torch.device("cpu")):
        folder, restarted = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if not restarted:
            (folder / f"same{dist.get_rank()}.json").write_text(json.dumps(same()))
            of_files(folder)
            straggling(folder)
        killed(folder / "killed", restarted)


if __name__ == "__main__":
    main()
