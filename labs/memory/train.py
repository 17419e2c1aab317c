"""Train ResNeXt as the write-up does: loss, training and test accuracy of each epoch, and the weights.

    python labs/memory/train.py --epochs 200 --half-precision --checkpoint

It writes `epochs.csv`, TensorBoard scalars and `checkpoint.pt` into --logdir: the weights, and all that is needed
to go on. The same command goes on after a kill, as if nothing had happened: at the epoch after the last whole one, with
the same random numbers. Parts of a step are NVTX ranges, for Nsight Systems:

    nsys profile -t cuda,nvtx --cuda-memory-usage true python labs/memory/train.py --epochs 2 --logdir logs/nsys
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.device import autocast_dtype, checked_device, device_name, disable_tf32, synchronize
from common.failures import what_fits
from common.options import PRECISIONS
from labs.memory.data import real_data
from labs.memory.model import DEFAULTS, ResNeXt, resnext
from labs.memory.recompute import statistics_once
from labs.shared.checkpoints import CHECKPOINT, write, write_table
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import (
    InputError,
    OneLineParser,
    folder,
    is_out_of_memory,
    printable,
    whole_number,
)
from walkthrough.results.result import check_writable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PRECISION = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
DTYPES = {name: dtype for dtype, name in PRECISION.items()}
TEST_BATCH = 256


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only. epochs is left out: more may be added.

    precision: "fp32" without half precision; else "bf16" or "fp16", as "auto" is not the same on every GPU.
    """

    model: str
    data: str
    image_size: int
    batch_size: int
    lr: float
    precision: str
    checkpoint: bool
    seed: int


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean loss in training, shares (0..1) of images classified right, and how long training took.

    train_accuracy: of the batches as they were trained on, before each step; test_accuracy: of the whole test set.
    """

    epoch: int
    loss: float
    train_accuracy: float
    test_accuracy: float
    seconds: float


class Training:
    """A model that is trained epoch by epoch; `state` and `load` carry it over from one process to the next."""

    def __init__(self, settings: Settings, train_set: Dataset, device: torch.device, workers: int = 0) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.device, self.epochs = settings, device, list[Epoch]()
        self.model = resnext(settings.model).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.lr)
        self.amp_dtype = DTYPES[settings.precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp_dtype == torch.float16)
        self.generator = torch.Generator()
        self.loader = DataLoader(
            train_set, settings.batch_size, shuffle=True, drop_last=True, generator=self.generator,
            num_workers=workers, pin_memory=device.type == "cuda",
        )  # fmt: skip
        if not len(self.loader):
            raise InputError(f"--batch-size {settings.batch_size} is larger than the data: choose a smaller one")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Train on one batch: (loss, how many of its images were classified right), both on the device."""
        span = partial(_range, self.device)
        with span("forward"), self._autocast():
            output = forward(self.model, images, self.settings.checkpoint)
            loss = nn.functional.cross_entropy(output, labels)
        with span("backward"):
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
        with span("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach(), (output.argmax(1) == labels).sum()

    def epoch(self, test_set: Dataset) -> Epoch:
        """Train one more epoch and test. Its random numbers depend on the seed and on the epoch's number alone."""
        number = len(self.epochs) + 1
        torch.manual_seed(self.settings.seed * 100_003 + number)
        self.generator.manual_seed(self.settings.seed * 100_003 + number)
        losses, right, begin = [], [], time.perf_counter()
        for images, labels in self._loaded():
            loss, count = self.step(
                images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )
            losses.append(loss)
            right.append(count)
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        images_seen = len(self.loader) * self.settings.batch_size
        accuracy = torch.stack(right).sum().item() / images_seen
        done = Epoch(number, torch.stack(losses).mean().item(), accuracy, self.test(test_set), seconds)
        self.epochs.append(done)
        return done

    @torch.no_grad()
    def test(self, test_set: Dataset) -> float:
        """The share of a test set that is classified right, in float32, by batch norm's running statistics."""
        self.model.eval()
        right = sum(
            (self.model(images.to(self.device)).argmax(1) == labels.to(self.device)).sum()
            for images, labels in DataLoader(test_set, TEST_BATCH)
        )
        self.model.train()
        return int(right) / len(test_set)  # pyright: ignore[reportArgumentType]  # it has a length

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on, for torch.save."""
        return {
            "settings": asdict(self.settings),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` of a training with the same settings."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, self.amp_dtype, enabled=self.amp_dtype != torch.float32)

    def _loaded(self) -> Iterator[list[torch.Tensor]]:
        batches = iter(self.loader)
        while True:
            with _range(self.device, "load"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def forward(model: ResNeXt, images: torch.Tensor, checkpointed: bool) -> torch.Tensor:
    """The model's output; checkpointed: each stage is recomputed in the backward pass, as in 02_checkpointing."""
    if not checkpointed:
        return model(images)
    x = model.stem(images)
    for stage in model.stages:
        x = checkpoint(stage, x, use_reentrant=False, context_fn=partial(statistics_once, stage))
    return model.head(x)


def _range(device: torch.device, name: str) -> AbstractContextManager:
    """An NVTX range, which Nsight Systems shows; nothing without a GPU."""
    return torch.cuda.nvtx.range(name) if device.type == "cuda" else nullcontext()


def saved(path: Path, settings: Settings) -> dict[str, Any] | None:
    """The state that an earlier run left in the file `path`; None where there is none.

    Raises InputError, and leaves the file as it is, where it is damaged or of a training with other settings.
    """
    if not path.exists():
        return None
    another = "move it away to begin anew, or use another --logdir"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        theirs = Settings(**state["settings"])
        missing = {"model", "optimizer", "scaler", "epochs"} - set(state)
    except Exception as error:  # of a file that is cut off or another's: zip, pickle, keys, anything
        raise InputError(
            f"{path} is damaged or no checkpoint of this program ({printable(error, 80)}): {another}"
        ) from error
    if missing:
        raise InputError(f"{path} is damaged ({', '.join(sorted(missing))} missing): {another}")
    for name, value in asdict(settings).items():
        if (their := getattr(theirs, name)) != value:
            raise InputError(f"{path} is of a training with {name.replace('_', ' ')} {their}, not {value}: {another}")
    return state


def resume(training: Training, state: dict[str, Any], folder: Path) -> None:
    """Go on from what `saved` found in a folder; the table is written anew, as a kill may have left it a row short.

    Raises InputError where a part of the state does not fit the model.
    """
    try:
        training.load(state)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what torch's loading raises
        raise InputError(
            f"{folder / CHECKPOINT} is damaged ({printable(error, 80)}): move it away to begin anew, or use another "
            "--logdir"
        ) from error
    if training.epochs:
        write_table(folder, training.epochs)


def run(training: Training, test_set: Dataset, epochs: int, on_epoch: Callable[[Epoch], None]) -> None:
    """Train until `epochs` are done, those of an earlier run included; on_epoch(epoch) after each.

    Raises InputError where memory is too small.
    """
    try:
        while len(training.epochs) < epochs:
            on_epoch(training.epoch(test_set))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        settings, device = training.settings, training.device
        fits = ""
        if device.type == "cuda":
            program = "02_checkpointing" if settings.checkpoint else "01_half_precision"  # 00 but for the precision
            path = Path(__file__).with_name(f"{program}.py")
            fits = what_fits(path, device, settings.model, settings.image_size, settings.precision)
        raise InputError(
            f"out of memory on {device_name(device)} with batch size {settings.batch_size}: "
            f"try --batch-size {settings.batch_size // 2}{'' if settings.checkpoint else ' or --checkpoint'}{fits}"
        ) from error


def options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    number, big = whole_number, 10**6
    parser.add_argument(
        "--num-workers", type=number(0, 256), default=2, metavar="N", help="loader processes (default: 2)"
    )
    parser.add_argument("--half-precision", action="store_true", help="bf16, or fp16 with gradient scaling")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each stage in the backward pass")
    parser.add_argument("--epochs", type=number(1, big), default=200, metavar="N", help="in all (default: 200)")
    parser.add_argument("--batch-size", type=number(2, 65536), metavar="N", help="(default: 128 on a GPU, 32 on a CPU)")
    parser.add_argument("--lr", type=float, default=0.01, help="Adam's learning rate (default: 0.01)")
    parser.add_argument("--model", metavar="NAME", help=f"{DEFAULTS.models} (default: by the device)")
    parser.add_argument("--image-size", type=number(16, 1024), default=32, metavar="PX", help="(default: 32)")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="of --half-precision (default: auto)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    parser.add_argument("--seed", type=number(0, 20_000), default=0, metavar="N", help="(default: 0)")
    parser.add_argument("--data", type=folder, default=ROOT / "data", metavar="DIR", help="holds cifar-10-batches-py")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR-10 into --data first, 170 MB")
    parser.add_argument(
        "--logdir", type=folder, default=DEFAULTS.logdir / "train", metavar="DIR", help="of this training"
    )
    args = parser.parse_args(words)
    if not args.lr > 0:
        raise InputError(f"--lr {args.lr} is not a number above 0")
    return args


def main() -> None:
    from torch.utils.tensorboard import SummaryWriter  # a second to import, which the study does not need

    args = options()
    name = checked_device(args.device)
    device, kind = torch.device(name), torch.device(name).type
    disable_tf32()
    check_writable(args.logdir)
    train_set, test_set = real_data(args.data, args.image_size, args.download)
    settings = Settings(
        model=args.model or DEFAULTS.on(kind).model,
        data=getattr(train_set, "source", ""),
        image_size=args.image_size,
        batch_size=args.batch_size or DEFAULTS.on(kind).batch_size,
        lr=args.lr,
        precision=PRECISION[autocast_dtype(device, args.precision)] if args.half_precision else "fp32",
        checkpoint=args.checkpoint,
        seed=args.seed,
    )
    state = saved(args.logdir / CHECKPOINT, settings)
    training = Training(settings, train_set, device, args.num_workers)
    if state:
        resume(training, state, args.logdir)
        print(f"goes on after epoch {len(training.epochs)}")
    with SummaryWriter(str(args.logdir), purge_step=len(training.epochs) + 1) as events:

        def keep(epoch: Epoch) -> None:
            write(args.logdir, training.state(), training.epochs)
            values = asdict(epoch)
            for tag in ("loss", "train_accuracy", "test_accuracy", "seconds"):
                events.add_scalar(tag, values[tag], epoch.epoch)
            print(
                f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, training {epoch.train_accuracy:.1%}, "
                f"test {epoch.test_accuracy:.1%}, {epoch.seconds:.1f} s",
                flush=True,
            )

        run(training, test_set, args.epochs, keep)
    print(f"written to {args.logdir}; look at it with: tensorboard --logdir {args.logdir}")


if __name__ == "__main__":
    main()
