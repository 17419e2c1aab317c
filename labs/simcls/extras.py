"""Packages that only this lab needs: imported where they are used, and one line where one is missing."""

from importlib import import_module
from types import ModuleType

from common.errors import InputError

PACKAGES = {"rouge_score": "rouge-score"}  # {module: package}, where they differ


def imported(module: str, what: str) -> ModuleType:
    """The module of that name. what: needs it, for the error. Raises InputError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        package = PACKAGES.get(name, name)
        raise InputError(
            f"{what} needs {package}, which is not installed: pip install {package}, or all that this lab needs: "
            "pip install -r labs/simcls/requirements.txt"
        ) from error
