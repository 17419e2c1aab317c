"""Training on any number of processes, epoch by epoch: what `train.py` and the study run.

The batch size is that of one optimizer step, over all processes: each trains on its share of every batch, in one pass
or in several, and the gradients are averaged. So the number of processes and of passes changes how long a step takes,
and not what is trained. With two exceptions, as everywhere with DistributedDataParallel: batch norm normalises each
pass of each process by its own images (`SyncBatchNorm`, which does not, is for GPUs only, and waits in every layer),
and dropout draws other masks in each process. A model without the two trains the same, up to the order of sums.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from inspect import signature
from itertools import islice
from typing import Any

from common.device import synchronize
from walkthrough.results.errors import InputError

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STATEFUL = ("model", "optimizer", "scaler")
MOMENTUM, WEIGHT_DECAY = 0.9, 4e-5  # the latter as MobileNetV2's authors have it
WARMUP_EPOCHS = 1  # the learning rate rises; then it falls to 0 along a cosine
# Before each forward pass; what torch calls it, by version
_NAMES = ("forward_sync_buffers", "broadcast_buffers")
SENDS_BUFFERS = next(name for name in _NAMES if name in signature(DistributedDataParallel).parameters)
TOP = 5
VALIDATION_BATCH = 256  # images, of a process

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only, on any number of processes.

    batch_size: images of one optimizer step, over all processes. epochs: the learning rate falls to 0 at their end, so
    they are among the settings. precision: one of `DTYPES`, as "auto" differs from machine to machine.
    """

    model: str
    data: str
    image_size: int
    batch_size: int
    epochs: int
    lr: float
    precision: str
    seed: int


@dataclass(frozen=True)
class Epoch:
    """One epoch, of all processes together; shares are 0..1.

    loss: the mean over the training images as they were trained on. validation_loss, top1, top5: of the validation
    images, each counted once; top5: the right class is among the five likeliest. seconds: of training.
    """

    epoch: int
    loss: float
    validation_loss: float
    top1: float
    top5: float
    seconds: float
    images_per_second: float
    processes: int


class Training:
    """A model that each process of a group (see `ranks.joined`) trains, epoch by epoch, on its share of the data.

    model: float [N, …] -> [N, classes], whose weights those of rank 0 replace. train_set, validation_set: items
    (image, label), the same in every process. prepare: what is done to a batch's images on the device. workers: of each
    process's loader. passes: in which a process trains on its share of a batch; gradients are exchanged in the last.
    bucket_mb: MiB of gradients that are sent at once, while others are still computed; None for torch's own: the first
    part of 1, so that sending begins early, the others of 25. Batch norm's statistics are sent when they are used, at
    validation, and not before each forward pass, as DistributedDataParallel would.

    Raises InputError where the batch size cannot be divided, or is larger than the data.
    """

    def __init__(
        self,
        settings: Settings,
        model: nn.Module,
        train_set: Dataset,
        validation_set: Dataset,
        device: torch.device,
        prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
        workers: int = 0,
        passes: int = 1,
        bucket_mb: float | None = None,
    ) -> None:
        self.settings, self.device, self.passes, self.epochs = settings, device, passes, list[Epoch]()
        self.prepare = prepare or nn.Identity()
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        self.module = model.to(device)
        self.model = self.module
        if self.processes > 1:
            self.model = DistributedDataParallel(
                self.module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, **{SENDS_BUFFERS: False}
            )
        self.optimizer = torch.optim.SGD(
            self.module.parameters(), settings.lr, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )
        self.amp_dtype = DTYPES[settings.precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp_dtype == torch.float16)
        # Rank r has the positions r, r + processes, … of an order that the seed and the epoch alone determine: the
        # images of a batch are the same on any number of processes.
        self.sampler = DistributedSampler(
            train_set, self.processes, self.rank, shuffle=True, seed=settings.seed, drop_last=True
        )
        self.steps = len(train_set) // settings.batch_size  # pyright: ignore[reportArgumentType]  # it has a length
        if not self.steps:
            raise InputError(f"--batch-size {settings.batch_size} is larger than the data: choose a smaller one")
        loading: dict[str, Any] = {"num_workers": workers, "pin_memory": device.type == "cuda"}
        self.loader = DataLoader(
            train_set, share(settings.batch_size, self.processes, passes), sampler=self.sampler,
            persistent_workers=workers > 0, **loading,
        )  # fmt: skip
        own = range(self.rank, len(validation_set), self.processes)  # pyright: ignore[reportArgumentType]
        self.validation = DataLoader(Subset(validation_set, own), VALIDATION_BATCH, **loading)

    def step(self, batches: Iterator[Batch]) -> torch.Tensor:
        """One optimizer step on this process's share of a batch, in `passes`; the mean loss of the share."""
        self.optimizer.zero_grad(set_to_none=True)
        loss_of_share = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            with self.without_exchange() if number < self.passes else nullcontext():
                loss = self._loss(batch) / self.passes
                self.scaler.scale(loss).backward()
            loss_of_share += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss_of_share

    def epoch(self) -> Epoch:
        """Train one more epoch and validate. Its order and random numbers are of the seed and the epoch's number alone.

        Raises InputError where the loss is no number.
        """
        number = len(self.epochs) + 1
        torch.manual_seed(self.settings.seed * 100_003 + number * 1_009 + self.rank)
        self.sampler.set_epoch(number)
        self.model.train()
        losses, begin = torch.zeros((), device=self.device, dtype=torch.float64), time.perf_counter()
        batches = iter(self.loader)
        for step in range(self.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.settings, number - 1 + step / self.steps)
            losses += self.step(islice(batches, self.passes))
        dist.all_reduce(losses)
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        loss = losses.item() / self.steps / self.processes
        if not math.isfinite(loss):
            raise InputError(f"the loss of epoch {number} is no number: the training diverged, try a smaller --lr")
        images = self.steps * self.settings.batch_size
        done = Epoch(number, loss, *self.validated(), seconds, images / seconds, self.processes)
        self.epochs.append(done)
        return done

    @torch.no_grad()
    def validated(self) -> tuple[float, float, float]:
        """(Mean loss, top-1, top-5 share) of the validation images, each counted once, whatever their number.

        By rank 0's running statistics of batch norm, those that a checkpoint holds, in every process.
        """
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
        self.module.eval()
        sums = torch.zeros(4, device=self.device, dtype=torch.float64)
        for images, labels in self.validation:
            logits, labels = self._logits(self.module, images), labels.to(self.device)
            likeliest = logits.topk(min(TOP, logits.shape[1])).indices == labels.unsqueeze(1)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            values = (loss, likeliest[:, 0].sum(), likeliest.sum(), torch.tensor(len(labels)))
            sums += torch.stack([value.to(sums) for value in values])
        dist.all_reduce(sums)
        loss, top1, top5, count = sums.tolist()
        return loss / count, top1 / count, top5 / count

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on, for torch.save."""
        of_parts = {"model": self.module, "optimizer": self.optimizer, "scaler": self.scaler}
        parts = {name: of_parts[name].state_dict() for name in STATEFUL}
        return {"settings": asdict(self.settings), "epochs": [asdict(epoch) for epoch in self.epochs], **parts}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` of a training with the same settings; the same one in every process."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # one that is off has none
            self.scaler.load_state_dict(state["scaler"])
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]

    def without_exchange(self) -> AbstractContextManager:
        """Gradients are added up in this process, and not sent: DDP's `no_sync`."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def _loss(self, batch: Batch) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self._logits(self.model, images), labels.to(self.device, non_blocking=True))

    def _logits(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """float32 [images, classes]."""
        images = self.prepare(images.to(self.device, non_blocking=True))
        with torch.autocast(self.device.type, self.amp_dtype, enabled=self.amp_dtype != torch.float32):
            return model(images).float()


def share(batch_size: int, processes: int, passes: int) -> int:
    """Images of a batch in one pass of one process. Raises InputError where it cannot be divided."""
    if batch_size % (processes * passes):
        raise InputError(
            f"--batch-size {batch_size} is of all processes: it has to be a multiple of {processes * passes}, for "
            f"{processes} processes with --accumulate {passes}"
        )
    return batch_size // processes // passes


def learning_rate(settings: Settings, epochs: float) -> float:
    """After so many epochs: rises over the first, then falls to 0 along a cosine."""
    if epochs < WARMUP_EPOCHS:
        return settings.lr * max(epochs / WARMUP_EPOCHS, 0.05)
    share_done = (epochs - WARMUP_EPOCHS) / max(1, settings.epochs - WARMUP_EPOCHS)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * share_done))
