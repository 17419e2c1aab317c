"""The loaders of the later steps: one copies batches ahead in a stream of its own, one has its data on the device."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

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
    """A DataLoader's batches, and what else `run_step` reads of it."""

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


def test_an_epoch_without_batches_ends_at_once(gpu):
    assert list(Prefetcher(Loader(), "cuda")) == []
    assert gpu == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_prefetcher_has_what_its_loader_has(gpu, device):
    loader = Loader([1, 2, 3])
    prefetcher = Prefetcher(loader, device)
    assert len(prefetcher) == 3
    for name in ("dataset", "batch_size", "num_workers", "prefetch_factor", "pin_memory"):
        assert getattr(prefetcher, name) == getattr(loader, name)


def test_on_a_cpu_batches_are_passed_on_as_they_are():
    loader = DataLoader(TensorDataset(torch.arange(6.0), torch.arange(6)), batch_size=2)
    for (images, labels), (as_it_is, its_labels) in zip(Prefetcher(loader, "cpu"), loader, strict=True):
        assert torch.equal(images, as_it_is)
        assert torch.equal(labels, its_labels)
    batches = [torch.zeros(1)]
    assert next(iter(Prefetcher(Loader([batches]), "cpu"))) is batches


def made_up(count=10):
    """A data set of images that differ in every pixel: smooth, noisy, and at the ends of the range."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    images[0], images[1], images[2, :, ::2] = 0, 255, 255
    images[3] = np.linspace(0, 255, 32, dtype=np.uint8)
    return SimpleNamespace(data=images.transpose(0, 2, 3, 1), targets=list(range(count)), source="stand-in")


def labels_of(loader):
    return torch.cat([labels for _, labels in loader]).tolist()


def test_every_epoch_has_every_image_once_in_an_order_of_its_own_which_the_seed_decides():
    loader = DeviceLoader(made_up(12), 4, "cpu", seed=1)
    first, second = labels_of(loader), labels_of(loader)
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    again, other = (DeviceLoader(made_up(12), 4, "cpu", seed=seed) for seed in (1, 2))
    assert labels_of(again) == first
    assert labels_of(other) != first


def test_images_and_labels_stay_together_and_a_smaller_last_batch_is_dropped():
    data = made_up(10)
    loader = DeviceLoader(data, 4, "cpu")
    batches = list(loader)
    assert len(loader) == len(batches) == 2
    for images, labels in batches:
        assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 32, 32), torch.uint8, torch.int64)
        for image, label in zip(images, labels.tolist(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), data.data[label])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_ranks_share_an_epoch_without_overlap_and_in_equal_numbers(world_size):
    ranks = [DeviceLoader(made_up(26), 4, "cpu", 1, rank, world_size) for rank in range(world_size)]
    epochs = []
    for _ in range(2):
        of_ranks = [labels_of(loader) for loader in ranks]
        assert {len(labels) for labels in of_ranks} == {26 // world_size // 4 * 4}
        epochs.append([label for labels in of_ranks for label in labels])
        assert len(set(epochs[-1])) == len(epochs[-1])
    assert epochs[0] != epochs[1]
    assert {len(loader) for loader in ranks} == {26 // world_size // 4}
