"""The loaders of the later steps: one copies batches ahead in a stream of its own, one has its data on the device."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.loaders import DeviceLoader, Prefetcher


class Log(list):
    """What was asked of a made-up GPU, in order: words."""


class Part:
    """Stands for a tensor: logs that it is copied and in which stream it will be used."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def to(self, device, non_blocking):
        assert (device.type, non_blocking) == ("cuda", True)
        self.log.append(f"copy {self.name} in {self.log.current}")
        return Part(self.log, f"{self.name} there")

    def record_stream(self, stream):
        self.log.append(f"{self.name} is used in {stream.name}")


@pytest.fixture
def gpu(monkeypatch):
    """A made-up GPU with a stream that trains; returns its log."""
    log = Log()
    log.current = "training"

    @contextmanager
    def stream(entered):
        log.current, before = entered.name, log.current
        yield
        log.current = before

    class Stream:
        name = "copying"

        def __init__(self, device):
            assert device.type == "cuda"

    training = SimpleNamespace(
        name="training", wait_stream=lambda other: log.append(f"training waits for {other.name}")
    )
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: training)
    return log


class Loader(list):
    """A DataLoader's batches, and what else is read of it."""

    dataset, batch_size, num_workers, prefetch_factor, pin_memory = "data", 1, 3, 2, True


def test_the_next_batch_is_copied_beside_this_ones_kernels_and_waited_for_before_it_is_used(gpu):
    loader = Loader([Part(gpu, f"images {n}"), Part(gpu, f"labels {n}")] for n in (1, 2))
    for number, (images, labels) in enumerate(Prefetcher(loader, "cuda"), start=1):
        assert (images.name, labels.name) == (f"images {number} there", f"labels {number} there")
        gpu.append(f"train on {number}")
    assert gpu == [
        "copy images 1 in copying",
        "copy labels 1 in copying",
        "training waits for copying",
        "images 1 there is used in training",
        "labels 1 there is used in training",
        "copy images 2 in copying",  # behind the wait, else that would wait for this copy as well
        "copy labels 2 in copying",
        "train on 1",
        "training waits for copying",
        "images 2 there is used in training",
        "labels 2 there is used in training",
        "train on 2",
    ]


def made_up(count):
    """A data set of random images."""
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return SimpleNamespace(data=images.transpose(0, 2, 3, 1), targets=list(range(count)), source="stand-in")


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_ranks_share_an_epoch_without_overlap_in_an_order_of_its_own_which_the_seed_decides(world_size):
    def two_epochs(seed):
        """Of all ranks the labels of all batches; a smaller last one is dropped."""
        ranks = [DeviceLoader(made_up(26), 4, "cpu", seed, rank, world_size) for rank in range(world_size)]
        epochs = []
        for _ in range(2):
            of_ranks = [torch.cat([labels for _, labels in loader]).tolist() for loader in ranks]
            assert {len(labels) for labels in of_ranks} == {26 // world_size // 4 * 4}
            assert {len(loader) for loader in ranks} == {26 // world_size // 4}
            epochs.append([label for labels in of_ranks for label in labels])
            assert len(set(epochs[-1])) == len(epochs[-1])
        return epochs

    first, second = two_epochs(seed=1)
    assert first != second
    assert two_epochs(seed=1) == [first, second]
    assert two_epochs(seed=2)[0] != first
