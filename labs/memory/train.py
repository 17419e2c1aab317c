"""Train ResNeXt to the end, as the write-up did: 200 epochs of CIFAR-10, with the loss and the accuracies of each.

    python labs/memory/train.py --epochs 200 --precision auto --checkpoint --download
    nsys profile -t cuda,nvtx --cuda-memory-usage true python labs/memory/train.py --epochs 2 --logdir logs/nsys

--logdir then holds `epochs.csv`, TensorBoard's scalars and `checkpoint.pt`: the weights, and all that is needed to go
on. The same command goes on after a kill, as if nothing had happened. Parts of a step are NVTX ranges, which Nsight
Systems shows.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common.device import disable_tf32
from common.failures import as_input_error
from common.options import StepOptions, add_step_options, resolved
from labs.memory.data import real_data
from labs.memory.model import DEFAULTS, ResNeXt, resnext
from labs.memory.recompute import statistics_once
from labs.shared.training import DTYPES, Row, Training, folder_of, logdir_text, precision_of
from walkthrough.results.errors import InputError, OneLineParser, real_number, whole_number

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

FOLDER = DEFAULTS.logdir / "train"
TEST_BATCH = 256
QUICK_EPOCHS = 2


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only. The number of epochs may grow.

    precision: "fp32", "bf16" or "fp16": "auto" is not the same on every GPU. checkpoint: by stage, as 02 does.
    """

    model: str
    data: str
    image_size: int
    batch_size: int
    lr: float
    precision: str
    checkpoint: bool
    seed: int


def batches(settings: Settings, train_set: Dataset, device: torch.device, workers: int) -> DataLoader:
    """The shuffled batches of an epoch. Raises InputError where there is not even one."""
    loader = DataLoader(
        train_set, settings.batch_size, shuffle=True, drop_last=True, generator=torch.Generator(),
        num_workers=workers, pin_memory=device.type == "cuda",
    )  # fmt: skip
    if not len(loader):
        raise InputError(f"--batch-size {settings.batch_size} is larger than the data: choose a smaller one")
    return loader


def train(
    settings: Settings, loader: DataLoader, test_set: Dataset, epochs: int, device: torch.device, folder: Path | None
) -> list[Row]:
    """Train until so many epochs are done, those of an earlier run in `folder` included; returns a row for each.

    train_accuracy: of the batches as they were trained on, before each step; test_accuracy: of the whole test set.
    seconds: of training. folder: None keeps nothing. Raises InputError: see `Training`.
    """
    torch.manual_seed(settings.seed)
    model = resnext(settings.model).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    amp_dtype = DTYPES[settings.precision]
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    run = Training(folder, settings, parts, [loader.generator] if loader.generator else [], device=device)
    part = torch.cuda.nvtx.range if device.type == "cuda" else nullcontext
    for _ in run.epochs(epochs):
        losses, right = [], []
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with part("forward"), torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
                output = forward(model, images, settings.checkpoint)
                loss = nn.functional.cross_entropy(output, labels)
            with part("backward"):
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            with part("optimizer"):
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss.detach())
            right.append((output.argmax(1) == labels).float().mean())
        seconds = run.seconds()
        run.done(
            loss=torch.stack(losses).mean().item(),
            train_accuracy=torch.stack(right).mean().item(),
            test_accuracy=accuracy(model, DataLoader(test_set, TEST_BATCH, num_workers=loader.num_workers), device),
            seconds=seconds,
        )
    return run.rows


def forward(model: ResNeXt, images: torch.Tensor, checkpointed: bool) -> torch.Tensor:
    """The model's output; checkpointed: each stage is recomputed in the backward pass, as in 02_checkpointing."""
    x = model.stem(images)
    for stage in model.stages:
        context_fn = partial(statistics_once, stage)
        x = checkpoint(stage, x, use_reentrant=False, context_fn=context_fn) if checkpointed else stage(x)
    return model.head(x)


@torch.no_grad()
def accuracy(model: ResNeXt, loader: DataLoader, device: torch.device) -> float:
    """The share of images that is classified right, in float32, by batch norm's running statistics."""
    model.eval()
    right = [model(images.to(device)).argmax(1) == labels.to(device) for images, labels in loader]
    model.train()
    return torch.cat(right).float().mean().item()


def parsed(words: Sequence[str]) -> tuple[StepOptions, int, float, bool]:
    """(options, epochs, learning rate, whether to checkpoint) of a command line. Raises InputError."""
    parser = OneLineParser(description=__doc__)
    texts = {
        "--precision": "fp32, or half precision: auto, bf16, or fp16 with gradient scaling (default: fp32)",
        "--quick": f"a smoke run: {QUICK_EPOCHS} epochs, of smaller images on a CPU",
        "--logdir": logdir_text(FOLDER),
        "--workers": "loader processes (default: 2)",
    }
    add_step_options(parser, FOLDER, None, ("--stacks",), texts, DEFAULTS)
    parser.set_defaults(precision="fp32", workers=2)
    parser.add_argument("--epochs", type=whole_number(1, 10**6), default=200, metavar="N", help="in all (default: 200)")
    parser.add_argument("--lr", type=real_number(0), default=0.01, help="Adam's learning rate (default: 0.01)")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each stage in the backward pass")
    args = parser.parse_args(words)
    args.logdir = folder_of(args.logdir, FOLDER, args.quick)
    epochs = min(args.epochs, QUICK_EPOCHS) if args.quick else args.epochs
    return resolved(args, defaults=DEFAULTS), epochs, args.lr, args.checkpoint


def main() -> None:
    options, epochs, lr, checkpointed = parsed(sys.argv[1:])
    options = replace(options, precision=precision_of(options.device, options.precision))
    disable_tf32()
    device = torch.device(options.device)
    train_set, test_set = real_data(options.data, options.image_size, options.download)
    settings = Settings(
        options.model, getattr(train_set, "source", ""), options.image_size, options.batch_size, lr,
        options.precision, checkpointed, options.seed,
    )  # fmt: skip
    loader = batches(settings, train_set, device, options.workers)
    fit = Path(__file__).with_name("02_checkpointing.py" if checkpointed else "01_half_precision.py")
    with as_input_error(options, loader, device, str(fit)):
        train(settings, loader, test_set, epochs, device, options.logdir)
    print(f"written to {options.logdir}; look at it with: tensorboard --logdir {options.logdir}")


if __name__ == "__main__":
    main()
