"""How a training is timed: what a window holds, and what is done before it."""

import pytest
import torch
from torch.utils.data import DataLoader

from common import timing
from common.device import gpu_peak_bytes
from common.loaders import Epochs

PLAN = timing.Plan(warmup_steps=1, warmup_seconds=0.0, windows=4, window_steps=3, window_seconds=0.0)


class FakeEvent:
    """A CUDA event on a device whose clock ticks 10 ms a call."""

    now = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        assert stream == "stream of cuda:1"
        FakeEvent.now += 10
        self.at = FakeEvent.now

    def elapsed_time(self, later):
        return later.at - self.at


def test_steps_on_a_gpu_are_timed_by_events_in_its_own_stream(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", log.append)
    batches = iter([(torch.zeros(4, 3), torch.zeros(4))] * 3)
    window = timing.timed_window(batches, lambda *_: torch.tensor(1.0), torch.device("cuda:1"), 3)
    assert window.step_ms == [10, 10, 10]
    assert log == [torch.device("cuda:1")] * 2


def test_timed_windows_run_without_a_profiler_and_synchronise_at_their_edges_only(monkeypatch):
    log = []
    monkeypatch.setattr(timing, "synchronize", lambda device: log.append("synchronize"))

    def train_step(images, labels):
        assert not torch.autograd._profiler_enabled()
        log.append("step")
        return torch.tensor([2.0], requires_grad=True) * len(log)

    batches = iter([(torch.zeros(4, 3), torch.zeros(4))] * 3)
    window = timing.timed_window(batches, train_step, torch.device("cpu"), 3)
    assert log == ["synchronize", "step", "step", "step", "synchronize"]
    assert len(window.step_ms) == 3
    assert window.loss == pytest.approx((2 * 2 + 2 * 3 + 2 * 4) / 3)
    assert window.samples_per_second > 0


def test_the_samples_of_all_processes_count(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(timing.ranks, "summed", lambda values: [3 * value for value in values])
    batches = iter([(torch.zeros(4, 3), torch.zeros(4))] * 3)
    window = timing.timed_window(
        batches, lambda *_: torch.tensor(1.0), torch.device("cpu"), 3, count_tokens=lambda batch: 10
    )
    assert window.step_ms == [1000, 1000, 1000]
    seconds = 5  # the clock is read at the window's edges and at the ends of its steps
    assert window.samples_per_second == pytest.approx(3 * 12 / seconds)
    assert window.tokens_per_second == pytest.approx(3 * 30 / seconds)


def trained(monkeypatch, device, batches, plan=PLAN):
    """What is done in a training that is timed, in order: a batch's number, or what is done to the device."""
    log = []
    monkeypatch.setattr(timing, "synchronize", lambda device: None)
    monkeypatch.setattr(timing, "empty_cache", lambda device: log.append("empty cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: log.append("reset peaks"))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream of cuda:1")
    window = timing.timed_window

    def logged_window(*args):
        log.append("window")
        return window(*args)

    def train_step(numbers):
        log.append(numbers[0].item())
        return torch.tensor(1.0)

    monkeypatch.setattr(timing, "timed_window", logged_window)
    timing.time_training(batches, train_step, torch.device(device), plan)
    return log


@pytest.mark.parametrize(("reserved", "allocated"), [(1000, 100 + 300 + 20), (350, 350)])
def test_the_pool_of_a_cuda_graph_counts_as_allocated(monkeypatch, reserved, allocated):
    """Its replays use memory that the allocator took for free."""

    def segment(size, used, pool=(0, 0), device=1):
        return {"total_size": size, "allocated_size": used, "segment_pool_id": pool, "device": device}

    segments = [segment(500, 90), segment(300, 0, (0, 1)), segment(30, 10, (0, 1)), segment(99, 0, (0, 1), device=0)]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda include_traces: segments)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for device in ("cuda", "cuda:1"):
        assert gpu_peak_bytes(torch.device(device)) == (allocated, reserved)


def numbered(count):
    """A loader of `count` batches, each of its own number."""
    return DataLoader([(torch.tensor(number),) for number in range(count)], batch_size=1)


def test_a_gpus_peaks_are_of_the_windows_and_not_of_what_the_warm_up_left_over(monkeypatch):
    log = trained(monkeypatch, "cuda:1", Epochs(numbered(1000)))
    first = log.index("empty cache")
    assert log[first:][:5] == ["empty cache", "reset peaks", 5, "window", 6]  # a step to reserve anew, then the first
    assert log.count("empty cache") == log.count("reset peaks") == 1


def test_no_epoch_begins_within_a_window(monkeypatch):
    log = trained(monkeypatch, "cpu", Epochs(numbered(8)))
    starts = [at for at, entry in enumerate(log) if entry == "window"]
    assert [log[at + 1 : at + 4] for at in starts[1:]] == [[5, 6, 7], [1, 2, 3], [4, 5, 6], [1, 2, 3]]
    batches = [entry for entry in log if entry != "window"]
    assert batches == [number % 8 for number in range(len(batches))]  # and none is left out
