"""The race: what is the same in every program. Its options, its clock, when the target is reached, what is written.

The clock runs while the program trains: from before the first batch is asked for (moving the data to the device is on
it, if the program does that then) to the end of the epoch at which the target was reached. Reading files, building the
network and testing are off the clock. So is what a process pays once (compiling, loading libraries and kernels,
reserving memory): `start_up_seconds`. Before the race, `prepare()` and the first steps run off the clock; then
everything is set back, so that the race does all of it again, on the clock.
"""

import argparse
import copy
import cProfile
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.device import device_name, keep_freed_memory, synchronize
from common.failures import as_input_error
from common.loaders import Loader
from common.options import StepOptions, add_step_options, named, resolved
from common.session import run_step
from labs.shared.images import FOLDS, NAMES, DataSet, source_in
from labs.speedrun.data import SETTINGS, DeviceBatches
from labs.speedrun.model import DEFAULTS
from walkthrough.results import environment, result
from walkthrough.results.errors import InputError, OneLineParser, real_number, whole_number

import torch
from torch import nn

FILE = "race.json"
TEST_BATCH = 500
START_UP_STEPS = 5  # as many as `Lookahead` takes before it averages
Predict = Callable[[torch.Tensor], torch.Tensor]  # normalised images [N, C, H, W] -> scores [N, classes]


@dataclass(frozen=True, kw_only=True)
class RaceOptions(StepOptions):
    """The options of a program of this lab.

    dataset: one of `images.NAMES`. target: the test accuracy to reach, 0..1. epochs, lr: see `data.Plan`. momentum: of
    programs from 05 on. fold: which fifth of the training part tests in place of the test set. stop: once the target is
    reached. cprofile: a file for cProfile's figures. race_only: without windows and a trace. add: of `ablations.py`.
    """

    dataset: str
    target: float
    epochs: int
    lr: float
    momentum: float = 0.9
    fold: int | None = None
    stop: bool = False
    cprofile: Path | None = None
    race_only: bool = False
    add: Sequence[str] = ()


def race_options(
    description: str | None, file: str | Path, ideas: Sequence[str] = (), argv: Sequence[str] | None = None
) -> RaceOptions:
    """Parse a program's command line; ideas: that it has. What is not given is by the data set. Raises InputError."""
    parser = OneLineParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_options(parser, batch_size=None, without=DEFAULTS.without, defaults=DEFAULTS)
    parser.add_argument("--dataset", choices=NAMES, help="(default: CIFAR-10 where --data holds it, else digits)")
    parser.add_argument("--target", type=real_number(0, 1), metavar="X", help="test accuracy to reach, such as 0.94")
    parser.add_argument("--epochs", type=whole_number(1, 10_000), metavar="N", help="after which the race ends")
    parser.add_argument("--lr", type=real_number(0), metavar="X", help="learning rate, the highest of a schedule")
    parser.add_argument(
        "--momentum", type=real_number(0, 1, or_low=True), default=0.9, metavar="X", help="from program 05 on"
    )
    parser.add_argument(
        "--fold", type=whole_number(0, FOLDS - 1), metavar="N", help="test on that fifth of the training part instead"
    )
    parser.add_argument("--stop", action="store_true", help="end the race once the target is reached")
    parser.add_argument("--cprofile", type=Path, metavar="FILE", help="write cProfile's figures of the race; no record")
    parser.add_argument("--race-only", action="store_true", help="no windows and no trace after the race")
    if ideas:
        parser.add_argument("--add", nargs="+", choices=ideas, help="ideas to add, see above")
    parser.set_defaults(add=())
    words = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(words)
    options = resolved(args, named(words), defaults=DEFAULTS)
    source = source_in(args.data, args.dataset, args.download)
    setting, plan = SETTINGS[source], SETTINGS[source].plan(Path(file).stem)
    own = ("momentum", "fold", "stop", "cprofile", "race_only", "add")
    chosen = {
        "image_size": setting.image_size, "dataset": source, "model": args.model or setting.model,
        "batch_size": args.batch_size or setting.batch_size, "target": args.target or setting.target,
        "epochs": args.epochs or plan.epochs, "lr": args.lr or plan.lr,
    }  # fmt: skip
    return RaceOptions(**{**vars(options), **chosen, **{name: getattr(args, name) for name in own}})


@dataclass(frozen=True)
class Race:
    """One race. seconds: on the clock at the end of each epoch. accuracies: of the test then, 0..1; losses: means.

    failure: "diverged" where a loss was no number, which ended the race; "not reached"; None for one that succeeded.
    """

    program: str
    data: str
    device: str
    model: str
    target: float
    epochs: int
    batch_size: int
    lr: float
    seed: int
    start_up_seconds: float
    seconds: list[float]
    accuracies: list[float]
    losses: list[float]
    failure: str | None

    @property
    def epochs_to_target(self) -> int | None:
        """After how many epochs the target was reached first; None for a failure."""
        reached = (number for number, accuracy in enumerate(self.accuracies, 1) if accuracy >= self.target)
        return None if self.failure else next(reached)

    @property
    def seconds_to_target(self) -> float | None:
        """On the clock; None for a failure."""
        epochs = self.epochs_to_target
        return epochs and self.seconds[epochs - 1]

    def __str__(self) -> str:
        """In a line, for people."""
        end = f"{self.accuracies[-1]:.2%} at the end, after {len(self.accuracies)} epochs and {self.seconds[-1]:.2f} s"
        start = f"the first steps took {self.start_up_seconds:.1f} s more, off the clock"
        if self.failure == "diverged":
            return f"diverged in epoch {len(self.losses)}: its loss is no number: try a smaller --lr"
        if self.failure:
            return f"{self.target:.2%} was not reached: at most {max(self.accuracies):.2%}, {end}: try more --epochs"
        return f"{self.target:.2%} in {self.seconds_to_target:.2f} s, {self.epochs_to_target} epochs ({end}; {start})"


@torch.no_grad()
def accuracy(model: nn.Module, predict: Predict, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of the images that is classified right, 0..1, by batch norm's running statistics."""
    model.eval()
    batches = zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True)
    right = sum((predict(batch).argmax(1) == expected).sum() for batch, expected in batches)
    return int(right) / len(labels)


def _start_up(
    loader: Loader, train_step: Callable[..., torch.Tensor], state: Sequence[Any],
    prepare: Callable[[], None] | None, device: torch.device,
) -> float:  # fmt: skip
    """Seconds that `prepare`, a first batch and its steps take beyond what they take the second time.

    Both times everything is set back afterwards: what `state` holds, random numbers, and the loader by its `reset()`.
    """
    before = [copy.deepcopy(part.state_dict()) for part in state]
    seconds = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            synchronize(device)
            begin = time.perf_counter()
            if prepare:
                prepare()
            batch = next(iter(loader))
            for _ in range(START_UP_STEPS):
                train_step(*batch)
            synchronize(device)
            seconds.append(time.perf_counter() - begin)
        state[0].zero_grad()
        for part, saved in zip(state, before, strict=True):
            part.load_state_dict(copy.deepcopy(saved))
        if isinstance(loader, DeviceBatches):
            loader.reset()
    return max(0.0, seconds[0] - seconds[1])


def run_race(
    file: str, args: RaceOptions, data: DataSet, loader: Loader, train_step: Callable[..., torch.Tensor],
    state: Sequence[Any], predict: Predict | None = None, prepare: Callable[[], None] | None = None,
    precision: torch.dtype | None = None,
) -> Race:  # fmt: skip
    """Train until the last epoch, testing after each; then windows and a trace as of every program (`run_step`).

    train_step(images, labels): trains on one batch as the loader yields it and returns the loss, a tensor. state: the
    model, then all else that a step changes and that has a `state_dict`: optimizers, schedules. predict: in place of
    the model, in tests. prepare(): is called first, on the clock; what it changes is in `state` or set back by the
    loader's `reset()`. Losses stay on the device until the epoch ends; those of the windows are no result of the race.

    Writes `args.logdir/<name of file>/race.json`. Raises InputError, after that, for a race that failed, and for what
    the user can fix.
    """
    program, profile = Path(file).stem, cProfile.Profile() if args.cprofile else None
    if len(loader) == 0:
        raise InputError(f"--batch-size {args.batch_size} is larger than the data ({len(data)} images)")
    print(
        f"{program}: {args.model} on {data.source}, {len(data)} images of {args.image_size} px, batch "
        f"{args.batch_size}, at most {args.epochs} epochs, lr {args.lr}, on {device_name(args.device)}",
        flush=True,
    )
    with as_input_error(args, loader, torch.device(args.device)):
        done = _race(program, args, data, loader, train_step, state, predict or state[0], prepare, profile)
    if profile and args.cprofile:
        with result.writing(args.cprofile):
            profile.dump_stats(args.cprofile)
        print(f"cProfile slows the race down, so it is no record; look at it with: snakeviz {args.cprofile}")
        return done
    result.check_writable(args.logdir / program)
    reached = {"epochs_to_target": done.epochs_to_target, "seconds_to_target": done.seconds_to_target}
    more = {"fold": args.fold, "torch": torch.__version__, "started": environment.now()}
    result.write_json(args.logdir / program / FILE, asdict(done) | reached | more)
    if done.failure:
        raise InputError(str(done))
    print(f"{program}: {done}", flush=True)
    if not args.race_only:
        run_step(file, args, loader, train_step, precision=precision)
    return done


def _race(
    program: str, args: RaceOptions, data: DataSet, loader: Loader, train_step: Callable[..., torch.Tensor],
    state: Sequence[Any], predict: Predict, prepare: Callable[[], None] | None, profile: cProfile.Profile | None,
) -> Race:  # fmt: skip
    """The race itself; profile: runs while the clock does."""
    device, model = torch.device(args.device), state[0]
    if device.type == "cpu":
        keep_freed_memory()
    start_up_seconds = _start_up(loader, train_step, state, prepare, device)
    images, labels = data.prepared(data.test, device)
    seconds, accuracies, losses = [0.0], list[float](), list[float]()
    failure = "not reached"
    for epoch in range(1, args.epochs + 1):
        model.train()
        of_steps = []
        synchronize(device)
        begin = time.perf_counter()
        with profile or nullcontext():
            if prepare and epoch == 1:
                prepare()
            for batch in loader:
                of_steps.append(train_step(*batch).detach())
            synchronize(device)
        seconds.append(seconds[-1] + time.perf_counter() - begin)
        loss = torch.stack(of_steps).float().mean().item()
        if not math.isfinite(loss):
            failure = "diverged"
            losses.append(0.0)  # JSON has no other number for it
            accuracies.append(0.0)
            break
        losses.append(loss)
        accuracies.append(accuracy(model, predict, images, labels))
        if accuracies[-1] >= args.target:
            failure = None
        print(f"  epoch {epoch}: {seconds[-1]:.2f} s, loss {loss:.3f}, accuracy {accuracies[-1]:.2%}", flush=True)
        if args.stop and not failure:
            break
    return Race(
        program, data.source, device_name(device), args.model, args.target, args.epochs, args.batch_size, args.lr,
        args.seed, start_up_seconds, seconds[1:], accuracies, losses, failure,
    )  # fmt: skip
