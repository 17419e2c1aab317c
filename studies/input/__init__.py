"""`limit --input`: how many images/s the input pipeline delivers, per number of workers."""

import argparse

HELP = "measure the input pipeline alone, per number of workers"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this study adds to the command `limit`."""
    parser.add_argument("--input", action="store_true", help=HELP)


def run(args: argparse.Namespace) -> int:
    """Measure, write `input_limit.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, data that is broken.
    """
    from studies import study
    from studies.input.measure import measure

    study.check_plot(args.plot)
    options = study.ready(args)
    return study.report("input", args, lambda: measure(options))
