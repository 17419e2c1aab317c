"""The train step of the course on one batch that is on the device already, with no input pipeline.

What every step of the ladder has to do at best is in it: normalisation, model, loss, backward pass and a fused
optimizer, and where asked for the resizing of images of 32 px, as in steps 07 to 15.
"""

from itertools import repeat

import torch
from torch import nn
from torchvision.transforms.v2.functional import resize

from common.data import CIFAR10_MEAN, CIFAR10_STD
from common.device import device_name, empty_cache
from common.failures import batch_norm_problem
from common.timing import Plan, Timing, time_training
from walkthrough.results.errors import InputError, is_out_of_memory

PLAIN = "uncompiled"  # what a `TrainStep` is that is told nothing else
STORED_SIZE = 32  # px of CIFAR-10's images

Batch = tuple[torch.Tensor, torch.Tensor]


class TrainStep:
    """train_step(images, labels) trains on uint8 images [N, 3, H, W] and labels [N] on the device; returns the loss.

    model: a classifier, which is moved to the device. precision: autocast's; float32 where it is off. image_size: px
    that images are resized to, None where they have the size already. compiled: normalisation, model and loss become
    one compiled function; resizing stays outside, since the code generated for it is slower than torch's own on a CPU.
    cuda_graphs: of that function, as in step 15; on a CPU nothing changes.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: torch.dtype,
        image_size: int | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        self.device, self.precision, self.image_size = device, precision, image_size
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(device=device, memory_format=self.layout)  # pyright: ignore[reportCallIssue]  # lacks a stub
        self.criterion = nn.CrossEntropyLoss()
        self.cuda_graphs = cuda_graphs
        mode = "reduce-overhead" if cuda_graphs else None
        self.forward = torch.compile(self._forward, mode=mode) if compiled else self._forward
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
        mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (CIFAR10_MEAN, CIFAR10_STD))
        self.scale, self.bias = 1 / (255 * std), -mean / std

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = images.contiguous(memory_format=self.layout)
        if self.image_size not in (None, images.shape[-1]):
            images = resize(images, [self.image_size, self.image_size], antialias=False)
        loss = self.forward(images, labels)
        if self.cuda_graphs:
            loss = loss.clone()  # the next replay overwrites it
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def _forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            return self.criterion(self.model(images * self.scale + self.bias), labels)


def batch_on(device: torch.device, batch_size: int, image_size: int = STORED_SIZE) -> Batch:
    """A batch of noise on the device: uint8 images [N, 3, image_size, image_size] and labels [N] in 0..9."""
    images = torch.randint(256, (batch_size, 3, image_size, image_size), dtype=torch.uint8, device=device)
    return images, torch.randint(10, (batch_size,), device=device)


def fitting_batch(train_step: TrainStep, batch_size: int, image_size: int) -> tuple[Batch, list[str]]:
    """Train two steps on `batch_size` images (the first makes the momentum); on half as many while memory is too small.

    image_size: of the images in the batch, px.
    Returns the batch that fits, and notes: one of the sizes that did not, if any. Raises InputError where none does.
    """
    device, tried, size = train_step.device, [], batch_size
    px = train_step.image_size or image_size
    while size:
        try:
            batch = batch_on(device, size, image_size)
            for _ in range(2):
                train_step(*batch)
            sizes = ", ".join(map(str, tried))
            return batch, [f"out of memory with batch size {sizes}: measured with batch {size}"] if tried else []
        except Exception as error:
            if message := batch_norm_problem(error, size, px):
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
        f"out of memory on {device_name(device)}: tried batch size {sizes} at {px} px; try a smaller --model "
        "or --image-size, or free the memory that other programs hold"
    )


def time_one_batch(train_step: TrainStep, batch: Batch, device: torch.device, plan: Plan) -> Timing:
    """The `timing.Timing` of training on that one batch."""
    return time_training(repeat(batch), train_step, device, plan)
