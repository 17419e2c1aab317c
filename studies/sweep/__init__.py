"""The sweep: training throughput for every number of workers, batch size and pinning."""

import argparse

from common.options import add_step_options
from studies import OPTION_TEXTS
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import folder, whole_number, whole_numbers

BATCH_SIZES = [32, 128, 512]
QUICK_WORKERS, QUICK_BATCH_SIZES = [0, 1], [8, 16]
RUNS, QUICK_RUNS = 5, 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
    add_step_options(parser, without=("--batch-size", "--workers", "--stacks"), texts=OPTION_TEXTS)
    parser.add_argument(
        "--workers-list",
        type=whole_numbers(0, 256),
        metavar="N,N",
        help="numbers of workers (default: 0,1,2,4 … up to twice the usable cores; 0,1 with --quick)",
    )
    parser.add_argument(
        "--batch-sizes",
        type=whole_numbers(1, 65536),
        metavar="N,N",
        help="images per step (default: 32,128,512; 8,16 with --quick)",
    )
    parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 5; 1 with --quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the heat map: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Measure, write `sweep.json` into `args.logdir`, draw and print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, no cell that could be
    measured.
    """
    from studies import study
    from studies.sweep.measure import default_workers, measure

    study.check_plot(args.plot)
    options = study.ready(args)
    workers = args.workers_list or (QUICK_WORKERS if options.quick else default_workers(usable_cores()))
    batch_sizes = args.batch_sizes or (QUICK_BATCH_SIZES if options.quick else BATCH_SIZES)
    runs = args.runs or (QUICK_RUNS if options.quick else RUNS)
    return study.report("sweep", args, lambda: measure(options, workers, batch_sizes, runs))
