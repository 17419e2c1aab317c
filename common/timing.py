"""How a training is timed: its first step, a warm-up that is not timed, then windows of whole steps."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from common import ranks
from common.device import empty_cache, keep_freed_memory, page_faults, synchronize
from common.loaders import Batch, queued, steps_past_epoch
from walkthrough.results import result

TokenCount = Callable[[Batch], "int | torch.Tensor"]  # tokens in a batch; a tensor is read once a window is over
TrainStep = Callable[..., torch.Tensor]  # train_step(*batch) trains on one batch and returns the loss, one element


@dataclass(frozen=True)
class Plan:
    """How long to measure. Steps of a window: as many as fill `window_seconds`, and at least `window_steps`."""

    warmup_steps: int
    warmup_seconds: float
    windows: int
    window_steps: int
    window_seconds: float


FULL = Plan(warmup_steps=2, warmup_seconds=1.2, windows=10, window_steps=3, window_seconds=0.6)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.2)


@dataclass(frozen=True)
class Window:
    """One timed window: samples/s (and tokens/s) over the whole of it, ms of each step, mean loss."""

    samples_per_second: float
    tokens_per_second: float | None
    step_ms: list[float]
    loss: float


@dataclass(frozen=True)
class Timing:
    """A training as it was timed. first_step_seconds: of the first step, loading not included; it is in no window.

    page_faults: `device.page_faults` per step while the windows were timed.
    """

    first_step_seconds: float
    windows: list[Window]
    page_faults: float = 0.0

    @property
    def samples_per_second(self) -> result.Throughput:
        speeds = [window.samples_per_second for window in self.windows]
        return result.Throughput(statistics.median(speeds), speeds)

    @property
    def tokens_per_second(self) -> result.Throughput | None:
        speeds = [window.tokens_per_second for window in self.windows if window.tokens_per_second is not None]
        return result.Throughput(statistics.median(speeds), speeds) if speeds else None

    @property
    def step_ms(self) -> result.StepTime:
        return result.step_time([ms for window in self.windows for ms in window.step_ms])


def quiet(*_: object, **__: object) -> None:
    """Report nothing."""


def time_training(
    batches: Iterator[Batch],
    train_step: TrainStep,
    device: torch.device,
    plan: Plan,
    count_tokens: TokenCount | None = None,
    report: Callable[..., None] = quiet,
    around_windows: AbstractContextManager[Any] | None = None,
) -> Timing:
    """Train on `batches` and time it: the first step, a warm-up that is not timed, then the windows of `plan`.

    batches: `Epochs`, or another iterator. No epoch begins within a window, unless an epoch is shorter than one.
    report(phase, done): called after each part. around_windows: entered while the windows are timed.

    A GPU's peaks are those of the windows, and of the step before them: what the warm-up reserved and does not need any
    more (workspaces of algorithms that cuDNN tried) is given back first.
    """
    if device.type == "cpu":
        keep_freed_memory()
    report("first step", 0)  # it may take minutes
    first_step_seconds = _time_first_step(next(batches), train_step, device)
    steps = warm_up(batches, train_step, device, plan)
    report("warm-up", 1)
    if device.type == "cuda":
        empty_cache(device)
        torch.cuda.reset_peak_memory_stats(device)
        train_step(*next(batches))  # reserves again what a step needs, which takes time
    windows, trained, faults = [], 0, page_faults()
    with around_windows or nullcontext():
        for number in range(1, plan.windows + 1):
            skipped = steps_past_epoch(batches, steps)
            for _ in range(skipped):
                train_step(*next(batches))
            trained += skipped + steps
            windows.append(timed_window(batches, train_step, device, steps, count_tokens))
            report(f"window {number}/{plan.windows}", number + 1, samples_per_second=windows[-1].samples_per_second)
    return Timing(first_step_seconds, windows, (page_faults() - faults) / trained)


def _time_first_step(batch: Batch, train_step: TrainStep, device: torch.device) -> float:
    synchronize(device)
    begin = time.perf_counter()
    train_step(*batch)
    synchronize(device)
    return time.perf_counter() - begin


def warm_up(batches: Iterator[Batch], train_step: TrainStep, device: torch.device, plan: Plan) -> int:
    """Train untimed until caches, clocks and the loader's queue are as they will be; return the steps of a window.

    What a loader's workers have loaded ahead is used up first, since it shows no loading.
    """
    begin = time.perf_counter()
    for _ in range(plan.warmup_steps + queued(batches)):
        train_step(*next(batches))
    step_ms = []
    while ranks.from_rank_0(not step_ms or time.perf_counter() - begin < plan.warmup_seconds):
        step_ms += timed_window(batches, train_step, device, plan.window_steps).step_ms
    steps = max(plan.window_steps, math.ceil(plan.window_seconds * 1e3 / statistics.fmean(step_ms)))
    return ranks.from_rank_0(steps)


def timed_window(
    batches: Iterator[Batch],
    train_step: TrainStep,
    device: torch.device,
    steps: int,
    count_tokens: TokenCount | None = None,
) -> Window:
    """Train `steps` steps and time them. Only its edges synchronise the device; in between, only `train_step` may."""
    losses, marks, samples = [], [], 0
    tokens = []
    synchronize(device)
    begin = time.perf_counter()
    marks.append(_mark(device))
    for _ in range(steps):
        batch = next(batches)
        losses.append(train_step(*batch).detach())
        marks.append(_mark(device))
        samples += len(batch[0])
        if count_tokens:
            tokens.append(count_tokens(batch))
    synchronize(device)
    seconds = time.perf_counter() - begin
    if device.type == "cuda":
        step_ms = [before.elapsed_time(after) for before, after in pairwise(marks)]
    else:
        step_ms = [(after - before) * 1e3 for before, after in pairwise(marks)]
    speed, token_speed = ranks.summed([samples / seconds, float(sum(tokens)) / seconds])
    loss = torch.stack(losses).float().mean().item()
    return Window(speed, token_speed if count_tokens else None, step_ms, loss)


def _mark(device: torch.device) -> Any:
    """A point in time: on a GPU an event in the device's own queue, which the host does not wait for; else seconds."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
