"""Packages that only some labs need: imported where they are used, one line where one is missing, and kept quiet.

Imports no more than `walkthrough.results.errors`, so that a lab's programs can use it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from walkthrough.results.errors import InputError

PACKAGES = {
    "rouge_score": "rouge-score",
    "sklearn": "scikit-learn",
}  # {module: package}, where they differ


def imported(module: str, lab: str | None, what: str) -> Any:
    """The module of that name, such as "sklearn.datasets". lab: whose requirements name it, None where several do.

    what: needs it, for the error.

    Raises InputError where it, or a package that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        package = PACKAGES.get(name, name)
        or_all = f", or all that this lab needs: pip install -r labs/{lab}/requirements.txt" if lab else ""
        raise InputError(f"{what} needs {package}, which is not installed: pip install {package}{or_all}") from error


@contextmanager
def stderr_into(file: int) -> Iterator[None]:
    """Write stderr, also that of processes that are started meanwhile, into a file, given by its descriptor.

    For packages that print tracebacks where this project has a line.
    """
    before = os.dup(2)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
