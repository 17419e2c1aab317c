"""What `walkthrough trace` writes beside the events: the steps before tracing, the optimizers, the loaders, the cores.

It stands in the trace's header under "walkthrough". A file from elsewhere may hold anything there: what is not of the
right type is left out.
"""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import median

NEW_EPOCH, EVALUATION, CHECKPOINT = "new epoch", "evaluation", "checkpoint"


class Optimizer(Struct, frozen=True):
    """An optimizer of the program. name: its class. steps: how often it ran. lead: whether it marks steps."""

    name: str
    steps: int = 0
    lead: bool = False


class Loader(Struct, frozen=True):
    """A DataLoader that the program trains on, as it was constructed."""

    batch_size: int | None = None
    num_workers: int = 0
    persistent_workers: bool = False
    pin_memory: bool = False
    prefetch_factor: int | None = None


class Happening(Struct, frozen=True):
    """What a step does besides training. step: the text after "ProfilerStep#". what: `NEW_EPOCH`, …"""

    step: str
    what: str


class Recording(Struct, frozen=True):
    """What the program itself knew when the trace was recorded.

    untraced_step_ms: of steps before tracing began, in order. steps_per_epoch: None where no second epoch began.
    epoch_step_ms: of steps that began an epoch, traced or not, without an evaluation before it. cores: that the process
    may use. processes: of the training, on the same machine. backwards_per_step: backward passes per traced step, more
    than 1 where gradients are accumulated. skipped: traced steps whose optimizer GradScaler did not run.
    samples_per_step: of the DataLoader's batches; None without one. moved: how often tracing began anew because of an
    evaluation or a new epoch. happenings: of the traced steps.
    """

    untraced_step_ms: list[float] = []
    steps_per_epoch: int | None = None
    epoch_step_ms: list[float] = []
    cores: int | None = None
    processes: int = 1
    mark: str = "optimizer"
    backwards_per_step: float | None = None
    skipped: int = 0
    samples_per_step: float | None = None
    moved: int = 0
    optimizers: list[Optimizer] = []
    loaders: list[Loader] = []
    happenings: list[Happening] = []

    @property
    def untraced_us(self) -> float | None:
        """The median step before tracing, µs; None where none was timed."""
        return float(median(np.array(self.untraced_step_ms))) * 1e3 if self.untraced_step_ms else None

    @property
    def epoch_begin_us(self) -> float:
        """µs that the median step that begins an epoch takes longer than the median step; 0.0 where that is unknown."""
        if not self.epoch_step_ms or self.untraced_us is None:
            return 0.0
        return max(0.0, float(median(np.array(self.epoch_step_ms))) * 1e3 - self.untraced_us)

    @property
    def workers(self) -> int:
        """The worker processes of the loader that has most of them."""
        return max((loader.num_workers for loader in self.loaders), default=0)

    @property
    def has_cores_left(self) -> bool:
        """False where the loader's workers and the training process use all cores, as far as that is known."""
        return not self.cores or not self.workers or self.cores > (self.workers + 1) * self.processes


def recording(header: dict[str, Any]) -> Recording | None:
    """The `Recording` in a trace's header; None for a trace that is not of `walkthrough trace`."""
    value = header.get("walkthrough")
    if not isinstance(value, dict):
        return None
    fields = {}
    for field in msgspec.structs.fields(Recording):
        try:
            fields[field.name] = msgspec.convert(value[field.name], field.type)
        except (KeyError, msgspec.ValidationError):
            continue
    return Recording(**fields)
