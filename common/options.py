"""The options that every program takes, checked before anything is done with them."""

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from walkthrough.results import capture
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, OneLineParser, folder, whole_number

BATCH_SIZE = 128
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
WORKLOAD = ("batch_size", "workers", "precision")  # options that a program may fix itself; the others act everywhere


@dataclass(frozen=True)
class Workload:
    """What a program trains on one kind of device where its options do not say.

    image_size: px, of this model; 0 where the data are no images. other_image_size: of another --model.
    quick_image_size: with --quick, of any. None: as image_size.
    """

    model: str
    batch_size: int
    image_size: int = 0
    other_image_size: int | None = None
    quick_image_size: int | None = None

    def size(self, model: str, quick: bool) -> int:
        """The image size, px, for a model."""
        special = self.quick_image_size if quick else None if model == self.model else self.other_image_size
        return self.image_size if special is None else special


@dataclass(frozen=True)
class Defaults:
    """What a program trains where its options do not say: on a GPU, and on a CPU.

    logdir: of its runs. models: what --model can name, for its help text. without: flags that it does not take. texts:
    {flag: another help text}. cifar10: False where it has data of its own.
    """

    cuda: Workload
    cpu: Workload
    logdir: Path
    models: str
    without: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    cifar10: bool = True

    def on(self, device: str) -> Workload:
        """What it trains on a device: "cpu", "cuda" or "cuda:N"."""
        return self.cpu if device == "cpu" else self.cuda


COURSE = Defaults(  # of the steps
    cuda=Workload("mobilenet_v2", BATCH_SIZE, image_size=224),
    # Preparing an image of 96 px then costs about what training on it does; another model needs minutes per step at
    # 224. Not 32 px, as which images are stored: then nothing would be resized.
    cpu=Workload("tiny_convmixer", BATCH_SIZE, image_size=96, other_image_size=64, quick_image_size=48),
    logdir=ROOT / "logs",
    models="any torchvision classifier, or tiny_convmixer",
    texts={
        "--image-size": "images are resized to PX x PX (default: 224 on a GPU; on a CPU 96, 64 with another --model, "
        "48 with --quick)",
        "--batch-size": f"images per step from step 02 on (default: {BATCH_SIZE})",
        "--workers": "loader processes from step 04 on (default: usable cores, at most 8: %(default)s here)",
        "--precision": "of autocast, from step 01 on: auto, fp32, bf16 or fp16 (default: auto: 16 bits where that is "
        "faster)",
    },
)


@dataclass(frozen=True)
class StepOptions:
    """The options of a program, checked; see the help texts of `add_step_options`.

    device: "cpu", "cuda" or "cuda:N". image_size: px; 0 where the data are no images. precision: one of `PRECISIONS`.
    given: which of `WORKLOAD` the command line names.
    """

    logdir: Path
    device: str
    data: Path
    download: bool
    model: str
    image_size: int
    batch_size: int
    workers: int
    precision: str
    seed: int
    quick: bool
    stacks: bool
    given: tuple[str, ...] = ()


def add_step_options(
    parser: argparse.ArgumentParser,
    logdir: Path | None = None,
    batch_size: int | None = BATCH_SIZE,
    without: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
    defaults: Defaults = COURSE,
) -> None:
    """Add the options that every program takes.

    logdir: its default, that of `defaults` if None. batch_size: its default; None where the command, or `defaults`,
    chooses it by the device. without: flags that a command does not take; the parsed namespace holds their defaults
    nevertheless. texts: {flag: another help text}.
    """
    own, logdir, gpu, cpu = {**defaults.texts, **(texts or {})}, logdir or defaults.logdir, defaults.cuda, defaults.cpu

    def add(flag: str, text: str, **settings: Any) -> None:
        if flag in without:
            default = settings.get("default", False if "action" in settings else None)
            parser.set_defaults(**{flag.removeprefix("--").replace("-", "_"): default})
        else:
            parser.add_argument(flag, help=own.get(flag, text), **settings)

    def number(flag: str, text: str, low: int, high: int, default: int | None = None, metavar: str = "N") -> None:
        add(flag, text, type=whole_number(low, high), default=default, metavar=metavar)

    own_folder = f"folder of all runs; this one goes into a folder of its own there (default: {logdir})"
    add("--logdir", own_folder, type=folder, default=logdir, metavar="DIR")
    add("--device", "cpu, cuda or cuda:N (default: the GPU if there is one)")
    data = "folder that holds cifar-10-batches-py (default: data/ of this project)"
    add("--data", data, type=folder, default=ROOT / "data", metavar="DIR")
    add("--download", "fetch CIFAR-10 into --data first, 170 MB", action="store_true")
    add("--model", f"{defaults.models} (default: {_by_device(gpu.model, cpu.model)})", metavar="NAME")
    image_size = f"images are resized to PX x PX (default: {_by_device(gpu.image_size, cpu.image_size)})"
    number("--image-size", image_size, 16, 1024, metavar="PX")
    batch = f"samples per step (default: {_by_device(gpu.batch_size, cpu.batch_size)})"
    number("--batch-size", batch, 1, 65536, batch_size)
    workers = "loader processes (default: usable cores, at most 8: %(default)s here)"
    number("--workers", workers, 0, 256, min(8, usable_cores()))
    precision = "of autocast: auto, fp32, bf16 or fp16 (default: auto: 16 bits where that is faster)"
    add("--precision", precision, choices=PRECISIONS, default="auto")
    number("--seed", "of weights and shuffling (default: %(default)s)", 0, 2**32 - 1, 0)
    add("--quick", "smoke run: few steps, still five windows and a trace", action="store_true")
    add("--stacks", "record Python call stacks and modules in the trace: bigger and slower", action="store_true")


def _by_device(on_gpu: object, on_cpu: object) -> str:
    """For a help text: what is chosen on a GPU, and on a CPU."""
    return str(on_cpu) if on_gpu == on_cpu else f"{on_gpu} on a GPU, {on_cpu} on a CPU"


def step_options(
    description: str | None, argv: Sequence[str] | None = None, defaults: Defaults = COURSE
) -> StepOptions:
    """Parse a step's command line. description: its docstring. defaults: a lab gives its own.

    Under torchrun only rank 0 prints. A bad option ends the program (exit code 2); InputError for a device that is not
    there. From here on, what the user can act on ends the program with one line (`errors.exit_in_one_line`).
    """
    parser = OneLineParser(description=description)
    batch_size = BATCH_SIZE if defaults is COURSE else None
    add_step_options(parser, batch_size=batch_size, without=defaults.without, defaults=defaults)
    if os.environ.get("RANK", "0") != "0":  # under torchrun: one process reports for all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the program
    words = sys.argv[1:] if argv is None else argv
    options = resolved(parser.parse_args(words), named(words), defaults=defaults)
    if os.path.isfile(options.logdir):
        raise InputError(f"--logdir {options.logdir} is a file: name a folder")
    return replace(options, device="cpu") if capture.as_on_gpu() else options


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Which options of `WORKLOAD` a command line names."""
    flags = {word.partition("=")[0] for word in words}
    return tuple(name for name in WORKLOAD if f"--{name.replace('_', '-')}" in flags)


def resolved(
    args: argparse.Namespace,
    given: tuple[str, ...] = (),
    batch_size: int | None = None,
    defaults: Defaults = COURSE,
) -> StepOptions:
    """The `StepOptions` of a parsed command line, with what follows from this machine: device, model and image size.

    given: of `named`. batch_size: in place of the one in `args`. Under torchrun "cuda" is the GPU of this process,
    cuda:LOCAL_RANK. The current CUDA device is set to the chosen one, since the profiler and the thread that pins
    memory look at that.
    Raises InputError for a device that is not there, and for one GPU that several processes would share.
    """
    import torch  # here, since `python -m walkthrough` starts without it

    from common.device import checked_device

    device = _gpu_of_process(checked_device(args.device), torch.cuda.device_count())
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)
    chosen = defaults.on(device)
    model = args.model or chosen.model
    return StepOptions(
        logdir=args.logdir,
        device=device,
        data=args.data,
        download=args.download,
        model=model,
        image_size=args.image_size or chosen.size(model, args.quick),
        batch_size=batch_size or args.batch_size or chosen.batch_size,
        workers=args.workers,
        precision=args.precision,
        seed=args.seed,
        quick=args.quick,
        stacks=args.stacks,
        given=given,
    )


def _gpu_of_process(device: str, gpus: int) -> str:
    """Under torchrun, "cuda" with the number of this process's GPU. gpus: of this machine. Raises InputError."""
    rank, processes = os.environ.get("LOCAL_RANK"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if rank is None or device == "cpu":
        return device
    if device != "cuda" and processes != "1":
        raise InputError(f"--device {device} under torchrun: each of {processes} processes needs a GPU: --device cuda")
    if device == "cuda" and int(rank) >= gpus:
        raise InputError(f"torchrun started {processes} processes here, this machine has {gpus} GPU(s): start no more")
    return f"cuda:{rank}" if device == "cuda" else device


def options_from(values: Mapping[str, Any]) -> StepOptions:
    """The `StepOptions` whose fields a process got among its settings, as JSON."""
    paths = {name: Path(values[name]) for name in ("logdir", "data")}
    return StepOptions(**{**values, **paths, "given": tuple(values["given"])})
