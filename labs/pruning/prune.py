"""Leave out the smallest weights of a MobileNetV2, set the others back to an early epoch, and train again.

    python labs/pruning/prune.py                                   digits: trains, then prunes; minutes on two cores
    python labs/pruning/prune.py --data DIR --shares 0.8 0.9 --reset 0 2       CIFAR-10, or DIR/train and DIR/val
    python labs/pruning/prune.py --trained logs/labs/scale/train --data DIR    of labs/scale/train.py --keep 0,2
    python labs/pruning/prune.py --trained torchvision --data IMAGENET --image-size 224 --reset end

Idea       Frankle et al. 2019, "Stabilizing the Lottery Ticket Hypothesis": the weights that are largest at the end are
           trained again from where they were early in training, with the momentum, the learning rates and the batches
           that followed. `--reset end` keeps what they are at the end: fine-tuning. Of `--trained` the momentum, the
           weight decay and the learning rates are those that followed; batches, and how images are cropped, are not.
Look for   What is counted as a weight: a threshold over all that a checkpoint holds prunes too many of them.
Caution    A mask makes nothing faster. `--how channels` does: it makes layers smaller.

Each training has a folder in --logdir, with epochs.csv and checkpoint.pt: the same command goes on after a cut. At the
end `pruned.pt` there holds the weights, zeros included, without masks.
"""

import argparse
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from common.device import disable_tf32, keep_freed_memory
from common.options import StepOptions, add_step_options, resolved
from labs.pruning.masks import HOW, apply, magnitudes, masks_of, prunable, remove, threshold, without_channels
from labs.pruning.model import DEFAULTS, FIRST_LAYER, network, network_like
from labs.shared import training
from labs.shared.images import MEAN, SPLIT_SEED, STD, DataSet, Images, image_data, source_in
from walkthrough.compare.table import Table
from walkthrough.results.errors import InputError, OneLineParser, folder, printable, real_number, whole_number
from walkthrough.results.result import write_whole
from walkthrough.terminal import console

import torch
from torch import nn
from torch.nn import functional as F

RECIPES = {  # digits: chosen on folds of the training images, no test image was looked at; the others are guesses
    "digits": {"epochs": 16, "lr": 0.1, "image_size": 8},
    "cifar10": {"epochs": 80, "lr": 0.1, "image_size": 32},
    "imagenette": {"epochs": 40, "lr": 0.1, "image_size": 64},
}
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
QUICK_EPOCHS, QUICK_IMAGES = 10, 1200  # by --quick, of any data set
TEST_BATCH = 500
SHARES, RESETS = (0.8, 0.9, 0.95), (0, 2)
GIVEN = ("image_size", "batch_size", "epochs", "lr", "seed")  # on the command line, else as trained
KNOWN = (*GIVEN, "model")  # of a training that is pruned
PRUNED = "pruned.pt"
FOLDER = DEFAULTS.logdir / "prune"
State = Mapping[str, Any]  # of `Training.state`: "model", "optimizer", "settings", "epochs"


@dataclass(frozen=True)
class Settings:
    """What determines a training. epochs: in all, as the learning rate ends at 0. lr: the highest.

    trained: what is pruned, where it was trained elsewhere.
    """

    model: str
    data: str
    image_size: int
    batch_size: int
    epochs: int
    lr: float
    seed: int
    trained: str = ""


def data_of(options: StepOptions, known: Mapping[str, Any] | None = None) -> tuple[DataSet, Settings]:
    """CIFAR-10 where --data holds it, or its train/ and val/, else digits, on the device; and how it is trained.

    known: `Settings` that are given, in place of those of the data set. By --quick fewer images and epochs. Raises
    InputError.
    """
    root, known = options.data, known or {}
    source = source_in(root, None, options.download)
    if source == "digits" and (root / "train").is_dir() and (root / "val").is_dir():
        source = "imagenette"  # or any photographs
    own = {"model": options.model, "batch_size": options.batch_size, "seed": options.seed, **RECIPES[source], **known}
    size = own["image_size"]
    data = image_data(source, root, size, "pruning", options.download, folder_size=size)
    if source == "imagenette":
        data = replace(data, mean=torch.tensor(MEAN), std=torch.tensor(STD))
    some = torch.Generator().manual_seed(SPLIT_SEED)

    def on_device(part: Images) -> Images:
        """By --quick a few at random, since those of a folder are in the order of their classes."""
        if options.quick:
            part = part.chosen(torch.randperm(len(part), generator=some)[:QUICK_IMAGES])
        return Images(part.images.to(options.device), part.labels.to(options.device))

    data = replace(data, train=on_device(data.train), test=on_device(data.test))
    if options.quick:
        own["epochs"] = min(QUICK_EPOCHS, own["epochs"])
    if len(data.train) < own["batch_size"]:
        raise InputError(f"--batch-size {own['batch_size']} is larger than the data ({len(data.train)} images)")
    name = root.resolve().name if source == "imagenette" else source
    return data, Settings(data=f"{name}, {len(data.train)} images", **own)


def optimizer_at(
    model: nn.Module, settings: Settings, state: State | None = None, last: State | None = None
) -> torch.optim.Optimizer:
    """SGD for a model that is not masked yet; with a state, both have its weights and its momentum.

    last: whose optimizer says how strong momentum and weight decay are; without one, they are this lab's.
    """
    how = {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "nesterov": True}
    if last and "optimizer" in last:
        how |= {name: value for name, value in last["optimizer"]["param_groups"][0].items() if name in how}
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, **how)
    if state:
        model.load_state_dict(state["model"])
    if state and "optimizer" in state:
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it keeps the tensors that it is given
        for group in optimizer.param_groups:
            group.update(how, lr=settings.lr, initial_lr=settings.lr)
    return optimizer


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: DataSet, settings: Settings, folder: Path | None = None,
    begin: int = 0, keep: Sequence[int] = (),
) -> training.Training:  # fmt: skip
    """Train from the end of epoch `begin` to the last: its epochs, with test accuracies.

    The batches and the learning rates of an epoch are the same wherever a training begins. folder, keep: see
    `Training`. Raises InputError where a loss is no number.
    """
    images, device = data.train, data.train.images.device
    steps = len(images) // settings.batch_size
    schedule = training.rising_then_falling(
        optimizer, settings.epochs * steps, 1 / settings.epochs, True, begin * steps
    )
    order = torch.Generator()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    run = training.Training(folder, settings, parts, [order], device=device, keep=keep, after=begin)
    for _ in run.epochs(settings.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for chosen in torch.randperm(len(images), generator=order).split(settings.batch_size)[:steps]:
            inputs, labels = data.prepared(images.chosen(chosen.to(device)), device)
            if data.mirrors:
                inputs = flipped_and_shifted(inputs, order)
            total += train_step(model, optimizer, inputs, labels)
            schedule.step()
        seconds = run.seconds()
        run.done(loss=total.item() / steps, test_accuracy=accuracy(model, data), seconds=seconds)
    return run


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Train on one batch; its loss."""
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


def flipped_and_shifted(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """[N, C, H, W]: some mirrored at random, and all shifted by the same up to an eighth."""
    flip = (torch.rand(len(images), 1, 1, 1, generator=random) < 0.5).to(images.device)
    size = images.shape[-1]
    top, left = torch.randint(2 * (size // 8) + 1, (2,), generator=random).tolist()
    padded = F.pad(torch.where(flip, images.flip(3), images), (size // 8,) * 4)
    return padded[:, :, top : top + size, left : left + size]


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet) -> float:
    """The share of the test images that is classified right, 0..1."""
    model.eval()
    right = 0
    for chosen in torch.arange(len(data.test)).split(TEST_BATCH):
        images, labels = data.prepared(data.test.chosen(chosen), data.test.images.device)
        right += int((model(images).argmax(1) == labels).sum())
    return right / len(data.test)


def read_trained(path: Path) -> dict[int, State]:
    """{epoch: its state} of a training: the last, and those that were kept to reset to.

    path: the folder of a `Training`, as of labs/scale/train.py; a file of weights, a state_dict by itself or in "model"
    or "state_dict", which is that of epoch 0; or "torchvision", the weights that torchvision downloads. Raises
    InputError for what cannot be read, and for a training that is not done.
    """
    if str(path) == "torchvision":
        from torchvision.models import MobileNet_V2_Weights

        try:
            return {0: {"model": MobileNet_V2_Weights.DEFAULT.get_state_dict(progress=False, check_hash=True)}}
        except OSError as error:  # urllib's are, too
            raise InputError(f"torchvision's weights cannot be fetched: {printable(error, 80)}") from error
    files = [path]
    if path.is_dir():
        files = [path / training.CHECKPOINT, *path.glob(training.KEPT.format("*"))]
    states: dict[int, State] = {}
    for file in files:
        try:
            state = training.unpacked(file.read_bytes())
            weights = state.get("model", state.get("state_dict", state))
            weights = {name.removeprefix("module."): value for name, value in weights.items()}
            states[len(state.get("epochs", ()))] = {**state, "model": weights}
        except Exception as error:  # a zip, a pickle or its keys, anything
            raise InputError(f"{file} is no checkpoint of a training: {printable(error, 80)}") from error
    done, wanted = max(states), states[max(states)].get("settings", {}).get("epochs", 0)
    if done < wanted:
        raise InputError(f"{path}: {done} of {wanted} epochs are trained; the same command trains the others")
    return states


def settings_of(state: State) -> dict[str, Any]:
    """What is known of how a network was trained; torchvision's has its name by its weights."""
    named = {"model": "mobilenet_v2"} if FIRST_LAYER in state["model"] else {}
    return {**named, **state.get("settings", {})}


def reset(
    model: nn.Module, states: Mapping[int, State], share: float, epoch: int, how: str, settings: Settings
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model without a share (0..1) of its weights, or channels, by the last of the states; the others as at an epoch.

    model: of any weights; it is changed. how: one of `HOW`, or "channels", whose momentum begins at zero, as does that
    of the last epoch, where training begins anew. Momentum and weight decay are as strong as they were at the end.
    """
    last = states[max(states)]
    model.load_state_dict(last["model"])
    if how == "channels":
        judged = copy.deepcopy(model)
        model.load_state_dict(states[epoch]["model"])
        model = without_channels(model, share, judged)
        return model, optimizer_at(model, settings, last=last)
    masks = masks_of(model, share, how, settings.seed)
    state = states[epoch] if epoch < max(states) else {"model": states[epoch]["model"]}
    optimizer = optimizer_at(model, settings, state, last)  # before the masks: they change the order of parameters
    apply(model, masks)
    return model, optimizer


def count_rows(model: nn.Module, shares: Iterable[float]) -> list[dict[str, Any]]:
    """By share: thresholds over the weights, and over all that a checkpoint holds; what the latter really prunes."""
    weights, parameters, pooled = (magnitudes(model, of) for of in ("weights", "parameters", "pooled"))
    return [
        {
            "asked for %": 100 * share,
            f"threshold of {len(weights):,} weights": threshold(weights, share),
            f"of {len(pooled):,} numbers, {len(pooled) - len(parameters):,} of them statistics": (
                limit := threshold(pooled, share)
            ),
            "which prunes of the parameters %": 100 * (parameters < limit).float().mean().item(),
        }
        for share in shares
    ]


def parsed(words: Sequence[str] | None = None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line."""
    parser = OneLineParser(description=__doc__)
    without = ("--precision", "--stacks", "--workers")
    texts = {"--logdir": training.logdir_text(FOLDER), "--seed": "of weights and shuffling (default: as trained, or 0)"}
    add_step_options(parser, FOLDER, None, without, texts, DEFAULTS)
    parser.set_defaults(seed=None)
    add = parser.add_argument
    add("--trained", type=folder, metavar="DIR|FILE", help="of another training, or torchvision: see above")
    add("--shares", type=float, nargs="+", default=SHARES, metavar="S", help="of the weights that go (default: 0.8 …)")
    add("--reset", type=epoch, nargs="+", metavar="EPOCH", help="0 … or end (default: 0 2, or all that were kept)")
    add("--how", choices=(*HOW, "channels"), default=HOW[0], help="what goes (default: %(default)s)")
    add("--epochs", type=whole_number(1, 10**6), metavar="N", help="in all (default: as trained, or by data set)")
    add("--lr", type=real_number(0), help="SGD's highest (default: as trained, or by data set)")
    args = parser.parse_args(words)
    if not all(0 < share < 1 for share in args.shares):
        raise InputError("--shares are above 0 and below 1, such as 0.9")
    args.logdir = training.folder_of(args.logdir, FOLDER, args.quick)
    return replace(resolved(args, defaults=DEFAULTS), seed=args.seed or 0), args


def epoch(text: str) -> int:
    """-1 for "end"."""
    return -1 if text == "end" else whole_number(0, 10**6)(text)


def main() -> None:
    options, args = parsed()
    device = torch.device(options.device)
    disable_tf32()
    if device.type == "cpu":
        keep_freed_memory()
    # 1. What was trained, its data, and how
    states = read_trained(args.trained) if args.trained else {}
    known = settings_of(states[max(states)]) if states else {}
    if args.model and args.model != known.get("model", args.model):
        raise InputError(f"--model {args.model}: --trained is of {known['model']}; leave --model out")
    known |= {name: value for name in GIVEN if (value := getattr(args, name)) is not None}
    known = {name: known[name] for name in KNOWN if name in known} | {"trained": str(args.trained or "")}
    data, settings = data_of(options, known)
    print(", ".join(f"{name} {value}" for name, value in asdict(settings).items() if value != ""), flush=True)
    # 2. Nothing was trained: train, and keep the epochs to reset to
    if not states:
        torch.manual_seed(settings.seed)
        model, path = network(settings.model, data.channels, data.classes).to(device), options.logdir / "unpruned"
        train(model, optimizer_at(model, settings), data, settings, path, keep=args.reset or RESETS)
        states = read_trained(path)
    last = max(states)
    epochs = [last if at == -1 else at for at in args.reset or sorted(states)[:-1] or [last]]
    if missing := [at for at in epochs if at not in states]:
        raise InputError(f"--reset {missing[0]}: the training kept {sorted(states)}, as its --keep or --reset said")

    def network_at_end() -> nn.Module:
        return network_like(states[last]["model"], settings.model, data.channels, data.classes).to(device)

    def row_of(model: nn.Module, share: float, reset_to: int | None) -> dict[str, Any]:
        """What is left of a network without masks."""
        layers = [int((module.weight != 0).sum()) for module in prunable(model).values()]
        sizes = {"weights left": sum(layers), "layers without": layers.count(0)}
        return {"pruned %": 100 * share, "reset to epoch": reset_to, "accuracy %": 100 * accuracy(model, data), **sizes}

    console().print(Table("counts", count_rows(network_at_end(), args.shares)).rich())
    rows = [row_of(network_at_end(), 0.0, None)]
    # 3. For each share and epoch: prune, reset, train again
    for share, at in product(args.shares, epochs):
        print(f"{100 * share:g} % pruned ({args.how}), reset to epoch {at} of {last}", flush=True)
        path = options.logdir / f"{args.how}-{100 * share:g}-reset-{at}"
        model, optimizer = reset(network_at_end(), states, share, at, args.how, settings)
        train(model, optimizer, data, settings, path, begin=at if at < last else 0)
        remove(model)
        write_whole(path / PRUNED, training.packed(model.state_dict()))
        rows.append(row_of(model, share, at))
    console().print(Table("pruned", rows).rich())
    print(f"written to {options.logdir}")


if __name__ == "__main__":
    main()
