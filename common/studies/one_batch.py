"""The model trained on one batch that is on the device already, with no input pipeline: as fast as the model can be.

In three ways: with the layout and the optimizer of steps 01 to 05, but without their loss.item(); with channels last
and the fused optimizer, as in step 07; and compiled, as in step 08.
"""

from itertools import repeat

import torch
from torch import nn

from common.device import device_name, empty_cache
from common.errors import InputError, is_out_of_memory
from common.failures import batch_norm_problem
from common.session import Plan, Timing, time_training

FULL = Plan(warmup_steps=1, warmup_seconds=1.0, windows=5, window_steps=1, window_seconds=1.5)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=1, window_seconds=0.1)
PLAIN, CHANNELS_LAST, COMPILED = "uncompiled", "channels last", "compiled"

Batch = tuple[torch.Tensor, torch.Tensor]


class TrainStep:
    """The train step of the course, in `precision`: train_step(images, labels) returns the loss.

    model: a classifier, which is moved to the device. kind: `PLAIN`, `CHANNELS_LAST` or `COMPILED`; the model's layout,
    the optimizer, and whether the model is compiled follow from it. Images are float, normalised, on the device, in
    the layout that `laid_out` gives them.
    """

    def __init__(self, model: nn.Module, device: torch.device, precision: torch.dtype, kind: str = PLAIN) -> None:
        self.device, self.precision = device, precision
        self.layout = torch.contiguous_format if kind == PLAIN else torch.channels_last
        model = model.to(device=device, memory_format=self.layout)  # pyright: ignore[reportCallIssue]  # lacks a stub
        self.model = torch.compile(model) if kind == COMPILED else model
        self.criterion = nn.CrossEntropyLoss()
        fused = None if kind == PLAIN else True  # None leaves torch its default, which on a GPU is foreach
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            loss = self.criterion(self.model(images), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def laid_out(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        return images.contiguous(memory_format=self.layout), labels


def batch_on(device: torch.device, batch_size: int, image_size: int) -> Batch:
    """A batch of noise on the device: float images [N, 3, image_size, image_size] and labels [N] in 0..9."""
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    return images, torch.randint(10, (batch_size,), device=device)


def fitting_batch(train_step: TrainStep, batch_size: int, image_size: int) -> tuple[Batch, list[str]]:
    """Train two steps on `batch_size` images (the first makes the momentum); on half as many while memory is too small.

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
            if message := batch_norm_problem(error, size, image_size):
                if not tried:
                    raise InputError(message) from error
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


def time_one_batch(train_step: TrainStep, batch: Batch, device: torch.device, plan: Plan) -> Timing:
    """The `session.Timing` of training on that one batch."""
    return time_training(repeat(train_step.laid_out(*batch)), train_step, device, plan)
