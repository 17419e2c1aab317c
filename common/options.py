"""The options that every step takes, checked before anything is done with them."""

import argparse
import os
import re
import sys
from pathlib import Path

from common.errors import InputError
from common.machine import ROOT, usable_cores

IMAGE_SIZE = {"cuda": 224, "cpu": 64}  # px; a CPU needs minutes a step at 224
QUICK_IMAGE_SIZE = {"cuda": 224, "cpu": 32}


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2, without the usage text."""

    def error(self, message):
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def whole_number(low, high):
    """An argparse type: a whole number from `low` to `high`."""

    def convert(text):
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return convert


def whole_numbers(low, high):
    """An argparse type: whole numbers from `low` to `high`, commas between, such as 0,1,2; sorted, each once."""
    number = whole_number(low, high)
    return lambda text: sorted({number(part) for part in text.split(",")})


def size(text):
    """An argparse type: a number of bytes, such as 500MB, 8GB or 8GiB; at least 1 MB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?\s*", text)
    scale = (1024 if found[3] else 1000) ** " kMGT".index(found[2].replace("K", "k") or " ") if found else 0
    number = int(float(found[1]) * scale) if found else 0
    if number < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 1MB up, such as 500MB or 8GB")
    return number


def folder(text):
    """An argparse type: a folder's path. An empty one, an unset variable most likely, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def add_step_options(parser, ignores=(), logdir=ROOT / "logs", batch_size=128, without=(), texts=None):
    """Add the options that every step takes. `ignores`: those, as typed, that have no effect in this one.

    batch_size: its default; None where that follows from the device, which is then left to the command, as is a text
    for it. without: those
    that a command does not take; the namespace has their defaults nevertheless. texts: {flag: another help text}.
    """

    def add(flag, text, **kinds):
        text = (texts or {}).get(flag, text)
        if flag in without:
            parser.set_defaults(**{flag.removeprefix("--").replace("-", "_"): kinds.get("default", False)})
            return
        parser.add_argument(flag, help=text + (" (no effect in this step)" if flag in ignores else ""), **kinds)

    add(
        "--logdir",
        f"folder of all runs; this one goes into a folder of its own there (default: {logdir})",
        type=folder,
        default=logdir,
        metavar="DIR",
    )
    add("--device", "cpu, cuda or cuda:N (default: the GPU if there is one)")
    add(
        "--data",
        "folder that holds cifar-10-batches-py (default: data/ of this project)",
        type=folder,
        default=ROOT / "data",
        metavar="DIR",
    )
    add("--download", "fetch CIFAR-10 into --data first, 170 MB", action="store_true")
    add("--model", "any torchvision classifier (default: %(default)s)", default="mobilenet_v2", metavar="NAME")
    add(
        "--image-size",
        "images are resized to PX x PX (default: 224 on a GPU, 64 on a CPU, 32 with --quick)",
        type=whole_number(16, 1024),
        metavar="PX",
    )
    add(
        "--batch-size",
        f"images per step from step 02 on (default: {batch_size})",
        type=whole_number(1, 65536),
        default=batch_size,
        metavar="N",
    )
    add(
        "--workers",
        "loader processes from step 04 on (default: usable cores, at most 8: %(default)s here)",
        type=whole_number(0, 256),
        default=min(8, usable_cores()),
        metavar="N",
    )
    add(
        "--seed",
        "of weights and shuffling (default: %(default)s)",
        type=whole_number(0, 2**32 - 1),
        default=0,
        metavar="N",
    )
    add("--quick", "smoke run: few steps, still five windows and a trace", action="store_true")
    add("--stacks", "record Python call stacks and modules in the trace: bigger and slower", action="store_true")


def step_options(description, ignores=(), argv=None):
    """Parse a step's command line. `description` is its docstring; `ignores` as in `add_step_options`.

    Returns the options as a namespace; `device` and `image_size` hold their defaults for this machine.
    Prints a line for each option given that this step does not use. A bad option ends the program (exit code 2);
    InputError for a device that is not there.
    """
    import torch  # here, since `python -m common` starts without it

    from common.device import checked_device

    parser = OneLineParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_step_options(parser, ignores)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    args.device = checked_device(args.device)
    args.image_size = image_size_for(args, args.device)
    if torch.device(args.device).index is not None:
        torch.cuda.set_device(args.device)  # the profiler and the pinning thread look at the current device
    if os.path.isfile(args.logdir):
        raise InputError(f"--logdir {args.logdir} is a file: name a folder")
    for flag in ignores:
        if any(word == flag or word.startswith(flag + "=") for word in given):
            print(f"{Path(sys.argv[0]).stem}: {flag} has no effect in this step")
    args.ignores = tuple(ignores)
    return args


def image_size_for(args, device):
    """The image size, px, that a run with these options has on that device ("cpu", "cuda" or "cuda:N")."""
    return args.image_size or (QUICK_IMAGE_SIZE if args.quick else IMAGE_SIZE)[device.partition(":")[0]]


def step_arguments(args):
    """The step's options in a namespace, defaults left out, as a command line for a program that hands them on."""
    parser = argparse.ArgumentParser()
    add_step_options(parser)
    words = []
    for name, default in vars(parser.parse_args([])).items():
        value = getattr(args, name)
        if value != default:
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words
