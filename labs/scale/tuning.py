"""What a trial of the sweep trains: MobileNetV2 on some of the classes, with the settings that are tried.

Settings are compared by accuracy on a fifth of the training images, which no trial trains on: val/ stays unseen until
one of them has been chosen.
"""

import hashlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.options import StepOptions
from labs.scale.jpegs import as_uint8, image_folder, listed, normalised
from labs.scale.model import mobilenet
from walkthrough.results.errors import InputError
from walkthrough.results.result import write_whole

import torch
from torch import nn

HELD_OUT = 5  # one image in so many
MOMENTUM = 0.9
EVALUATION_BATCH = 256
AfterEpoch = Callable[[int, dict[str, float]], None]  # (epoch from 1, {name: number}); it may raise, to end a training


@dataclass(frozen=True)
class Subset:
    """The images of some classes. images: uint8 [N, 3, S, S]. labels: int64 [N]. source: what the data are called.

    held_out: bool [N], those that settings are compared on.
    """

    images: torch.Tensor
    labels: torch.Tensor
    held_out: torch.Tensor
    classes: int
    source: str


def subset(options: StepOptions, classes: int) -> Subset:
    """The training images of the first so many classes, decoded and resized once and then kept in the log folder.

    Many processes, and the nodes of a cluster that shares the folder, read them from there. Raises InputError.
    """
    listing = listed(image_folder(options.data)).first_classes(classes)
    what = "\n".join([str(listing.root), str(options.image_size), *listing.files])
    path = options.logdir / f"images-{hashlib.sha256(what.encode()).hexdigest()[:12]}.pt"
    labels = torch.tensor(listing.labels)
    if not path.exists():
        decode = as_uint8(options.image_size)
        content = io.BytesIO()
        torch.save(torch.stack([decode(listing.path(index)) for index in range(len(listing))]), content)
        write_whole(path, content.getvalue())
    try:
        images = torch.load(path, mmap=True, weights_only=True)
    except Exception as error:  # torch.load fails in any way
        raise InputError(f"cannot read {path}: delete it, and the images are decoded again") from error
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(classes):
        held_out[(labels == label).nonzero().flatten()[::HELD_OUT]] = True
    return Subset(images, labels, held_out, classes, listing.source)


def trained(
    options: StepOptions, data: Subset, parameters: Mapping[str, Any], epochs: int, after_epoch: AfterEpoch
) -> float:
    """Train with these parameters; accuracy on the held-out images at the end, 0..1.

    parameters: lr, weight_decay, batch_size, label_smoothing, width. after_epoch: is given "loss" (of training),
    "held_out_loss" and "accuracy". Raises Diverged where a loss is no number.
    """
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = mobilenet(f"w{parameters['width']}", data.classes).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=parameters["label_smoothing"])
    optimizer = torch.optim.SGD(
        model.parameters(), parameters["lr"], MOMENTUM, weight_decay=parameters["weight_decay"], nesterov=True
    )
    train, test = ((data.images[part], data.labels[part]) for part in (~data.held_out, data.held_out))
    batch_size = min(parameters["batch_size"], len(train[1]))
    steps = epochs * (len(train[1]) // batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    generator, accuracy = torch.Generator().manual_seed(options.seed), 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        losses = []
        order = torch.randperm(len(train[1]), generator=generator).split(batch_size)
        for chosen in (part for part in order if len(part) == batch_size):
            images, labels = train[0][chosen].to(device), train[1][chosen].to(device)
            loss = criterion(model(normalised(images)), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        mean_loss = torch.stack(losses).mean().item()
        held_out_loss, accuracy = evaluated(model, *test)
        if not math.isfinite(mean_loss + held_out_loss):
            raise Diverged(f"the loss of epoch {epoch} is no number")
        after_epoch(epoch, {"loss": mean_loss, "held_out_loss": held_out_loss, "accuracy": accuracy})
    return accuracy


class Diverged(Exception):
    """A training whose loss is no number any more."""


@torch.no_grad()
def evaluated(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """(mean cross entropy, accuracy 0..1) of uint8 images and their labels."""
    model.eval()
    device = next(model.parameters()).device
    loss, right = 0.0, 0
    for some, own in zip(images.split(EVALUATION_BATCH), labels.to(device).split(EVALUATION_BATCH), strict=True):
        outputs = model(normalised(some.to(device)))
        loss += nn.functional.cross_entropy(outputs, own, reduction="sum").item()
        right += int((outputs.argmax(1) == own).sum())
    return loss / len(labels), right / len(labels)
