"""Errors for the person at the keyboard: one line on stderr and exit code 2."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn


class InputError(Exception):
    """The user's input cannot be used. The message is one line: what, where, what to do."""


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors by which Python and torch report that the memory of the machine or the GPU is used up."""
    named = type(error).__name__ == "OutOfMemoryError"  # by name: this module must not import torch
    texts = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
    return named or isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def compile_failure(error: BaseException) -> str | None:
    """Why torch.compile could not compile, and what to do, in a line; None for any other error.

    By name, since this module must not import torch: whatever torch's compiler (Dynamo, Inductor) raises as its own,
    and the RuntimeError of a Python that it does not support.
    """
    message = str(error).strip()
    if isinstance(error, RuntimeError) and re.match(r"(Dynamo|torch\.compile) is not supported", message):
        return f"{_sentence(message)}: use a Python that it supports, or skip this step"
    if not any(kind.__module__ in ("torch._dynamo.exc", "torch._inductor.exc") for kind in type(error).__mro__):
        return None
    if "InvalidCxxCompiler" in f"{type(error).__name__} {message}":
        return "torch.compile found no C++ compiler that works: install one, such as g++, or skip this step"
    if "Failed to find C compiler" in message:  # Triton's
        return "torch.compile found no C compiler that works: install one, such as gcc, or skip this step"
    if "TritonMissing" in f"{type(error).__name__} {message}":
        return "torch.compile needs Triton for a GPU, which is not installed: pip install triton, or skip this step"
    if "GPUTooOldForTriton" in f"{type(error).__name__} {message}":
        return "torch.compile's Triton needs a newer GPU (compute capability 7.0 on): skip this step"
    if damaged := re.search(r"(/\S+)/[^/\s]+/\S+\.so: (file too short|invalid ELF header)", message):
        return (
            f"torch.compile's cache holds a broken file, as when compiling was cut off: remove the folder {damaged[1]} "
            "and run this again, or skip this step"
        )
    return (
        f"torch.compile could not compile the model ({type(error).__name__}: {_sentence(message)}): "
        "see that a C++ compiler such as g++ and Python's headers are installed, or skip this step"
    )


def _sentence(text: str) -> str:
    """The first sentence of a message, without its full stop, at most 160 characters."""
    lines = [line for line in text.splitlines() if line.strip() and not line.endswith(" raised:")]
    return printable(lines[0].split(". ")[0].rstrip("."), 160) if lines else "no message"


def printable(text: object, width: int | None = None) -> str:
    """`text` on one line without control sequences; truncated to `width` characters, if given.

    Control characters, terminal escapes, marks that turn the writing direction and broken characters become "\ufffd".
    For everything that comes out of a file: names in a trace are whatever its maker, or an attacker, put there.
    """
    line = " ".join(str(text).split())
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def exit_code(error: BaseException) -> int | None:
    """Print the line of an error that the person at the keyboard can act on, and return the program's exit code.

    2 for an `InputError`, for memory that ran out before training starts (moving the model, say) and for a
    torch.compile that cannot; 130 for Ctrl-C. None for every other error: a defect of ours, which keeps its traceback.
    """
    code = 2
    if isinstance(error, InputError):
        message: object = error
    elif isinstance(error, KeyboardInterrupt):
        code, message = 130, "interrupted; every run that was complete is kept"
    elif type(error) is MemoryError:
        message = "out of memory: this machine has too little for it"
    elif is_out_of_memory(error):
        message = "out of memory on the device before the first batch: free the GPU or choose a smaller --model"
    else:
        message = compile_failure(error)
    if message is None:
        return None
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.stem
    print(f"{name}: {printable(message)}", file=sys.stderr)
    return code


def exit_in_one_line() -> None:
    """From now on, an error that nobody catches ends this program by its `exit_code`.

    A `sys.excepthook`: who calls a program's `main()` gets the error itself, and the processes that multiprocessing
    starts report their own. SystemExit that it raises becomes the exit code, after what `atexit` holds.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        code = exit_code(error)
        if code is not None:
            raise SystemExit(code)
        before(kind, error, traceback)

    sys.excepthook = hook


class OneLineParser(argparse.ArgumentParser):
    """A program's argument parser: from `parse_args` on, errors are one line and exit code 2, its own without usage.

    The description is printed as it stands, a program's docstring most likely; no option can be abbreviated.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        as_written = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **{**as_written, **more})

    def parse_args(self, *args: Any, **more: Any) -> Any:
        exit_in_one_line()
        return super().parse_args(*args, **more)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high`."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return convert


def real_number(low: float, high: float = math.inf, or_low: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number above `low`, or also `low` itself, and at most `high`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not (low < value <= high or (or_low and value == low)):
            limits = f"{'from' if or_low else 'above'} {low}" + (f", at most {high}" if math.isfinite(high) else "")
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
        return value

    return convert


def add_number(
    parser: argparse.ArgumentParser, option: str, text: str, low: int, high: int, default: int | None = None
) -> None:
    """Add an option that takes a whole number from `low` to `high`; its help says the default, if it has one."""
    text = text if default is None else f"{text} (default: {default})"
    parser.add_argument(option, type=whole_number(low, high), default=default, metavar="N", help=text)


def whole_numbers(low: int, high: int) -> Callable[[str], list[int]]:
    """An argparse type: whole numbers from `low` to `high`, commas between, such as 0,1,2; sorted, without repeats."""
    number = whole_number(low, high)
    return lambda text: sorted({number(part) for part in text.split(",")})


def size(text: str) -> int:
    """An argparse type: a number of bytes, such as 500MB, 8GB or 8GiB; at least 1 MB."""
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?\s*", text)
    scale = (1024 if parts[3] else 1000) ** " kMGT".index(parts[2].replace("K", "k") or " ") if parts else 0
    number = int(float(parts[1]) * scale) if parts else 0
    if number < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 1MB up, such as 500MB or 8GB")
    return number


def folder(text: str) -> Path:
    """An argparse type: a folder's path. An empty one, an unset variable most likely, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)
