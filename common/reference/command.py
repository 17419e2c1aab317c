"""`record`: record the ladder of this machine, verify a record, pack one."""

import argparse

from common.ladder import pace, rounds
from common.machine import ROOT
from common.options import add_step_options, folder

HELP = "Run the whole ladder N times, interleaved, into logs/reference/<device>/. Resumable."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `record`: those of a step, and its own."""
    add_step_options(parser, logdir=ROOT / "logs" / "reference")
    rounds.add_options(parser, "--runs", default=rounds.RECORDED)
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
        from common.reference.checking import check

        return check(args.check)
    if args.pack:
        from common.reference.packing import pack

        return pack(args.pack)
    from common.reference.recording import record_ladder

    return record_ladder(args)
