"""What the trainers of labs leave after each epoch: a checkpoint to go on from, and a table of all epochs."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from walkthrough.results.result import write_whole

import torch

CHECKPOINT, TABLE = "checkpoint.pt", "epochs.csv"


def write(folder: Path, state: dict[str, Any], epochs: Sequence[Any]) -> None:
    """Write the checkpoint, then the table, each whole or not at all: a kill loses the running epoch only.

    state: what a training goes on from. epochs: see `write_table`. Raises InputError.
    """
    content = io.BytesIO()
    torch.save(state, content)
    write_whole(folder / CHECKPOINT, content.getvalue())
    write_table(folder, epochs)


def write_table(folder: Path, epochs: Sequence[Any]) -> None:
    """Write the table of one epoch at least, a row for each, whole or not at all. epochs: objects of a dataclass."""
    table = io.StringIO()
    rows = [asdict(epoch) for epoch in epochs]
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / TABLE, table.getvalue())
