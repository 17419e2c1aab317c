"""The sweep: training throughput for every number of workers, batch size and pinning."""

import argparse

from common.options import add_step_options, folder, whole_number, whole_numbers
from common.studies import OPTION_TEXTS

HELP = "Measure training throughput, cores and memory for each number of workers, batch size and pinned memory or not."


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
        help="images per step (default: 32,128,512 on a GPU, 32,64,128 on a CPU; 8,16 with --quick)",
    )
    parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 3; 1 with --quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the heat map: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from common.studies.sweep.measure import sweep

    return sweep(args)
