"""The programs from 04 on, but for compiling, as one function of what they consist of: for ablations and heat maps.

A test holds that `assemble` with the `Recipe` of a program trains exactly as that program does, so what the study
switches off is what the reader reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from common.device import autocast_dtype, disable_tf32
from labs.shared.images import DataSet
from labs.speedrun.augment import DeviceBatches, cutout_of, shift_of, views
from labs.speedrun.data import data_set
from labs.speedrun.model import GhostNorm, patch_stem, resnet9, whiten, width_of
from labs.speedrun.optimizers import DecoupledSGD, Lookahead, Muon, one_cycle, parameter_groups
from labs.speedrun.race import Predict, Race, RaceOptions, race

import torch
from torch import nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "celu": partial(nn.CELU, 0.075), "gelu": nn.GELU,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What a race consists of; as it is, 14_muon.

    shift, cutout, flip: of the augmentation. momentum: of all but Muon; muon_momentum: of Muon. ghost: images whose
    statistics batch norm uses, 0 for the whole batch; scale: whether it learns a factor. torch_norm: plain batch norm
    instead. muon: for convolutions. plain_sgd: torch's SGD without momentum and decay. views: in tests.
    """

    shift: bool = True
    cutout: bool = True
    flip: bool = True
    label_smoothing: float = 0.2
    plain_sgd: bool = False
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.005
    muon: bool = True
    muon_momentum: float = 0.6
    half_precision: bool = True
    channels_last: bool = True
    whitening: bool = True
    torch_norm: bool = False
    ghost: int = 32
    scale: bool = False
    activation: str = "celu"
    lookahead: bool = True
    views: bool = True


_SWITCHED_ON = {  # by each program, backwards
    "14_muon": {"muon": False},
    "13_test_time_views": {"views": False},
    "12_lookahead": {"lookahead": False},
    "11_celu": {"activation": "relu"},
    "10_ghost_norm": {"torch_norm": True},
    "09_whitening": {"whitening": False},
    "08_channels_last": {"channels_last": False},
    "07_half_precision": {"half_precision": False},
    "06_label_smoothing": {"label_smoothing": 0.0},
    "05_decoupled_decay": {"plain_sgd": True},
}


def recipes() -> dict[str, Recipe]:
    """{program: its `Recipe`}, from 14_muon back to 04_one_cycle."""
    names, recipe, found = [*_SWITCHED_ON, "04_one_cycle"], Recipe(), {}
    for name in names:
        found[name] = recipe
        recipe = replace(recipe, **_SWITCHED_ON.get(name, {}))
    return found


@dataclass(frozen=True)
class Entry:
    """What `race` takes. trained: the optimizers, the first for all that Muon is not for."""

    data: DataSet
    loader: DeviceBatches
    train_step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    state: list[Any]
    predict: Predict
    prepare: Callable[[], None] | None


def assemble(recipe: Recipe, args: RaceOptions) -> Entry:
    """The `Entry` of a recipe, from the seed of the options."""
    device, size = torch.device(args.device), args.image_size
    torch.manual_seed(args.seed)
    disable_tf32()
    data = data_set(args)
    shift, cutout = shift_of(size) if recipe.shift else 0, cutout_of(size) if recipe.cutout else 0
    loader = DeviceBatches(data, args.batch_size, device, shift, cutout, recipe.flip)
    steps = args.epochs * len(loader)
    stem = patch_stem(data.channels) if recipe.whitening else None
    norm = nn.BatchNorm2d if recipe.torch_norm else partial(GhostNorm, ghost=recipe.ghost, scale=recipe.scale)
    activation = ACTIVATIONS[recipe.activation]
    model = resnet9(width_of(args.model), data.channels, data.classes, norm, activation, stem).to(device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stubs lack it
    convolutions, others = parameter_groups(model)
    trained = others if recipe.muon else [weight for weight in model.parameters() if weight.requires_grad]
    criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    if recipe.plain_sgd:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(trained, lr=args.lr)]
    else:
        optimizers = [DecoupledSGD(trained, args.lr, recipe.momentum, recipe.weight_decay, recipe.nesterov)]
    optimizers += [Muon(convolutions, args.lr, recipe.muon_momentum)] if recipe.muon else []
    schedules = [one_cycle(optimizer, steps) for optimizer in optimizers]
    average = [Lookahead(model, steps)] if recipe.lookahead else []
    amp_dtype = autocast_dtype(device, args.precision) if recipe.half_precision else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        model.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for part in (*schedules, *average):
            part.step()
        return loss

    def predict(images: torch.Tensor) -> torch.Tensor:
        seen = views(images, data.mirrors) if recipe.views else [images]
        return torch.stack([model(view) for view in seen]).sum(0)

    def prepare() -> None:
        if stem is not None:
            whiten(stem, loader.prepared()[0][:5000])

    state = [model, *optimizers, *schedules, scaler, *average]
    return Entry(data, loader, train_step, state, predict, prepare)


def raced(recipe: Recipe, args: RaceOptions, program: str = "14_muon") -> Race:
    """The `Race` of a recipe."""
    entry = assemble(recipe, args)
    return race(program, args, entry.data, entry.loader, entry.train_step, entry.state, entry.predict, entry.prepare)
