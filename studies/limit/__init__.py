"""`limit`: the highest speed of the model on this device if data cost nothing, and why it is not higher."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from common.options import add_step_options
from studies import OPTION_TEXTS
from studies import input as input_study
from walkthrough.results.errors import InputError, folder, whole_number

if TYPE_CHECKING:
    from studies.limit.record import Limit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `limit`, with those of `limit --input`."""
    texts = {
        "--batch-size": "images per step; without --input the first of the sizes tried (default: %(default)s)",
        "--data": "with --input: folder that holds cifar-10-batches-py (default: data/ of this project)",
        "--download": "with --input: fetch CIFAR-10 into --data first, 170 MB",
    }
    add_step_options(parser, without=("--workers", "--stacks"), texts=OPTION_TEXTS | texts)
    input_study.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--plot",
        type=folder,
        metavar="FILE",
        help="draw the roofline, with --input images/s per number of workers: .svg or .png",
    )
    parser.add_argument(
        "--compile-limit",
        type=whole_number(0, 36000),
        metavar="S",
        help="seconds that each torch.compile may take, 0: do not compile (default: on a GPU 300 or less, so that "
        "two fit into 8 minutes; on a CPU 30 or more)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, write `limit.json` (with --input: `input_limit.json`) into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    if args.input:
        return input_study.run(args)
    if args.download:
        raise InputError("--download fetches the data, which limit reads with --input only: leave it out")
    from studies import study
    from studies.limit.measure import measure

    study.check_plot(args.plot)
    options = study.ready(args)
    more = "; `compare` shows each step's share of the limit"
    return study.report("limit", args, lambda: measure(options, args.compile_limit), more)


def read(logdir: "str | Path") -> "Limit | None":
    """The `Limit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    from studies.limit import record

    return record.read(logdir)
