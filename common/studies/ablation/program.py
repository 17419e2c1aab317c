"""The training program of all steps in one, each optimisation a switch: what `ablate` measures.

With nothing on it is step 00, with all up to step k it is step k; a test holds it to that. The steps are the lesson,
one change after the other; this is for the combinations that the ladder passes by.

Each measurement is a process of its own, `python -m common.studies.ablation.program JSON`: what one compiled, allocated or chose does
not reach the next.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader

from common.data import CIFAR10_MEAN, CIFAR10_STD, cifar10, resized_float, resized_uint8
from common.device import autocast_dtype
from common.errors import InputError, is_out_of_memory
from common.failures import explained
from common.loaders import DeviceLoader, Prefetcher
from common.model import classifier
from common.record import step_time
from common.session import Plan, endless, first_step, timed_window, warm_up
from common.studies.ablation.plan import BASELINE_BATCH, Optimisations
from common.studies.one_batch import disable_tf32, not_compiled

FULL = Plan(warmup_steps=2, warmup_seconds=1.0, windows=5, window_steps=2, window_seconds=1.0)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)


@dataclass(frozen=True)
class Training:
    """A program to measure: its loader, its train_step(images, labels), which returns the loss, and what to note."""

    loader: object
    train_step: object
    notes: list[str]


def training(on, args):
    """The `Training` with the `Optimisations` that are `on`.

    args: data (a folder), model, image_size, batch_size (with bigger_batch), workers (with multiprocess_loading), seed,
    device. on_device_data replaces the loader and all that is done to it. Raises InputError as the steps do.
    """
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    disable_tf32()

    loader = _loader(on, args, device)
    model = classifier(args.model, args.image_size).to(device)
    if on.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if on.compile:
        model = torch.compile(model)
    criterion = nn.CrossEntropyLoss()
    fused = {"fused": True} if on.no_hidden_syncs else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **fused)
    amp_dtype, notes = autocast_dtype(device) if on.amp else (torch.float32, [])
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    on_device_already = on.prefetch_stream or on.on_device_data
    uint8 = on.reduced_h2d_copy or on.on_device_data
    losses = []  # the training curve

    def train_step(images, labels):
        if not on_device_already:
            images = images.to(device, non_blocking=on.pinned_memory)
            labels = labels.to(device, non_blocking=on.pinned_memory)
        if on.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if uint8:
            images = (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach() if on.no_hidden_syncs else loss.item())
        return loss

    return Training(loader, train_step, notes)


def _loader(on, args, device):
    batch_size = args.batch_size if on.bigger_batch else BASELINE_BATCH
    if on.on_device_data:
        return DeviceLoader(cifar10(args.data), batch_size, args.image_size, device, args.seed)
    resized = resized_uint8 if on.reduced_h2d_copy else resized_float
    workers = args.workers if on.multiprocess_loading else 0
    loader = DataLoader(
        cifar10(args.data, transform=resized(args.image_size)), batch_size=batch_size, shuffle=True, drop_last=True,
        num_workers=workers, persistent_workers=workers > 0, pin_memory=on.pinned_memory,
    )  # fmt: skip
    return Prefetcher(loader, device) if on.prefetch_stream else loader


def measure(made, device, plan):
    """Train and time a `Training` on a `torch.device`, nothing traced.

    Returns what the process prints: images/s of each window, `StepTime` in ms, seconds of the first step, batch size.
    """
    batches = endless(made.loader)
    first_step_seconds = first_step(made.train_step, *next(batches), device)
    steps = warm_up(batches, made.train_step, device, plan, made.loader)
    windows = [timed_window(batches, made.train_step, device, steps) for _ in range(plan.windows)]
    step_ms = [ms for window in windows for ms in window.step_ms]
    return {
        "windows": [window.samples_per_second for window in windows],
        "step_ms": asdict(step_time(step_ms)),
        "first_step_seconds": first_step_seconds,
        "batch_size": made.loader.batch_size,
        "notes": made.notes,
    }


def main(words):
    """Measure the program that a line of JSON describes, {"on": {…}, "args": {…}}; print the result, a line of JSON.

    Where the user's input or a compiler is what stops it, {"not_run": why, in a line}; where a worker was killed, which
    need not happen again, {"failed": why}. A defect keeps its traceback.
    """
    told = json.loads(words)
    on, args = Optimisations(**told["on"]), SimpleNamespace(**told["args"])
    args.data, args.logdir = Path(args.data), Path(args.data)
    args.ignores = () if on.bigger_batch else ("--batch-size",)
    device = torch.device(args.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    try:
        made = training(on, args)
        if len(made.loader) == 0:
            images = len(made.loader.dataset)
            raise InputError(f"--batch-size {made.loader.batch_size} is larger than the data ({images} images)")
        with explained(args, made.loader, device):
            found = measure(made, device, QUICK if args.quick else FULL)
    except InputError as error:
        lasting = "killed by signal" not in str(error) and "exited unexpectedly" not in str(error)
        found = {"not_run" if lasting else "failed": str(error).removesuffix(", or skip this step")}
    except Exception as error:
        if is_out_of_memory(error):
            found = {"not_run": "out of memory before the first batch"}
        elif on.compile:  # a compiler fails in any way
            found = {"not_run": not_compiled(error)}
        else:
            raise
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
