"""Train MobileNetV2 on any number of processes: losses, top-1 and top-5 accuracy of each epoch, and the weights.

    python labs/scale/train.py --processes 2
    torchrun --nproc-per-node 2 --max-restarts 3 labs/scale/train.py

Both start the same: DistributedDataParallel, by gloo on a CPU and by NCCL on GPUs, one process for each. The first says
in one line why a process ended. The batch size is of all processes together, so their number does not change what is
trained: see training.py, also for what batch norm does. It writes `epochs.csv`, TensorBoard scalars and `checkpoint.pt`
into --logdir. With --max-restarts all processes are started again where one was killed, and go on after the last whole
epoch; so does the same command, on as many processes or others.
"""

import argparse
import io
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.device import autocast_dtype, device_name, disable_tf32, keep_freed_memory
from common.failures import as_input_error
from common.options import StepOptions, add_step_options, resolved
from labs.scale.jpegs import Jpegs, Listing, as_uint8, image_folder, listed, normalised
from labs.scale.launch import launch
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.ranks import from_rank_0, joined, reported
from labs.scale.training import DTYPES, STATEFUL, Epoch, Settings, Training
from labs.shared.checkpoints import CHECKPOINT, write, write_table
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import (
    InputError,
    OneLineParser,
    is_out_of_memory,
    printable,
    whole_number,
)
from walkthrough.results.result import check_writable

import torch

ANOTHER = "move it away to begin anew, or use another --logdir"
PRECISION = {dtype: name for name, dtype in DTYPES.items()}
EPOCHS, LR = 20, 0.05
PARTS = ("train", "val")


def saved(path: Path, settings: Settings) -> bytes | None:
    """The checkpoint that an earlier run left in the file `path`; None where there is none.

    Raises InputError, and leaves the file as it is, where it is damaged or of a training with other settings.
    """
    if not path.exists():
        return None
    try:
        content = path.read_bytes()
        state = unpacked(content)
        theirs = Settings(**state["settings"])
        if missing := {*STATEFUL, "epochs"} - set(state):
            raise KeyError(*sorted(missing))
    except Exception as error:  # of a file that is cut off or another's: zip, pickle, keys, anything
        raise damaged(path, error) from error
    for name, value in asdict(settings).items():
        if (their := getattr(theirs, name)) != value:
            raise InputError(f"{path} is of a training with {name.replace('_', ' ')} {their}, not {value}: {ANOTHER}")
    return content


def unpacked(content: bytes) -> dict[str, Any]:
    """The state in a checkpoint's bytes."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def damaged(path: Path, error: Exception) -> InputError:
    """Says that a checkpoint cannot be used, and what to do."""
    return InputError(f"{path} is damaged or no checkpoint of this program ({printable(error, 80)}): {ANOTHER}")


def resume(training: Training, path: Path) -> None:
    """Go on from the file `path` that rank 0 has, if there is one: all processes from the same bytes. InputError."""
    content = from_rank_0(saved(path, training.settings) if training.rank == 0 else None)
    if content is None:
        return
    try:
        training.load(unpacked(content))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what torch's loading raises
        raise damaged(path, error) from error
    if training.rank == 0 and training.epochs:
        write_table(path.parent, training.epochs)  # as a kill may have left it a row short
    print(f"goes on after epoch {len(training.epochs)}", flush=True)


def fit(training: Training, folder: Path) -> None:
    """Train to the end, from the checkpoint in a folder if there is one; rank 0 writes there after each epoch."""
    resume(training, folder / CHECKPOINT)
    events = None
    if training.rank == 0:
        from torch.utils.tensorboard import SummaryWriter  # a second to import, which the study does not need

        events = SummaryWriter(str(folder), purge_step=len(training.epochs) + 1)
    while len(training.epochs) < training.settings.epochs:
        epoch = training.epoch()
        if events:
            write(folder, training.state(), training.epochs)
            show(epoch, events)
    if events:
        events.close()


def show(epoch: Epoch, events: Any) -> None:
    """Print an epoch in a line, and write its numbers as TensorBoard's scalars."""
    for tag, value in asdict(epoch).items():
        if tag != "epoch":
            events.add_scalar(tag, value, epoch.epoch)
    print(
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, validation {epoch.validation_loss:.4f}, top-1 {epoch.top1:.1%}, "
        f"top-5 {epoch.top5:.1%}, {epoch.images_per_second:.0f} images/s, {epoch.seconds:.1f} s",
        flush=True,
    )


def options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    add_step_options(
        parser,
        logdir=DEFAULTS.logdir / "train",
        batch_size=None,
        without=("--download", "--quick", "--stacks"),
        texts={
            "--logdir": f"folder of this training (default: {DEFAULTS.logdir / 'train'})",
            "--batch-size": "images of one optimizer step, over all processes (default: 96 on a GPU, 64 on a CPU)",
            "--workers": "loader processes of each process (default: its share of the cores)",
        },
        defaults=DEFAULTS,
    )
    number = whole_number
    parser.set_defaults(workers=None)
    parser.add_argument(
        "--processes",
        type=number(1, 1024),
        default=1,
        metavar="N",
        help="started here; not under torchrun (default: 1)",
    )
    parser.add_argument(
        "--max-restarts", type=number(0, 1000), default=0, metavar="N", help="of --processes (default: 0)"
    )
    parser.add_argument("--port", type=number(1, 65535), metavar="N", help="of --processes (default: a free one)")
    parser.add_argument(
        "--epochs", type=number(1, 10**6), default=EPOCHS, metavar="N",
        help="in all, as the learning rate ends at 0 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--lr", type=float, default=LR, help="SGD's highest (default: %(default)s)")
    parser.add_argument(
        "--accumulate", type=number(1, 4096), default=1, metavar="N",
        help="passes of each process over its share of a batch, before gradients are exchanged (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--bucket-mb", type=float, default=None, metavar="MB",
        help="MiB of gradients that are sent at once (default: torch's own, 1 and then 25)",
    )  # fmt: skip
    args = parser.parse_args(words)
    for flag, value in (("--lr", args.lr), ("--bucket-mb", args.bucket_mb)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{flag} {value} is not a number above 0")
    return args


def listings(data: Path, folder: Path) -> tuple[Listing, ...]:
    """The JPEGs of training and of validation; `folder` is made, and can be written. Raises InputError."""
    check_writable(folder)
    return tuple(listed(image_folder(data), part) for part in PARTS)


def train(steps: StepOptions, args: argparse.Namespace) -> None:
    """Be one of a group of processes (see `ranks.joined`) that train together. Raises InputError."""
    device, leads = torch.device(steps.device), torch.distributed.get_rank() == 0
    if device.type == "cpu":
        keep_freed_memory()
    disable_tf32()
    # Rank 0 alone draws, checks and names what is corrupt.
    parts = from_rank_0(listings(steps.data, steps.logdir) if leads else ())
    train_set, validation_set = (Jpegs(part, as_uint8(steps.image_size)) for part in parts)
    settings = Settings(
        model=steps.model, data=f"{train_set.source}, {len(train_set)} images", image_size=steps.image_size,
        batch_size=steps.batch_size, epochs=args.epochs, lr=args.lr,
        precision=PRECISION[autocast_dtype(device, steps.precision)], seed=steps.seed,
    )  # fmt: skip
    torch.manual_seed(steps.seed)
    training = Training(
        settings, mobilenet(steps.model, len(train_set.classes)), train_set, validation_set, device, normalised,
        steps.workers, args.accumulate, args.bucket_mb,
    )  # fmt: skip
    print(
        f"train: {steps.model} on {settings.data}, {len(train_set.classes)} classes, {steps.image_size} px, batch "
        f"{steps.batch_size} = {training.processes} processes x {args.accumulate} passes x "
        f"{training.loader.batch_size}, on {device_name(device)}",
        flush=True,
    )
    with as_input_error(steps, training.loader, device):
        try:
            fit(training, steps.logdir)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                f"out of memory on {device_name(device)} with {training.loader.batch_size} images per pass: try "
                f"--accumulate {2 * args.accumulate}"
            ) from error
    print(f"written to {steps.logdir}; look at it with: tensorboard --logdir {steps.logdir}")


def main() -> None:
    with reported():
        args = options()
        if "WORLD_SIZE" not in os.environ and (args.processes > 1 or args.max_restarts):
            launch(Path(__file__), sys.argv[1:], args.processes, args.max_restarts, args.port)
            return
        if os.environ.get("RANK", "0") != "0":  # one process reports for all
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the program
        if args.workers is None:
            args.workers = min(8, max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        steps = resolved(args, defaults=DEFAULTS)
        with joined(torch.device(steps.device)):
            train(steps, args)


if __name__ == "__main__":
    main()
