"""Run a program up to its train step, and return that instead of training: for `fit`, ablations and the labs.

`common` asks `current` where it parses options, checks the device, opens the data and would measure.
"""

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import getclosurevars
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Capture:
    """as_on_gpu: options and precision as on a GPU, tensors on the CPU. blank_data: black images, nothing is read."""

    as_on_gpu: bool = False
    blank_data: bool = False


@dataclass(frozen=True)
class Program:
    """What a program passed to `run_step`: see there. precision: a torch.dtype, or None without autocast."""

    file: str
    args: Any
    loader: Any
    train_step: Callable[..., Any]
    precision: Any = None
    count_tokens: Callable[..., Any] | None = None

    @property
    def dtype(self) -> str:
        """The name of its precision: "bfloat16"."""
        return str(self.precision or "float32").removeprefix("torch.")

    @property
    def variables(self) -> Mapping[str, Any]:
        """What the train step uses of the program's `main`: "model", "optimizer", "criterion" and so on."""
        return getclosurevars(self.train_step).nonlocals


class Captured(BaseException):
    """Ends a program at its call of `run_step`; no error. It keeps the locals of the program's main() alive."""

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


def captured(file: Path, words: Sequence[str], wanted: Capture) -> Captured:
    """Run a program's file with these words on its command line, up to its call of `run_step`.

    Raises what the program raises, SystemExit of its parser too, and RuntimeError where it ends without that call.
    """
    token, before = current.set(wanted), (sys.argv, sys.path)
    sys.argv, sys.path = [str(file), *words], [str(file.resolve().parent), *sys.path]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except Captured as reached:
        return reached
    finally:
        current.reset(token)
        sys.argv, sys.path = before
    raise RuntimeError(f"{file.name} ended without a call of run_step")
