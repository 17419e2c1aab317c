"""`scale_ranks.py DATA FOLDER`: two processes of test_scale_train.py, forked from one import of torch."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from support.ranks import fork_two
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from labs.scale import train
from labs.scale.pipelines import Pipeline
from labs.scale.train import Replica, Settings, fit, process_group, share
from labs.shared.training import Training

CPU, SIZE, CLASSES = torch.device("cpu"), 16, 4


class Uncropped(Pipeline):
    """Images as they are: random crops are a matter of the process."""

    def _on_device(self, batches, crops):
        return super()._on_device(batches, crops=False)


def training(folder, passes=1, norm=False, batch_size=8, epochs=2):
    """(run, replica, pipeline, settings) of a model without batch norm and dropout, on what is prepared in a folder."""
    rank, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(rank if norm else 0)  # rank 0's weights count
    layers = [nn.Conv2d(3, 8, 5, 2), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU(), nn.AdaptiveMaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, CLASSES))
    settings = Settings("tiny", "drawn", "cached", SIZE, batch_size, epochs, 0.05, "fp32", seed=3)
    replica = Replica(model, CPU, settings.lr, passes=passes)
    of_pass = share(batch_size, processes, passes)
    pipeline = Uncropped(folder, "cached", SIZE, of_pass, CPU, seed=3, rank=rank, processes=processes)
    parts = {"model": model, "optimizer": replica.optimizer}
    run = Training(None, settings, parts, best="top1_accuracy")
    return run, replica, pipeline, settings


def trained(folder, **changes):
    """What has to be the same for any number of processes, as JSON."""
    run, replica, pipeline, settings = training(folder, **changes)
    fit(run, replica, pipeline, settings)
    weights = chain(*(parameter.flatten().tolist() for parameter in replica.module.parameters()))
    names = ("loss", "validation_loss", "top1_accuracy", "top5_accuracy")
    return {"epochs": [[row[name] for name in names] for row in run.rows], "weights": list(weights)}


def exchanges(folder, passes, exchange):
    """How many buckets of gradients are exchanged in a step."""
    _, replica, pipeline, _ = training(folder, passes=passes)
    buckets = []

    def hook(state, bucket):
        buckets.append(bucket.index())
        return allreduce_hook(None, bucket)

    replica.model.register_comm_hook(None, hook)
    replica.step(pipeline.training(1, passes), exchange)
    return len(buckets)


def statistics(folder):
    """A sum over weights and running statistics of batch norm, after validation."""
    run, replica, pipeline, settings = training(folder, norm=True, epochs=1)
    fit(run, replica, pipeline, settings)
    return sum(value.double().sum().item() for value in replica.module.state_dict().values())


def same(data, folder):
    """Trainings that differ in passes alone, and what is exchanged; then train.py itself, its output in a file."""
    how = [(1, "last pass"), (2, "last pass"), (2, "each pass"), (2, "never")]
    answer = {
        "one pass": trained(data),
        "two passes": trained(data, passes=2),
        "exchanges": [exchanges(data, passes, when) for passes, when in how],
        "statistics": statistics(data),
    }
    words = ["--data", str(data), "--logdir", str(folder / "train"), "--device", "cpu", "--model", "w8"]
    words += ["--image-size", "32", "--batch-size", "8", "--epochs", "1", "--workers", "0"]
    train.process_group = lambda device: nullcontext()  # this one
    with open(folder / f"out{dist.get_rank()}", "w") as file, redirect_stdout(file):
        train.train(train.options(words))
    return answer


def rank(data, folder):
    """Be one process of two."""
    with process_group(CPU):
        (folder / f"{dist.get_rank()}.json").write_text(json.dumps(same(data, folder)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_two(rank, *map(Path, sys.argv[1:]))
