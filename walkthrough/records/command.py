"""`record`: record the ladder of this machine, verify a record, pack one."""

import argparse

from walkthrough.compare import pace, tour
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import folder


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `record`: those of a step, and its own."""
    from common.options import add_step_options

    add_step_options(parser, logdir=ROOT / "logs" / "reference")
    tour.add_round_options(parser, "--runs", default=tour.RECORDED)
    pace.add_option(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", type=folder, metavar="FOLDER", help="only verify the record in FOLDER; nothing is written"
    )
    instead.add_argument(
        "--pack",
        type=folder,
        metavar="FOLDER",
        help="verify the record in FOLDER and write it as one .zip file here; "
        "first its README.md, where that is missing",
    )


def run(args: argparse.Namespace) -> int:
    """Record, or with `args.check` or `args.pack` verify or pack what was recorded; the exit code."""
    if args.check:
        from walkthrough.records.check import check

        return check(args.check)
    if args.pack:
        from walkthrough.records.check import pack

        return pack(args.pack)
    from walkthrough.records.recording import record_ladder

    return record_ladder(args)
