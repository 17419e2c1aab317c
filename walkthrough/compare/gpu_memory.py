"""The GPU memory that `fit` predicts for programs, as `fit.json` in a folder of runs holds it. Starts without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from walkthrough.results.environment import Environment
from walkthrough.results.errors import InputError
from walkthrough.results.result import PositiveInt, Result, read_json, typed

FILE = "fit.json"
SCHEMA = 1
KINDS: tuple[str, ...] = ("parameters", "gradients", "optimizer", "activations", "inputs", "other")

# What a process that uses CUDA takes besides what torch reserves, set aside where a largest batch is sought. Assumed,
# not measured by us; it depends on GPU, driver and libraries. No figure in `labs.memory.published.MEMORY` contains one.
CONTEXT_BYTES = 550_000_000


@dataclass(frozen=True)
class Prediction:
    """The peak memory of a training step on a GPU, as predicted; nothing of it is measured.

    program: as "02_bigger_batch" or "labs/memory/00_baseline"; None for the training of `fit`'s own. words: of its
    command line. precision: the dtype of autocast. peak_bytes: allocated at the peak of a step. by_kind: {kind: bytes},
    which sum up to it. reserved_bytes: what the caching allocator takes for it, see `memory.allocator`. largest:
    {bytes of memory: the largest batch size with which that, and `CONTEXT_BYTES`, fits}. notes: what of the program is
    not predicted.
    """

    program: str | None
    words: list[str]
    model: str
    image_size: int
    batch_size: PositiveInt
    precision: str
    peak_bytes: PositiveInt
    by_kind: dict[str, int]
    reserved_bytes: PositiveInt
    largest: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def with_context(self) -> int:
        """Bytes that the GPU's own tools show: what is reserved, and the context."""
        return self.reserved_bytes + CONTEXT_BYTES

    def is_of(self, result: Result) -> bool:
        """True for the prediction of what a run on a GPU trained."""
        own = (self.program, self.model, self.image_size, self.batch_size)
        same_bytes = {"float16": "bfloat16"}
        return own == (result.step, result.model, result.image_size, result.batch_size) and (
            same_bytes.get(self.precision, self.precision) == same_bytes.get(result.precision, result.precision)
        )


@dataclass(frozen=True)
class Fit:
    """The predictions of every program, as `fit.json` holds them. failed: {program and words: why none}."""

    schema: int
    context_bytes: int
    predictions: list[Prediction]
    failed: dict[str, str]
    environment: Environment
    started: str

    def find(self, program: str, words: Sequence[str] = ()) -> Prediction | None:
        """The prediction of a program with these words on its command line, None where there is none."""
        return next((one for one in self.predictions if (one.program, one.words) == (program, [*words])), None)

    def gpu_bytes(self, result: Result) -> int | None:
        """The peak predicted on a GPU for the program of a run: of the run's own settings where that was on a GPU.

        On a CPU programs train another model, smaller images: there it is that of the program's settings on a GPU.
        """
        known = self.find(result.step)
        if known is None or (result.device_type == "cuda" and not known.is_of(result)):
            return None
        return known.peak_bytes


def read(logdir: str | Path, no_links: bool = False) -> Fit | None:
    """The `Fit` in a folder of runs, None where there is none. Raises InputError for a broken one.

    no_links: see `result.read_json`.
    """
    path = Path(logdir) / FILE
    if not path.exists():
        return None
    value = read_json(path, no_links)
    if value.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {value.get('schema')!r}; this version reads {SCHEMA}")
    fit = typed(Fit, value, path)
    for one in fit.predictions:
        if sorted(one.by_kind) != sorted(KINDS) or sum(one.by_kind.values()) != one.peak_bytes:
            raise InputError(f"{path} is broken: the kinds of {one.program} do not sum up to its peak")
    return fit
