"""The options that the command of every study takes, beside its own."""

import argparse
from collections.abc import Collection, Mapping

from common.options import add_step_options, folder

TEXTS = {
    "--logdir": "folder of all runs; the result goes there as a JSON file (default: logs/ of this project)",
    "--batch-size": "images per step (default: %(default)s)",
    "--precision": "of autocast: auto, fp32, bf16 or fp16 (default: auto: bf16 where the hardware has it)",
    "--quick": "smoke run: fewer and shorter measurements",
}


def add_study_options(
    parser: argparse.ArgumentParser,
    plot: str,
    without: Collection[str] = (),
    batch_size: int | None = 128,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Add the options of a step, --json and --plot.

    plot: what --plot draws, for its help text. without, batch_size, texts: see `add_step_options`; `texts` go before
    `TEXTS`.
    """
    add_step_options(parser, batch_size=batch_size, without=without, texts={**TEXTS, **(texts or {})})
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="FILE", help=f"draw {plot}")
