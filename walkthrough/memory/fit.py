"""`fit`: how much GPU memory does a training program need, and which batch fits? Starts without torch."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from walkthrough.compare.table import Table
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, folder, printable, size, whole_number
from walkthrough.results.result import PositiveInt, size_label

if TYPE_CHECKING:
    from rich.console import Console

OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
OF_BOTH = ("model", "batch_size", "image_size", "precision")  # of a program, and of the training of `fit`'s own

# What a process that uses CUDA takes besides what torch reserves, set aside where a largest batch is sought. Assumed,
# not measured by us; it depends on GPU, driver and libraries. No published figure of the course contains one.
CONTEXT_BYTES = 550_000_000
GIB = 2**30
GPUS = {  # bytes that a card reports; the least of the capacities that torch's out-of-memory errors name
    "T4": int(14.56 * GIB),
    "RTX 4090": int(23.52 * GIB),
    "A100 40 GB": int(39.38 * GIB),
    "A100 80 GB": int(79.14 * GIB),
    "H100": int(79.14 * GIB),
    "H200": int(139.72 * GIB),
    "B200": int(178.35 * GIB),
}
MOST = 2**20  # samples of a batch
GUESSES = 10  # of the largest batch, by a line through the last two sizes; then the middle is taken
LEGEND = (
    "Predicted for a GPU, not measured. peak: allocated, in a training step; by kind at the moment of the peak, with "
    "hardly any gradients where that is early in the backward pass, after zero_grad. activations: what the forward "
    "pass keeps; other: gradients of activations and temporaries. reserved: what torch's allocator takes for it, by "
    f"its rules. A CUDA context, which nvidia-smi counts too, is taken to be {CONTEXT_BYTES / 1e9:.2f} GB (assumed, "
    "not measured by us). The largest batch: reserved and context fit.\n"
    "Not predicted: workspaces of cuDNN and cuBLAS (none to gigabytes, by shape and free memory), the pools of CUDA "
    "graphs, batches of other sizes in between, other processes, what the program keeps in host memory (its tensors "
    "count as the GPU's)."
)


@dataclass(frozen=True)
class Prediction:
    """The peak memory of a training step on a GPU, as predicted; nothing of it is measured.

    program: as "02_bigger_batch" or "labs/memory/00_baseline"; None for the training of `fit`'s own. words: of its
    command line. precision: the dtype of autocast. peak_bytes: allocated at the peak of a step. by_kind: {kind: bytes},
    which sum up to it. reserved_bytes: what the caching allocator takes for it, see `memory.allocator`. largest:
    {bytes of memory: the largest batch size with which that, and `CONTEXT_BYTES`, fits}. notes: what of the program is
    not predicted.
    """

    program: str | None
    words: list[str]
    model: str
    image_size: int
    batch_size: PositiveInt
    precision: str
    peak_bytes: PositiveInt
    by_kind: dict[str, int]
    reserved_bytes: PositiveInt
    largest: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fit`."""
    program = parser.add_mutually_exclusive_group()
    program.add_argument("--step", metavar="NAME", help="a step of the course, such as 02_bigger_batch or 02")
    program.add_argument("--program", type=folder, metavar="FILE", help="a program that calls run_step, as labs/ have")
    parser.add_argument("--model", metavar="NAME", help="any torchvision classifier (default: the program's on a GPU)")
    parser.add_argument("--batch-size", type=whole_number(1, 65536), metavar="N", help="(default: the program's)")
    parser.add_argument("--image-size", type=whole_number(16, 1024), metavar="PX", help="(default: the program's)")
    parser.add_argument("--precision", choices=PRECISIONS, help="of autocast (default: auto: 16 bits)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="without --step and --program (default: sgd)")
    parser.add_argument(
        "--checkpoint",
        action="store_true",
        help="compute each block of the model again in backward; without --step and --program",
    )
    parser.add_argument(
        "--memory",
        type=size,
        nargs="?",
        const=0,
        metavar="SIZE",
        help="find the largest batch for so much GPU memory, such as 16GB; without a size, for common GPUs",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Predict one program, or a training of its own, and print it. Returns 0.

    Raises InputError for options, a program that cannot be predicted, and a torch that lacks the tools.
    """
    program = step_file(args.step) if args.step else args.program
    given = {name: value for name in OF_BOTH if (value := getattr(args, name)) is not None}
    if program and (args.optimizer or args.checkpoint):
        flag = "--optimizer" if args.optimizer else "--checkpoint"
        raise InputError(f"{flag}: a program has its own; leave it out, or leave out --step and --program")
    if program and not program.is_file():
        raise InputError(f"--program {program}: there is no such file")
    if args.program and b"run_step" not in program.read_bytes():  # else it would run as a whole
        raise InputError(f"--program {program}: it does not call run_step, as steps and numbered programs of labs do")
    budgets = [] if args.memory is None else [args.memory] if args.memory else sorted(set(GPUS.values()))
    if budgets:
        print("fit: a minute or so, as many batch sizes are tried", file=sys.stderr)
    predict = tools()
    own = None if program else predict.Own(optimizer=args.optimizer or "sgd", checkpoint=args.checkpoint, **given)
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    prediction = predict.predicted(own or program, words, budgets)
    if args.json:
        value = asdict(prediction) | {"context_bytes": CONTEXT_BYTES}
        if args.memory:
            value["largest_batch_size"] = prediction.largest[str(args.memory)]
        print(json.dumps(value, indent=2))
    else:
        from walkthrough.terminal import console

        show(prediction, console())
    return 0


def tools() -> ModuleType:
    """The module `memory.predict`. Raises InputError where this torch has not, or has moved, what it needs."""
    import torch

    try:
        from walkthrough.memory import predict

        predict.check_tools()
    except Exception as error:  # imports, attributes, signatures: none of these tools is part of a stable interface
        why = printable(f"{type(error).__name__}: {error}", 120)
        raise InputError(
            f"fit cannot predict: torch {torch.__version__} lacks what a prediction needs, or has moved it ({why}); "
            "install the tested version, see requirements.lock"
        ) from error
    return predict


def step_file(name: str) -> Path:
    """The file of a step, by its name or its number. Raises InputError."""
    steps = sorted((ROOT / "steps").glob("[0-9]*.py"))
    for path in steps:
        if name in (path.stem, path.stem.partition("_")[0]):
            return path
    known = ", ".join(path.stem for path in steps) or "in a clone of the project"
    raise InputError(f"--step {name}: there is no such step; they are {known}")


def largest_batch(needed_bytes: Callable[[int], int], budget: int, start: int, tolerance: float = 0) -> int:
    """The largest batch size that needs at most `budget` bytes, 0 where not even one sample fits; at most `MOST`.

    needed_bytes(batch size): grows with it, nearly linearly; asked for few sizes. start: the size to begin with.
    tolerance: the size returned fits, but one that is larger by this share of it may fit as well; fewer are asked for.
    """
    fits, too_large = 0, MOST + 1
    before, last = (0, 0), (0, 0)
    size, guesses = min(max(start, 1), MOST), 0
    while too_large - fits > (step := max(1, int(fits * tolerance))):
        before, last = last, (size, needed_bytes(size))
        if last[1] <= budget:
            fits = size
        else:
            too_large = size
        guesses += 1
        slope = (last[1] - before[1]) / (last[0] - before[0])
        halve = guesses > GUESSES or slope <= 0
        size = (fits + too_large) // 2 if halve else int(last[0] + (budget - last[1]) / slope)
        step = max(1, int(fits * tolerance))
        size = max(fits + step, min(size, too_large - step))
    return fits


def show(one: Prediction, to: "Console") -> None:
    """Print a prediction, understandable without the docs."""
    from rich.markup import escape
    from rich.text import Text

    from walkthrough.terminal import size_text

    title = f"{one.program}: {one.model}" if one.program else one.model
    title += f", {size_label(one.image_size)}, batch {one.batch_size}, {one.precision}"
    to.print(f"\n[bold]{escape(title)}: {size_text(one.peak_bytes)} predicted[/]\n")
    rows = one.by_kind | {"peak": one.peak_bytes, "reserved": one.reserved_bytes}
    rows |= {"with a CUDA context": one.reserved_bytes + CONTEXT_BYTES}
    held = [{"": name, "GB": number / 1e9} for name, number in rows.items()]
    to.print(Table("memory", held, templates={"GB": "{:.3f}"}).rich())
    if one.largest:
        gpus = {budget: [name for name, memory in GPUS.items() if memory == int(budget)] for budget in one.largest}
        largest = [
            {"memory": size_text(int(budget)), "largest batch": size or "none fits", "GPU": ", ".join(gpus[budget])}
            for budget, size in one.largest.items()
        ]
        to.print()
        to.print(Table("largest batch", largest, templates={"largest batch": "{}"}).rich())
    for note in one.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    to.print(Text(LEGEND, "dim"))
