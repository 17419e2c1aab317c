"""The traced window: what is trained on before the steps that are recorded."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

from common.loaders import Epochs
from common.tracing import (
    NEW_PAGES,
    QUEUE_LENGTHS,
    TRACED_STEPS,
    cpu_peak_bytes,
    new_pages,
    traced_window,
    without_kernels,
)
from walkthrough.results.result import NO_KERNELS


def traced(tmp_path, batches):
    """The numbers of all batches that were trained on, and how many steps the trace marks."""
    trained = []

    def train_step(numbers):
        trained.append(numbers[0].item())
        return numbers.float().sum()

    events = traced_window(batches, train_step, torch.device("cpu"), tmp_path / "trace.json")
    assert events == json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    return trained, sum(event.get("name", "").startswith("ProfilerStep#") for event in events)


def test_the_workers_queue_is_long_used_up_when_recording_begins(tmp_path):
    loader = DataLoader([(number,) for number in range(500)], num_workers=2, persistent_workers=True)
    trained, marks = traced(tmp_path, Epochs(loader))
    queue = 2 * loader.prefetch_factor
    # one epoch begins first, and its queue is used up; one step is skipped
    assert len(trained) == 1 + queue + 1 + QUEUE_LENGTHS * queue + TRACED_STEPS
    assert marks == TRACED_STEPS


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (6, [6, 7, 8, 0, 1, 2, 3, 4, 5]),
        (4, [4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5]),  # nor does one end with the last, which copies a batch ahead
    ],
)
def test_no_epoch_begins_in_the_traced_steps(tmp_path, before, expected):
    batches = Epochs(DataLoader([(number,) for number in range(9)]))
    for _ in range(before):
        next(batches)
    trained, _ = traced(tmp_path, batches)
    assert trained == expected


def test_a_trace_of_a_gpu_without_kernels_is_noted():
    operators, kernel = [{"cat": "cpu_op"}, {"ph": "M"}], {"cat": "kernel"}
    assert without_kernels(operators, torch.device("cuda")) == [NO_KERNELS]
    assert without_kernels([*operators, kernel], torch.device("cuda")) == []
    assert without_kernels(operators, torch.device("cpu")) == []


def test_traced_steps_that_wait_for_new_memory_are_noted():
    assert new_pages([NEW_PAGES + 9, NEW_PAGES + 11, NEW_PAGES + 10], timed=11) == []
    [note] = new_pages([15_000, 15_010, 15_020], timed=10)
    assert "15,000 new pages" in note


def test_the_peak_on_a_cpu_is_the_highest_running_total_of_its_allocations():
    def memory(ts, total, size, device_type=0):
        args = {"Total Allocated": total, "Bytes": size, "Device Type": device_type}
        return {"name": "[memory]", "ts": ts, "args": args}

    other = {"name": "aten::mm", "ts": 0, "args": {"Total Allocated": 9_999}}
    events = [memory(2, 700, 600), memory(1, 100, 100), other, memory(3, 999, 1, 1), memory(4, 3, -697)]
    assert cpu_peak_bytes(events) == 700
    earlier = [memory(2, 5700, 600), memory(1, 5100, 100), memory(4, 5003, -697)]  # an earlier trace left 5000
    assert cpu_peak_bytes(earlier) == 700
    assert cpu_peak_bytes([]) == 0
