"""`fit`: predict the GPU memory of a training program, without a GPU."""

import argparse
import json
from pathlib import Path

from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, folder, size, whole_number

OPTIMIZERS = ("sgd", "adam", "adamw")
OF_A_PROGRAM = ("model", "batch_size", "image_size", "precision")  # options that are passed to it


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fit`."""
    from common.options import PRECISIONS

    program = parser.add_mutually_exclusive_group()
    program.add_argument("--step", metavar="NAME", help="a step, such as 02_bigger_batch or 02 (default: all programs)")
    program.add_argument("--program", type=folder, metavar="FILE", help="a program that calls run_step, as labs/ have")
    parser.add_argument("--model", metavar="NAME", help="any torchvision classifier (default: the program's on a GPU)")
    parser.add_argument("--batch-size", type=whole_number(1, 65536), metavar="N", help="(default: the program's)")
    parser.add_argument("--image-size", type=whole_number(16, 1024), metavar="PX", help="(default: the program's)")
    parser.add_argument("--precision", choices=PRECISIONS, help="of autocast (default: auto: 16 bits)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="without --step and --program (default: sgd)")
    parser.add_argument("--checkpoint", action="store_true", help="compute each block of the model again in backward")
    parser.add_argument(
        "--memory",
        type=size,
        nargs="?",
        const=0,
        metavar="SIZE",
        help="find the largest batch for so much GPU memory, such as 16GB; without a size, for common GPUs",
    )
    logs = ROOT / "logs"
    parser.add_argument(
        "--logdir", type=folder, default=logs, metavar="DIR", help=f"where fit.json of all goes (default: {logs})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the memory of all programs: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Predict one program and print it, or all of them and write `fit.json` into `args.logdir`. Returns 0.

    Raises InputError for options, a program that cannot be predicted, and a torch that lacks the tools.
    """
    from studies.study import check_plot, progress_on_stderr
    from walkthrough.memory import measure
    from walkthrough.memory.record import GPUS, Wanted, as_json
    from walkthrough.results import progress

    budgets = [] if args.memory is None else [args.memory] if args.memory else sorted(set(GPUS.values()))
    wanted = wanted_by(args)
    if wanted is None:
        check_plot(args.plot)
        measure.check_logdir(args.logdir)
        with progress_on_stderr(args.json):
            fit = measure.of_all_programs(budgets)
            measure.write(args.logdir, fit)
        measure.plot(fit, args.plot)
        measure.show(fit, args)
        return 0
    if args.plot:
        raise InputError("--plot draws all programs: leave --step, --program and the model's options out")
    if budgets:
        with progress_on_stderr(args.json):
            progress.say("fit: a minute or so, as many batch sizes are tried")
    answer = measure.predictions([Wanted(**{**vars(wanted), "budgets": budgets})])[0]
    if isinstance(answer, str):
        raise InputError(answer)
    if args.json:
        print(json.dumps(as_json(answer, args.memory or None), indent=2))
    else:
        measure.show_one(answer)
    return 0


def wanted_by(args: argparse.Namespace) -> "object | None":
    """The one program that a command line names, None for all. Raises InputError for one that is not there."""
    from walkthrough.memory.record import Wanted

    words = [
        word
        for name in OF_A_PROGRAM
        if (value := getattr(args, name)) is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    program = step_file(args.step) if args.step else args.program
    if program is None and not (words or args.optimizer or args.checkpoint):
        return None
    if program is not None and args.optimizer:
        raise InputError("--optimizer: a program has its own; leave it out, or leave out --step and --program")
    if program is not None and not program.is_file():
        raise InputError(f"--program {program}: there is no such file")
    if args.program is not None and b"run_step" not in args.program.read_bytes():  # else it would run as a whole
        raise InputError(f"--program {program}: it does not call run_step, as steps and numbered programs of labs do")
    path = None if program is None else str(program.resolve())
    return Wanted(path, words, args.optimizer or "sgd", args.checkpoint)


def step_file(name: str) -> Path:
    """The file of a step, by its name or its number. Raises InputError."""
    steps = sorted((ROOT / "steps").glob("[0-9]*.py"))
    for path in steps:
        if name in (path.stem, path.stem.partition("_")[0]):
            return path
    raise InputError(f"--step {name}: there is no such step; they are {', '.join(path.stem for path in steps)}")
