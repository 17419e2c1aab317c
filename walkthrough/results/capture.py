"""The seam between a program and who wants its train step instead of its run, such as `fit`.

`common` asks `current` where it parses options, checks the device, opens the data and would measure.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capture:
    """as_on_gpu: options and precision as on a GPU, tensors on the CPU. blank_data: black images, nothing is read."""

    as_on_gpu: bool = False
    blank_data: bool = False


@dataclass(frozen=True)
class Program:
    """What a program passed to `run_step`."""

    file: str
    args: Any
    loader: Any
    train_step: Callable[..., Any]
    precision: Any = None
    count_tokens: Any = None


class Captured(BaseException):
    """Leaves a program at its call of `run_step`; no error."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.file)
        self.program = program


current: ContextVar[Capture | None] = ContextVar("capture", default=None)  # of this thread; None: programs run


def as_on_gpu() -> bool:
    """True where a program is captured as it would run on a GPU."""
    return (wanted := current.get()) is not None and wanted.as_on_gpu


def blank_data() -> bool:
    """True where a program is captured whose images nobody looks at."""
    return (wanted := current.get()) is not None and wanted.blank_data
