"""A lab's numbered program as its study measures it: its own train step, on one batch that is on the device.

So what is measured is what the reader reads, and a study holds no copy of it.
"""

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from inspect import getclosurevars
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import Dataset

import common.data
import common.session
from common.device import dtype_name, empty_cache, gpu_peak_bytes
from common.loaders import Batch, Epochs, Loader
from common.options import StepOptions
from common.timing import Plan, Timing, TokenCount, TrainStep, time_training
from common.tracing import cpu_peak_bytes

FULL = Plan(warmup_steps=1, warmup_seconds=0.5, windows=5, window_steps=1, window_seconds=0.6)  # on one batch
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)
LOADED = {  # by --quick: of a training with its loader, whose batches differ, so a window has several
    False: Plan(warmup_steps=2, warmup_seconds=0.5, windows=5, window_steps=4, window_seconds=1.0),
    True: Plan(warmup_steps=0, warmup_seconds=0.0, windows=2, window_steps=1, window_seconds=0.3),
}


@dataclass(frozen=True)
class Program:
    """A program that ran up to its call of `run_step`. train_step: it trains on one batch. precision: its dtype's name.

    loader: of its batches. variables: what the train step uses of `main`: "model", "optimizer", "criterion" and so on.
    """

    train_step: TrainStep
    loader: Loader
    precision: str
    variables: Mapping[str, Any]


class _Left(BaseException):
    """Leaves a program's main() at its call of `run_step`; no error."""


class NoData(Dataset):
    """In place of a data set that nobody reads: as many samples as one asks for, none of which can be loaded."""

    source = "none"

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        raise IndexError("no data: batches are made by the study")


def program(file: Path, options: StepOptions, workers: int = 0) -> Program:
    """Run the main() of a program with these options up to its call of `run_step`, without CIFAR-10.

    workers: of its loader, where it has some. What it prints goes to stderr, since an isolated process answers on
    stdout. A program that ends before that call raises what it raised; InputError for input that it refuses.
    """
    reached: list[Program] = []

    def run_step(
        file: str, args: StepOptions, loader: Loader, train_step: TrainStep, precision: Any = None, *_: Any, **__: Any
    ) -> None:
        variables = getclosurevars(train_step).nonlocals
        reached.append(Program(train_step, loader, dtype_name(precision or torch.float32), variables))
        raise _Left

    words = ["--device", options.device, "--model", options.model, "--data", str(options.data)]
    words += ["--image-size", str(options.image_size)] if options.image_size else []  # 0: it is not of images
    words += ["--batch-size", str(options.batch_size), "--seed", str(options.seed)]
    words += ["--precision", options.precision] if options.precision != "auto" else []  # not all programs have several
    with (
        patch.object(common.session, "run_step", run_step),
        patch.object(common.data, "cifar10", lambda *_, **__: NoData()),
        patch.object(sys, "argv", [str(file), *words, "--workers", str(workers)]),
        redirect_stdout(sys.stderr),
    ):
        module = loaded(file)
        with suppress(_Left):
            module.main()
    return reached[0]


def loaded(file: Path) -> Any:
    """A program's file as a module, which is run as far as its definitions go."""
    spec = importlib.util.spec_from_file_location(f"program_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # a file's
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def float_batch(options: StepOptions, batch_size: int | None = None) -> Batch:
    """A batch of noise on the device: float images [N, 3, image size, image size] and labels [N] in 0..9."""
    size = batch_size or options.batch_size
    images = torch.randn(size, 3, options.image_size, options.image_size, device=options.device)
    return images, torch.randint(10, (size,), device=options.device)


def timed(train_step: TrainStep, batch: Batch, options: StepOptions) -> Timing:
    """The `timing.Timing` of training on that one batch: first step, warm-up, windows."""
    plan = QUICK if options.quick else FULL
    return time_training(repeat(batch), train_step, torch.device(options.device), plan)


def timed_with_loader(
    train_step: TrainStep, loader: Loader, options: StepOptions, count_tokens: TokenCount | None = None
) -> Timing:
    """The `timing.Timing` of training on a loader's batches: what workers loaded ahead is used up first."""
    plan = LOADED[options.quick]
    return time_training(Epochs(loader), train_step, torch.device(options.device), plan, count_tokens)


def peak_bytes(train_step: TrainStep, batch: Batch, device: torch.device) -> int:
    """The most bytes that one step holds: the second, since the first makes the optimizer's state.

    GPU: of the allocator, weights and state included. CPU: what the step allocates on top of weights and state, as the
    profiler counts it.
    """
    train_step(*batch)
    if device.type == "cuda":
        empty_cache(device)
        torch.cuda.reset_peak_memory_stats(device)
        train_step(*batch)
        return gpu_peak_bytes(device)[0]
    return profiled_peak_bytes(partial(train_step, *batch))


def profiled_peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator holds during step() beyond what was before: see `cpu_peak_bytes`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return cpu_peak_bytes(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
