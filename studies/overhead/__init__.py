"""`overhead`: how much each kind of tracing slows a training step down."""

import argparse

from common.options import add_step_options
from studies import OPTION_TEXTS
from walkthrough.results.errors import folder, whole_number

BATCH_SIZE = {"cuda": 128, "cpu": 32}
RUNS, QUICK_RUNS = 5, 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `overhead`."""
    texts = {"--batch-size": "images per step (default: 128 on a GPU, 32 on a CPU)"}
    without = ("--data", "--download", "--workers", "--stacks")
    add_step_options(parser, without=without, batch_size=None, texts=OPTION_TEXTS | texts)
    parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 5; 3 with --quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the cost of each mode: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Measure, write `overhead.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    from common.device import checked_device
    from studies import study
    from studies.overhead.measure import measure

    study.check_plot("studies.overhead.figure", args.plot)
    kind = checked_device(args.device).partition(":")[0]
    options = study.ready(args, batch_size=args.batch_size or BATCH_SIZE[kind])
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    return study.report("overhead", args, lambda: measure(options, runs))
