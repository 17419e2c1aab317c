"""What the tracker counts: known answers, real tensors, and torch's own tracker."""

import pytest
import torch
from support import SmallNet
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from walkthrough.memory import tracker as module
from walkthrough.memory.tracker import MemoryTracker

BATCH = (8, 3, 32, 32)


def train(model, optimizer, images, labels, before=lambda: None, after=lambda: None):
    for _ in range(2):
        before()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()


def tracked(**settings):
    with MemoryTracker() as tracker:
        model = SmallNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)
        images, labels = torch.empty(BATCH), torch.zeros(BATCH[0], dtype=torch.long)
        tracker.mark("inputs", [images, labels])
        train(model, optimizer, images, labels, before=tracker.reset_peak, after=tracker.mark_state)
    return tracker


def test_a_linear_layers_kinds_are_what_can_be_computed_by_hand():
    with FakeTensorMode(), MemoryTracker() as tracker:
        layer = nn.Linear(1024, 512, bias=False)
        optimizer = torch.optim.Adam(layer.parameters())
        x = torch.empty(256, 1024)
        tracker.mark("inputs", [x])
        for _ in range(2):
            tracker.reset_peak()
            layer(x).sum().backward()
            optimizer.step()
            tracker.mark_state()
            optimizer.zero_grad()
    weight = 4 * 1024 * 512
    sizes = tracker.by_kind()
    assert (sizes["parameters"], sizes["gradients"]) == (weight, weight)
    assert sizes["optimizer"] == 2 * weight + 512  # two moments and the number of the step, a block each
    assert sizes["inputs"] == 4 * 256 * 1024
    assert sizes["other"] >= weight  # a GPU's Adam computes for all parameters at once
    assert sum(sizes.values()) == tracker.peak_bytes


def test_fake_tensors_need_what_real_ones_do():
    real = tracked()
    with FakeTensorMode():
        fake = tracked()
    assert (fake.peak_bytes, fake.by_kind()) == (real.peak_bytes, real.by_kind())


def test_torchs_own_tracker_finds_the_same_peak(monkeypatch):
    mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
    monkeypatch.setattr(module, "rounded", lambda size, step: size)  # it rounds for CUDA's tensors only
    with FakeTensorMode():
        own = tracked(foreach=False)
        model = SmallNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images, labels = torch.empty(BATCH), torch.zeros(BATCH[0], dtype=torch.long)
        theirs = mem_tracker.MemTracker()
        theirs.track_external(model, optimizer, images, labels)
        with theirs:
            train(model, optimizer, images, labels, after=theirs.reset_mod_stats)
    [snapshot] = theirs.get_tracker_snapshot("peak").values()
    assert own.peak_bytes == snapshot["Total"]


def test_what_a_program_reads_from_a_tensor_is_a_number_of_its_kind():
    with FakeTensorMode(), MemoryTracker():
        assert torch.ones(()).item() == 0.0
        assert isinstance(torch.ones((), dtype=torch.long).item(), int)


def test_freed_memory_is_not_counted_and_events_say_both():
    with FakeTensorMode(), MemoryTracker() as tracker:
        tracker.begin()
        tensor = torch.empty(1000)
        view = tensor[:10]
        assert tracker.allocated_bytes == 4096  # a multiple of 512
        del tensor
        assert tracker.allocated_bytes == 4096
        del view
        assert tracker.allocated_bytes == 0
    [(block, size), freed] = tracker.events
    assert (size, freed) == (4096, (block, 0))


def attention():
    """It reads the weights of `out_proj`, which is never called."""
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    return list(module.parameters()), lambda: module(*[torch.empty(2, 8, 64)] * 3, need_weights=False)[0]


def known_to_the_optimizer_alone():
    weight = nn.Parameter(torch.empty(1024))
    return [weight], lambda: weight * 2


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize(
    ("make", "kind"), [(attention, torch.optim.Adam), (known_to_the_optimizer_alone, torch.optim.SGD)]
)
def test_weights_of_modules_that_are_not_called_and_gradients_that_are_gone_have_their_kinds(make, kind, zero_first):
    with FakeTensorMode(), MemoryTracker() as tracker:
        parameters, forward = make()
        optimizer = kind(parameters)
        for _ in range(2):
            tracker.reset_peak()
            if zero_first:
                optimizer.zero_grad()
            forward().sum().backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
            tracker.mark_state()
    sizes = tracker.by_kind()
    rounded_bytes = sum(-(-4 * parameter.numel() // 512) * 512 for parameter in parameters)
    assert (sizes["parameters"], sizes["gradients"]) == (rounded_bytes, rounded_bytes)
