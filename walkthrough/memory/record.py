"""What `fit` is asked for and prints; the file of its predictions is `compare.gpu_memory`'s. Starts without torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walkthrough.compare.gpu_memory import CONTEXT_BYTES, Prediction
from walkthrough.results.environment import ROOT

GIB = 2**30
GPUS = {  # bytes that a card reports; the least of the capacities that torch's out-of-memory errors name
    "T4": int(14.56 * GIB),
    "RTX 4090": int(23.52 * GIB),
    "A100 40 GB": int(39.38 * GIB),
    "A100 80 GB": int(79.14 * GIB),
    "H100": int(79.14 * GIB),
    "H200": int(139.72 * GIB),
    "B200": int(178.35 * GIB),
}
TOLERANCE = 0.01  # to within which share of it the largest batch of every program is sought, where all are predicted
NOT_PREDICTED = (
    "Not predicted: workspaces of cuDNN and cuBLAS (none to gigabytes, by shape and free memory), the pools of CUDA "
    "graphs, batches of other sizes in between, other processes."
)


@dataclass(frozen=True)
class Wanted:
    """What to predict. program: a training program's file; None for a training of `fit`'s own, with `optimizer`.

    words: the program's command line. checkpoint: recompute the model's blocks in the backward pass. budgets: bytes
    for which the largest batch is sought, and tolerance: to within which share of it.
    """

    program: str | None
    words: Sequence[str] = ()
    optimizer: str = "sgd"
    checkpoint: bool = False
    budgets: Sequence[int] = ()
    tolerance: float = 0


def name_of(program: str) -> str:
    """A program's name: that of a step's folder of runs, or with its folder, such as "labs/memory/00_baseline"."""
    path = Path(program).resolve().with_suffix("")
    if path.parent == ROOT / "steps":
        return path.name
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def as_json(prediction: Prediction, memory: int | None = None) -> dict[str, Any]:
    """The object that `fit --json` prints for one program; memory: the bytes that were asked for, if any."""
    value = asdict(prediction) | {"context_bytes": CONTEXT_BYTES}
    if memory is not None:
        value["largest_batch_size"] = prediction.largest[str(memory)]
    return value
