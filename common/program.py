"""A program as a study measures it: its own train step, captured at its call of `run_step`.

So what is measured is what the reader reads, and a study holds no copy of it.
"""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

import torch

from common.device import empty_cache, gpu_peak_bytes
from common.failures import NOT_PINNED
from common.loaders import Batch, Epochs
from common.options import StepOptions
from common.timing import Plan, Timing, time_training
from common.tracing import cpu_peak_bytes
from walkthrough.results import capture
from walkthrough.results.capture import Program

FULL = Plan(warmup_steps=1, warmup_seconds=0.5, windows=5, window_steps=1, window_seconds=0.6)  # on one batch
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)
LOADED = {  # by --quick: of a training with its loader, whose batches differ, so a window has several
    False: Plan(warmup_steps=2, warmup_seconds=0.5, windows=5, window_steps=4, window_seconds=1.0),
    True: Plan(warmup_steps=0, warmup_seconds=0.0, windows=2, window_steps=1, window_seconds=0.3),
}


def captured(file: Path, words: Sequence[str], *, blank_data: bool = True) -> Program:
    """What a program's file passes to `run_step` with these words on its command line; see `capture.captured`.

    blank_data: in place of CIFAR-10 black images, since the study makes its own batches. What the program prints goes
    to stderr, since an isolated process answers on stdout. Raises what the program raises: InputError for input that it
    cannot use, SystemExit(2) for words that its parser refuses.
    """
    warnings.filterwarnings("ignore", message=NOT_PINNED)  # as where a program runs by itself
    wanted = replace(capture.current.get() or capture.Capture(), blank_data=blank_data)
    with redirect_stdout(sys.stderr):
        return capture.captured(file, words, wanted).program


def words_of(options: StepOptions, workers: int = 0) -> list[str]:
    """The command line of a program with these options, but for --quick; workers: of its loader, where it has some."""
    words = ["--device", options.device, "--model", options.model, "--data", str(options.data)]
    words += ["--image-size", str(options.image_size)] if options.image_size else []  # 0: it is not of images
    words += ["--batch-size", str(options.batch_size), "--seed", str(options.seed), "--workers", str(workers)]
    return words + (["--precision", options.precision] if options.precision != "auto" else [])  # not all have several


def float_batch(options: StepOptions, batch_size: int | None = None) -> Batch:
    """A batch of noise on the device: float images [N, 3, image size, image size] and labels [N] in 0..9."""
    size = batch_size or options.batch_size
    images = torch.randn(size, 3, options.image_size, options.image_size, device=options.device)
    return images, torch.randint(10, (size,), device=options.device)


def timed(program: Program, batch: Batch | None, quick: bool) -> Timing:
    """The `timing.Timing` of training on one batch; on None, on those of the program's loader.

    What workers loaded ahead is used up first.
    """
    device = torch.device(program.args.device)
    if batch is None:
        batches = Epochs(program.loader)
        return time_training(batches, program.train_step, device, LOADED[quick], program.count_tokens)
    return time_training(repeat(batch), program.train_step, device, QUICK if quick else FULL)


def peak_bytes(program: Program, batch: Batch) -> int:
    """The most bytes that one step holds: the second, since the first makes the optimizer's state.

    GPU: of the allocator, weights and state included. CPU: what the step allocates on top of weights and state, as the
    profiler counts it.
    """
    device = torch.device(program.args.device)
    program.train_step(*batch)
    if device.type == "cuda":
        empty_cache(device)
        torch.cuda.reset_peak_memory_stats(device)
        program.train_step(*batch)
        return gpu_peak_bytes(device)[0]
    return profiled_peak_bytes(partial(program.train_step, *batch))


def profiled_peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator holds during step() beyond what was before: see `cpu_peak_bytes`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return cpu_peak_bytes(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
