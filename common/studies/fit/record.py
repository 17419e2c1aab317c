"""What `fit` predicts, and the file `fit.json` with the predictions of every program. Starts without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import record
from common.errors import InputError
from common.record import PositiveInt, Result

FILE = "fit.json"
SCHEMA = 1
KINDS = ("parameters", "gradients", "optimizer", "activations", "inputs", "other")

# What a process that uses CUDA takes beside what it allocates: the difference between the figures published for
# ResNeXt on an A100 at batch 128 (`ladder.published.MEMORY`) and those predicted. Not measured here; it depends on the
# GPU, the driver and the libraries.
CONTEXT_BYTES = 550_000_000

GPUS = {  # bytes that are sold with it
    "T4": 16_000_000_000,
    "RTX 4090": 24_000_000_000,
    "A100 40 GB": 40_000_000_000,
    "A100 80 GB": 80_000_000_000,
    "H100": 80_000_000_000,
    "H200": 141_000_000_000,
    "B200": 192_000_000_000,
}
NOT_PREDICTED = (
    "Not predicted: workspaces of cuDNN and cuBLAS (none to gigabytes, by shape and free memory), the pools of CUDA "
    "graphs, what the allocator keeps but cannot use (fragmentation), other processes."
)


@dataclass(frozen=True)
class Wanted:
    """What to predict. program: a training program's file; None for a training of `fit`'s own, with `optimizer`.

    words: the program's command line. checkpoint: recompute the model's blocks in the backward pass. budgets: bytes
    for which the largest batch is sought.
    """

    program: str | None
    words: Sequence[str] = ()
    optimizer: str = "sgd"
    checkpoint: bool = False
    budgets: Sequence[int] = ()


@dataclass(frozen=True)
class Prediction:
    """The peak memory of a training step on a GPU, as predicted; nothing of it is measured.

    program: as "02_bigger_batch" or "labs/memory/00_baseline"; None for the training of `fit`'s own. words: of its
    command line. precision: the dtype of autocast. by_kind: {kind: bytes}, which sum up to peak_bytes. largest: {bytes
    of memory: the largest batch size whose peak, with `CONTEXT_BYTES`, fits}. notes: what of the program is not
    predicted.
    """

    program: str | None
    words: list[str]
    model: str
    image_size: int
    batch_size: PositiveInt
    precision: str
    peak_bytes: PositiveInt
    by_kind: dict[str, int]
    largest: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def with_context(self) -> int:
        """Bytes that the GPU's own tools show, context included."""
        return self.peak_bytes + CONTEXT_BYTES

    def is_of(self, result: Result) -> bool:
        """True for the prediction of what a run on a GPU trained."""
        own = (self.program, self.model, self.image_size, self.batch_size)
        same_bytes = {"float16": "bfloat16"}
        return own == (result.step, result.model, result.image_size, result.batch_size) and (
            same_bytes.get(self.precision, self.precision)
            == same_bytes.get(result.precision or "", result.precision)
        )


@dataclass(frozen=True)
class Fit:
    """The predictions of every program, as `fit.json` holds them. failed: {program: why it has none}."""

    schema: int
    context_bytes: int
    predictions: list[Prediction]
    failed: dict[str, str]
    environment: record.Environment
    started: str

    def of_step(self, step: str) -> Prediction | None:
        """The prediction of a program with its own settings, None where there is none."""
        return next((one for one in self.predictions if one.program == step and not one.words), None)

    def gpu_bytes(self, result: Result) -> int | None:
        """The peak predicted on a GPU for the program of a run: of the run's own settings where that was on a GPU.

        On a CPU programs train another model, smaller images: there it is that of the program's settings on a GPU.
        """
        known = self.of_step(result.step)
        if known is None or (result.device_type == "cuda" and not known.is_of(result)):
            return None
        return known.peak_bytes


def read(logdir: str | Path) -> Fit | None:
    """The `Fit` in a folder of runs, None where there is none. Raises InputError for a broken one."""
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    value = record.read_json(path)
    if value.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {value.get('schema')!r}; this version reads {SCHEMA}")
    fit = record.typed(Fit, value, path)
    for one in fit.predictions:
        if sorted(one.by_kind) != sorted(KINDS) or sum(one.by_kind.values()) != one.peak_bytes:
            raise InputError(f"{path} is broken: the kinds of {one.program} do not sum up to its peak")
    return fit


def as_json(prediction: Prediction, memory: int | None = None) -> dict[str, Any]:
    """The object that `fit --json` prints for one program; memory: the bytes that were asked for, if any."""
    from dataclasses import asdict

    value = asdict(prediction) | {"context_bytes": CONTEXT_BYTES}
    if memory is not None:
        value["largest_batch_size"] = prediction.largest[str(memory)]
    return value
