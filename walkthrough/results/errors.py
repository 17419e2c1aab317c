"""Errors for the person at the keyboard: one line on stderr and exit code 2."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from walkthrough.results import capture


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


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program as the user needs it: exit code 2 and one line for an `InputError`, 130 for Ctrl-C.

    Works as `with one_line_errors():` and as a decorator, `@one_line_errors()`. Running out of device memory
    before training starts (moving the model, say) counts as input too, and so does a torch.compile that cannot. Every
    other exception is a defect of ours and keeps its traceback and exit code 1.
    """
    if capture.current.get():  # who captures the program handles its errors
        yield
        return
    try:
        yield
    except InputError as error:
        _exit(2, error)
    except KeyboardInterrupt:
        _exit(130, "interrupted; every run that was complete is kept")
    except Exception as error:
        if not is_out_of_memory(error):
            if message := compile_failure(error):
                _exit(2, message)
            raise
        if type(error) is MemoryError:
            _exit(2, "out of memory: this machine has too little for it")
        _exit(2, "out of memory on the device before the first batch: free the GPU or choose a smaller --model")


def _exit(code: int, message: object) -> NoReturn:
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.stem
    print(f"{name}: {printable(message)}", file=sys.stderr)
    raise SystemExit(code)


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2, without the usage text."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
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
