"""The floor of a step's time: the model trained on one batch that lies on the device already, with no input pipeline.

Three times: laid out and updated as in steps 01 to 05, but without their loss.item(); with channels last and the fused
optimizer, as in step 07; and compiled, as in step 08. The compiled one is measured by this module as a program,
`python -m common.studies.one_batch`, in a process of its own, since compiling can take minutes, can be stopped only from outside,
and can bring a process down.
"""

import json
import statistics
import sys
from itertools import repeat
from types import SimpleNamespace

import torch
from torch import nn

from common.device import checked_device, device_name, disable_tf32, empty_cache
from common.errors import InputError, compile_failure, is_out_of_memory, printable
from common.ladder.runner import prepare
from common.options import image_size_for
from common.record import Throughput, step_time
from common.session import Plan, timed_window, warm_up
from common.studies.isolated import isolated_process
from common.studies.limit.record import Floor

FULL = Plan(warmup_steps=1, warmup_seconds=1.0, windows=5, window_steps=1, window_seconds=1.5)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)
PLAIN, CHANNELS_LAST, COMPILED = "uncompiled", "channels last", "compiled"
NO_LOADER = SimpleNamespace(num_workers=0, prefetch_factor=None)


class TrainStep:
    """The train step of the course, in `precision`: train_step(images, labels) returns the loss.

    model: a classifier, which is moved to the device; also its layout, its optimizer, and whether it is compiled follow
    `kind`. Images are float, normalised, on the device, and laid out as `laid_out` does it.
    """

    def __init__(self, model, device, precision, kind=PLAIN):
        self.device, self.precision = device, precision
        self.layout = torch.contiguous_format if kind == PLAIN else torch.channels_last
        model = model.to(device, memory_format=self.layout)
        self.model = torch.compile(model) if kind == COMPILED else model
        self.criterion = nn.CrossEntropyLoss()
        fused = None if kind == PLAIN else True  # None leaves torch its default, which on a GPU is foreach
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)

    def __call__(self, images, labels):
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            loss = self.criterion(self.model(images), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def laid_out(self, images, labels):
        return images.contiguous(memory_format=self.layout), labels


def ready_device(args):
    """Fill in the options that follow from this machine, make the log folder, and return the device to measure on.

    args: from `add_step_options`; `device` and `image_size` are set. Raises InputError for what this machine lacks.
    """
    args.device = checked_device(args.device)
    args.image_size = image_size_for(args, args.device)
    device = torch.device(args.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    prepare(args)
    disable_tf32()
    return device


def batch_on(device, batch_size, image_size):
    """A batch of noise on the device: float images [N, 3, image_size, image_size] and labels [N] in 0..9."""
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    return images, torch.randint(10, (batch_size,), device=device)


def fitting_batch(train_step, batch_size, image_size):
    """Train two steps on `batch_size` images (the first makes the momentum); on half as many while memory holds none.

    Returns the batch that fits, and notes: one of the sizes that did not, if any. Raises InputError where none does.
    """
    device, tried, size = train_step.device, [], batch_size
    while size:
        try:
            batch = batch_on(device, size, image_size)
            for _ in range(2):
                train_step(*batch)
            sizes = ", ".join(map(str, tried))
            return batch, [f"out of memory with batch size {sizes}: measured with batch {size}"] if tried else []
        except Exception as error:
            if "Expected more than 1 value per channel" in str(error):
                if not tried:
                    raise InputError(
                        f"batch norm needs more than one value per channel: a batch of {size} at {image_size} px is "
                        "too small, try a larger --batch-size or --image-size"
                    ) from error
                break
            if not is_out_of_memory(error):
                raise
        batch = None
        train_step.optimizer.zero_grad()
        empty_cache(device)
        tried.append(size)
        size //= 2
    sizes = ", ".join(map(str, tried))
    raise InputError(
        f"out of memory on {device_name(device)}: tried batch size {sizes} at {image_size} px; try a smaller --model "
        "or --image-size, or free the memory that other programs hold"
    )


def windows_of(train_step, batch, device, plan):
    """The timed windows (`session.Window`) of training on that one batch, after a warm-up."""
    batches = repeat(train_step.laid_out(*batch))
    steps = warm_up(batches, train_step, device, plan, NO_LOADER)
    return [timed_window(batches, train_step, device, steps) for _ in range(plan.windows)]


def speeds_of(windows):
    """images/s of each window, and ms of each of their steps."""
    return [window.samples_per_second for window in windows], [ms for window in windows for ms in window.step_ms]


def floor(kind, speeds, step_ms, batch_size, counted, flops_roof):
    """The `Floor` of what `speeds_of` gives. counted: the `flops.OperatorCounter` of a step.

    MFU is the model's FLOPs over time and peak, after "PaLM" (Chowdhery et al. 2022, appendix B), with two differences:
    the FLOPs are counted, not estimated from the parameters, and the peak is the one measured here.
    """
    median = statistics.median(speeds)
    per_second = counted.flops * median / batch_size
    return Floor(
        kind=kind,
        samples_per_second=Throughput(median, list(speeds)),
        step_ms=step_time(step_ms),
        flops_per_second=per_second,
        mfu=per_second / flops_roof,
        bytes_per_second=counted.bytes * median / batch_size if kind != COMPILED else None,
    )


def compiled_windows(settings, limit_seconds, command=(sys.executable, "-m", "common.studies.one_batch")):
    """Measure the model compiled, in a process of its own: (images/s of each window, ms of each step, None).

    settings: what `_measure_compiled` takes. Where it cannot be, ([], [], why, in a line). limit_seconds: how long
    starting and compiling together may take; the process and all it started are ended then.
    """
    told = {}
    with isolated_process(command, settings, limit_seconds) as (process, timer, late):
        for line in process.stdout:
            if line.startswith('{"compiled'):
                timer.cancel()
            if line.startswith("{"):
                told.update(json.loads(line))
        code = process.wait()
    if "samples_per_second" in told:
        return told["samples_per_second"], told["step_ms"], None
    if late.is_set():
        return [], [], f"torch.compile was not done after {limit_seconds} s (--compile-limit sets how long to wait)"
    return [], [], told.get("error") or f"torch.compile failed: its process ended with code {code}"


def _measure_compiled(device, model, image_size, batch_size, precision, seed, quick):
    """What the process of `compiled_windows` does: prints a line of JSON once compiled, and one with all windows."""
    from common.model import classifier

    device = torch.device(device)
    if device.index is not None:
        torch.cuda.set_device(device)
    disable_tf32()
    torch.manual_seed(seed)
    try:
        batch = batch_on(device, batch_size, image_size)
        train_step = TrainStep(classifier(model, image_size), device, getattr(torch, precision), COMPILED)
        train_step(*train_step.laid_out(*batch)).item()
        print(json.dumps({"compiled": True}), flush=True)
        speeds, step_ms = speeds_of(windows_of(train_step, batch, device, QUICK if quick else FULL))
    except Exception as error:  # a compiler fails in any way
        print(json.dumps({"error": not_compiled(error)}), flush=True)
        return
    print(json.dumps({"samples_per_second": speeds, "step_ms": step_ms}), flush=True)


def not_compiled(error):
    """Why the compiled model could not be measured, in a line."""
    if is_out_of_memory(error):
        return "the compiled model runs out of memory at this batch size"
    if told := compile_failure(error):
        return told.removesuffix(", or skip this step")
    return f"torch.compile failed: {type(error).__name__}: {printable(error, 160)}"


if __name__ == "__main__":
    _measure_compiled(**json.loads(sys.argv[1]))
