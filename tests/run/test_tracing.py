"""The traced window: what is trained on before the steps that are recorded."""

import json

import torch
from torch.utils.data import DataLoader

from common.run.batches import Epochs
from common.run.tracing import QUEUE_LENGTHS, TRACED_STEPS, traced_window, without_kernels


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


def test_no_epoch_begins_in_the_traced_steps(tmp_path):
    batches = Epochs(DataLoader([(number,) for number in range(9)]))
    for _ in range(6):
        next(batches)
    trained, _ = traced(tmp_path, batches)
    assert trained == [6, 7, 8, 0, 1, 2, 3, 4, 5]


def test_without_workers_one_step_warms_up(tmp_path):
    trained, _ = traced(tmp_path, iter([(torch.tensor([number]),) for number in range(20)]))
    assert len(trained) == 1 + 1 + TRACED_STEPS


def test_a_trace_of_a_gpu_without_its_kernels_is_noted():
    calls = [{"cat": "cuda_runtime", "name": "cudaLaunchKernel"}]
    kernels = [*calls, {"cat": "kernel", "name": "k"}]
    assert without_kernels(kernels, torch.device("cuda:1")) == without_kernels(calls, torch.device("cpu")) == []
    assert "shows no work on the GPU" in without_kernels(calls, torch.device("cuda"))[0]
