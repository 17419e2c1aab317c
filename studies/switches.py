"""The training program of all steps in one, each optimisation a switch: what `ablate` measures.

With nothing on it is step 00, with all up to step k it is step k; a test holds it to that. The steps are the lesson,
one change after the other; this is for the combinations that the ladder passes by.

Each measurement is a process of its own: what one compiled, allocated or chose does not reach the next.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import resize

from common.data import CIFAR10_MEAN, CIFAR10_STD, cifar10, resized_float, resized_uint8, stored_uint8
from common.device import autocast_dtype, disable_tf32, enable_tf32
from common.failures import as_input_error
from common.loaders import DeviceLoader, Epochs, Loader, Prefetcher
from common.model import classifier
from common.options import StepOptions
from common.timing import Plan, Timing, TrainStep, time_training
from studies import study
from studies.ablation import BASELINE_BATCH, Optimisations
from walkthrough.compare.isolated import not_compiled
from walkthrough.results.environment import now
from walkthrough.results.errors import InputError, is_out_of_memory

FULL = Plan(warmup_steps=2, warmup_seconds=0.8, windows=5, window_steps=2, window_seconds=0.6)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)


@dataclass(frozen=True)
class Training:
    """A program to measure: its loader, and its train_step(images, labels), which returns the loss."""

    loader: Loader
    train_step: TrainStep


def training(on: Optimisations, options: StepOptions) -> Training:
    """The `Training` with the `Optimisations` that are `on`.

    options: batch_size is used with bigger_batch, workers with multiprocess_loading, precision with amp.
    on_device_data replaces the loader and all that is done to it. Raises InputError as the steps do.
    """
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    enable_tf32() if on.tf32 else disable_tf32()
    torch.backends.cudnn.benchmark = on.cudnn_benchmark

    loader = _loader(on, options, device)
    model = classifier(options.model, options.image_size).to(device)
    if on.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # lacks a stub
    mode = "reduce-overhead" if on.cuda_graphs else None
    if on.compile and not on.compile_loss:
        model.compile(mode=mode)
    criterion = nn.CrossEntropyLoss()
    fused = {"fused": True} if on.fused_optimizer else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **fused)
    amp_dtype = autocast_dtype(device, options.precision) if on.amp else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scale, bias = 1 / (255 * std), -mean / std
    on_device_already = on.prefetch_stream or on.on_device_data
    small = on.small_images or on.on_device_data
    uint8 = on.reduced_h2d_copy or on.on_device_data
    losses = []  # the training curve

    def forward(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if uint8:
            images = images * scale + bias if on.compile_loss else (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            return criterion(model(images), labels)

    if on.compile_loss:
        forward = torch.compile(forward, mode=mode)

    def train_step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not on_device_already:
            images = images.to(device, non_blocking=on.pinned_memory)
            labels = labels.to(device, non_blocking=on.pinned_memory)
        if on.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if small:
            images = resize(images, [options.image_size] * 2, antialias=False)
        loss = forward(images, labels)
        if on.cuda_graphs:
            loss = loss.clone()  # the graph's own output is overwritten by its next replay
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach() if on.no_hidden_syncs else loss.item())
        return loss

    return Training(loader, train_step)


def _loader(on: Optimisations, options: StepOptions, device: torch.device) -> Loader:
    batch_size = options.batch_size if on.bigger_batch else BASELINE_BATCH
    if on.on_device_data:
        return DeviceLoader(cifar10(options.data), batch_size, device, options.seed)
    resized = resized_uint8 if on.reduced_h2d_copy else resized_float
    transform = stored_uint8() if on.small_images else resized(options.image_size)
    workers = options.workers if on.multiprocess_loading else 0
    loader = DataLoader(
        cifar10(options.data, transform=transform), batch_size=batch_size, shuffle=True,
        drop_last=True, num_workers=workers, persistent_workers=workers > 0, pin_memory=on.pinned_memory,
    )  # fmt: skip
    return Prefetcher(loader, device) if on.prefetch_stream else loader


def timed(
    on: Optimisations, options: StepOptions, plan: Plan, around_windows: AbstractContextManager[Any] | None = None
) -> tuple[Training, Timing]:
    """Train the program with the `Optimisations` that are `on`, and time it; nothing is traced.

    around_windows: entered while the windows are timed. Raises InputError as the steps do.
    """
    device = torch.device(options.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    program = training(on, options)
    loader = program.loader
    if len(loader) == 0:
        raise InputError(f"batch size {loader.batch_size} is larger than the data ({len(loader.dataset)} images)")
    with as_input_error(options, loader, device):
        return program, time_training(Epochs(loader), program.train_step, device, plan, around_windows=around_windows)


def program(options: StepOptions, run: int, variant: str, on: Sequence[str], precision: str) -> dict[str, Any]:
    """Measure the program with the optimisations of these names on: images/s of each window, `StepTime` in ms, …

    Raises InputError where the user's input or a compiler is what stops it.
    """
    started, switched = now(), Optimisations(**dict.fromkeys(on, True))
    try:
        made, timing = timed(switched, replace(options, precision=precision), QUICK if options.quick else FULL)
    except InputError as error:
        raise InputError(str(error).removesuffix(", or skip this step")) from error
    except Exception as error:
        if switched.compile and not is_out_of_memory(error):  # a compiler fails in any way
            raise InputError(not_compiled(error)) from error
        raise
    return {
        "samples_per_second": asdict(timing.samples_per_second),
        "step_ms": asdict(timing.step_ms),
        "first_step_seconds": timing.first_step_seconds,
        "batch_size": made.loader.batch_size,
        "started": started,
    }


if __name__ == "__main__":
    study.serve(program)
