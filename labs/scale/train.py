"""Train MobileNetV2 from any of the input pipelines, on any number of processes; the seconds of each epoch.

    python labs/scale/train.py --data DIR --pipeline jpeg                   # photographs, decoded in each epoch
    python labs/scale/train.py --data DIR --pipeline shards                 # prepared once: the same training, faster
    python labs/scale/train.py --data DIR --pipeline jpeg shards --quick    # both, a few steps each: hours of an epoch
    torchrun --nproc-per-node 2 --max-restarts 3 labs/scale/train.py        # DistributedDataParallel

Images are cropped and mirrored at random; see pipelines.py for what each pipeline is. The batch size is of all
processes together, and so the number of processes, and of passes (--accumulate), changes how long a step takes and not
what is trained. With two exceptions: batch norm normalises each pass of each process by its own images, and shards are
read by processes in another order. It writes `epochs.csv`, TensorBoard scalars, `checkpoint.pt` and the weights of the
best epoch, `best.pt`, into --logdir; a killed training goes on after the last whole epoch by the same command.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from itertools import chain, count
from typing import Any

from common import ranks
from common.device import device_name, disable_tf32, keep_freed_memory, synchronize
from common.failures import as_input_error
from common.options import add_step_options, resolved
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.pipelines import PIPELINES, Batch, Pipeline, pipeline_of
from labs.scale.preprocess import kind_and_size
from labs.shared.training import DTYPES, Training, epochs_in, precision_of, rising_then_falling
from walkthrough.compare.table import Table
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, OneLineParser, add_number, real_number, whole_numbers
from walkthrough.results.result import check_writable, read_json, write_json
from walkthrough.terminal import console

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

EPOCHS, LR, MOMENTUM, WEIGHT_DECAY = 20, 0.05, 0.9, 4e-5  # the last as MobileNetV2's authors have it
WARMUP_EPOCHS = 1  # the learning rate rises; then it falls to 0 along a cosine
TOP = 5
QUICK_STEPS, QUICK = 20, "quick.json"  # of --quick: steps that are timed, and the file that it leaves
RATE = "images_per_second"
EXCHANGES = ("last pass", "each pass", "never")  # when processes exchange gradients
# Not before each forward pass: batch norm's statistics are sent when they are used, at validation. The name is by
# torch's version.
_NAMES = ("forward_sync_buffers", "broadcast_buffers")
SENDS_BUFFERS: dict[str, Any] = {
    next(name for name in _NAMES if name in signature(DistributedDataParallel).parameters): False
}


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only, on any number of processes.

    batch_size: images of one optimizer step, over all processes. epochs: the learning rate falls to 0 at their end, so
    they are among the settings. precision: one of `DTYPES`, as "auto" differs from machine to machine.
    """

    model: str
    data: str
    pipeline: str
    image_size: int
    batch_size: int
    epochs: int
    lr: float
    precision: str
    seed: int


class Replica:
    """The model of one process of a group, which trains on its share of each batch.

    module: float [N, …] -> [N, classes], whose weights those of rank 0 replace. passes: in which a process trains on
    its share; gradients are exchanged in the last. smoothing: of labels, in training.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, lr: float, precision: str = "fp32", passes: int = 1,
        weight_decay: float = WEIGHT_DECAY, smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        self.module, self.device, self.passes, self.smoothing = module.to(device), device, passes, smoothing
        self.processes = ranks.world_size()
        self.model: Any = self.module
        if self.processes > 1:
            self.model = DistributedDataParallel(self.module, gradient_as_bucket_view=True, **SENDS_BUFFERS)
        self.optimizer = torch.optim.SGD(
            self.module.parameters(), lr, MOMENTUM, weight_decay=weight_decay, nesterov=True
        )
        self.dtype = DTYPES[precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)

    def step(self, batches: Iterator[Batch], exchange: str = EXCHANGES[0]) -> torch.Tensor:
        """One optimizer step on this process's share of a batch, in `passes`; the mean loss of the share."""
        self.optimizer.zero_grad(set_to_none=True)
        loss_of_share = torch.zeros((), device=self.device)
        for number in range(1, self.passes + 1):
            images, labels = next(batches)
            sends = exchange == "each pass" or (exchange == "last pass" and number == self.passes)
            with nullcontext() if sends or self.processes == 1 else self.model.no_sync():
                logits = self._logits(self.model, images)
                loss = F.cross_entropy(logits, labels, label_smoothing=self.smoothing) / self.passes
                self.scaler.scale(loss).backward()
            loss_of_share += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss_of_share

    @torch.no_grad()
    def validated(self, batches: Iterator[Batch]) -> dict[str, float]:
        """Mean loss, top-1 and top-5 share of the images of all processes, each counted once, whatever their number.

        By rank 0's running statistics of batch norm, those that a checkpoint holds, in every process.
        """
        if self.processes > 1:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        self.module.eval()
        sums = torch.zeros(4, device=self.device, dtype=torch.float64)
        for images, labels in batches:
            logits = self._logits(self.module, images)
            likeliest = logits.topk(min(TOP, logits.shape[1])).indices == labels.unsqueeze(1)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            values = (loss, likeliest[:, 0].sum(), likeliest.sum(), torch.tensor(len(labels)))
            sums += torch.stack([value.to(sums) for value in values])
        loss, top1, top5, count = ranks.summed(sums.tolist())
        return {"validation_loss": loss / count, "top1_accuracy": top1 / count, "top5_accuracy": top5 / count}

    def _logits(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """float32 [images, classes]."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return model(images).float()


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Be in the group of the processes that torchrun or SLURM started: gloo on a CPU, NCCL on GPUs. One alone has none.

    torchrun keeps one store over restarts on one machine, in which addresses of processes that are gone then stay
    (https://github.com/pytorch/pytorch/issues/135712): each start has keys of its own.
    """
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    store, rank, processes = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = PrefixStore(f"start_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes)
    try:
        yield
    finally:
        if backend == "gloo" or sys.exc_info()[0] is None:  # NCCL would wait for those that are gone
            dist.destroy_process_group()


def share(batch_size: int, processes: int, passes: int) -> int:
    """Images of a batch in one pass of one process. Raises InputError where it cannot be divided."""
    if batch_size % (processes * passes):
        raise InputError(
            f"--batch-size {batch_size} is of all processes: it has to be a multiple of {processes * passes}, for "
            f"{processes} processes with --accumulate {passes}"
        )
    return batch_size // processes // passes


def fit(run: Training, replica: Replica, pipeline: Any, settings: Settings) -> None:
    """Train to the end. pipeline: a `Pipeline`."""
    steps, rising = pipeline.images // settings.batch_size, WARMUP_EPOCHS / settings.epochs
    schedule = rising_then_falling(replica.optimizer, steps * settings.epochs, rising, cosine=True)
    run.parts["schedule"] = schedule
    for epoch in run.epochs(settings.epochs):
        replica.module.train()
        batches = pipeline.training(epoch, steps * replica.passes)
        losses = torch.zeros((), device=replica.device, dtype=torch.float64)
        for _ in range(steps):
            losses += replica.step(batches)
            schedule.step()
        [loss], seconds = ranks.summed([losses.item() / steps / replica.processes]), run.seconds()
        values = {"seconds": seconds, RATE: steps * settings.batch_size / seconds}
        run.done(loss=loss, **replica.validated(pipeline.validation()), **values)


def speed(replica: Replica, pipeline: Any, batch_size: int) -> float:
    """Images/s of some training steps, once what the loader's workers had loaded ahead is used up."""
    epoch = pipeline.images // batch_size * replica.passes
    batches = chain.from_iterable(pipeline.training(number, epoch) for number in count(1))
    replica.module.train()
    for _ in range(1 + 2 * pipeline.loading["num_workers"]):
        replica.step(batches)
    synchronize(replica.device)
    begin = time.perf_counter()
    for _ in range(QUICK_STEPS):
        replica.step(batches)
    synchronize(replica.device)
    return QUICK_STEPS * batch_size / (time.perf_counter() - begin)


def options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    add_step_options(
        parser,
        logdir=DEFAULTS.logdir / "train",
        batch_size=None,
        without=("--download", "--stacks"),
        texts={
            "--data": "folder of train/CLASS/*.jpg and val/CLASS/*.jpg, or of the Hugging Face hub's Parquet files, or "
            "what preprocess.py made of it, such as DIR/shards-64px (without one: pictures that are drawn)",
            "--logdir": f"folder of this training (default: {DEFAULTS.logdir / 'train'})",
            "--batch-size": "images of one optimizer step, over all processes (default: 96 on a GPU, 64 on a CPU)",
            "--workers": "loader processes of each process (default: its share of the cores)",
            "--quick": f"one epoch of at most {QUICK_STEPS} steps, and how long a whole one would take",
        },
        defaults=DEFAULTS,
    )
    parser.set_defaults(workers=None)
    parser.add_argument(
        "--pipeline", choices=PIPELINES, nargs="+", metavar="NAME",
        help=f"of {', '.join(PIPELINES)}; several are trained one after the other and compared (default: jpeg, or what "
        "--data holds)",
    )  # fmt: skip
    add_number(parser, "--epochs", "in all, as the learning rate ends at 0", 1, 10**6, EPOCHS)
    parser.add_argument("--lr", type=real_number(0), default=LR, help="SGD's highest (default: %(default)s)")
    add_number(parser, "--accumulate", "passes of each process over its share of a batch", 1, 4096, 1)
    parser.add_argument(
        "--keep", type=whole_numbers(0, 10**6), default=[], metavar="EPOCHS",
        help="keep the checkpoints of these epochs, such as 0,1,2,4: epoch-0.pt … (0: before the first)",
    )  # fmt: skip
    return parser.parse_args(words)


def train(args: argparse.Namespace) -> None:
    """Be one of a group of processes that train together, from one pipeline. Raises InputError."""
    if args.workers is None:
        args.workers = min(8, max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    args.image_size = args.image_size or kind_and_size(args.data)[1]
    steps = resolved(args, defaults=DEFAULTS)
    device, processes = torch.device(steps.device), int(os.environ.get("WORLD_SIZE", "1"))
    if device.type == "cpu":
        keep_freed_memory()
    disable_tf32()
    share_of_pass = share(steps.batch_size, processes, args.accumulate)
    check_writable(steps.logdir)
    name = pipeline_of(steps.data, args.pipeline and args.pipeline[0])
    # Before the group is made, which would not wait for one process that prepares images.
    pipeline = Pipeline(
        steps.data, name, steps.image_size, share_of_pass, device, steps.workers, steps.seed,
        int(os.environ.get("RANK", "0")), processes,
    )  # fmt: skip
    if pipeline.images < steps.batch_size:
        raise InputError(f"--batch-size {steps.batch_size} is larger than the data: choose a smaller one")
    with process_group(device):
        settings = Settings(
            model=steps.model, data=f"{pipeline.source}, {pipeline.images} images", pipeline=name,
            image_size=steps.image_size, batch_size=steps.batch_size, epochs=args.epochs, lr=args.lr,
            precision=precision_of(device, steps.precision), seed=steps.seed,
        )  # fmt: skip
        torch.manual_seed(steps.seed)
        model = mobilenet(steps.model, len(pipeline.classes))
        replica = Replica(model, device, args.lr, settings.precision, args.accumulate)
        passes = f"{processes} processes x {args.accumulate} passes x {share_of_pass}"
        print(
            f"train: {steps.model} on {settings.data}, {len(pipeline.classes)} classes, {steps.image_size} px, "
            f"from {name}; batch {steps.batch_size} = {passes}, on {device_name(device)}",
            flush=True,
        )
        loader = DataLoader(pipeline.train_set, share_of_pass, num_workers=steps.workers)
        with as_input_error(steps, loader, device, out_of_memory=f"try --accumulate {2 * args.accumulate}"):
            if steps.quick:
                rate = speed(replica, pipeline, steps.batch_size)
                seconds = pipeline.images / rate
                write_json(steps.logdir / QUICK, {RATE: rate, "seconds": seconds})
                print(f"{rate:.0f} images/s: about {seconds:.0f} s for an epoch of {pipeline.images} images")
                return
            parts = {"model": model, "optimizer": replica.optimizer, "scaler": replica.scaler}
            run = Training(steps.logdir, settings, parts, best="top1_accuracy", device=device, keep=args.keep)
            fit(run, replica, pipeline, settings)
    print(f"written to {steps.logdir}; look at it with: tensorboard --logdir {steps.logdir}")


def compare(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Train from each of several pipelines by this program's own command, then print the seconds of their epochs.

    Of whole trainings the median epoch after the first, in which the system may have read files from a disk.
    """
    at, own, rows = words.index("--pipeline"), list[str](), list[dict[str, Any]]()
    for name in args.pipeline:
        folder = args.logdir / name
        own = [*words[:at], *words[at + 1 + len(args.pipeline) :], "--pipeline", name, "--logdir", str(folder)]
        if subprocess.run([sys.executable, __file__, *own], check=False).returncode:
            raise InputError(f"training from {name} failed: the line above says why")
        if args.quick:
            row = read_json(folder / QUICK)
        else:
            epochs = epochs_in(folder)
            row = {key: statistics.median(epoch[key] for epoch in epochs[1:] or epochs) for key in ("seconds", RATE)}
            row["top-1 %"], row["top-5 %"] = (100 * epochs[-1][key] for key in ("top1_accuracy", "top5_accuracy"))
        rate, seconds = row.pop(RATE), row.pop("seconds")
        times = {"s of an epoch": seconds, "h of an epoch": seconds / 3600}
        rows.append({"pipeline": name, "images/s": rate, **times, **row})
        rows[-1]["times the first"] = rows[0]["s of an epoch"] / seconds
    console().print(Table("pipelines", rows).rich())


def main() -> None:
    args = options()
    if len(args.pipeline or ()) > 1:
        if "WORLD_SIZE" in os.environ:
            raise InputError("under torchrun one --pipeline is trained: run the command once for each")
        compare(args, sys.argv[1:])
        return
    if os.environ.get("RANK", "0") != "0":  # one process reports for all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the program
    train(args)


if __name__ == "__main__":
    record(main)()  # torchrun's report says why a process failed
