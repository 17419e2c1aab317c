"""A step that could not be run, and why: what stands in a record in the place of its runs.

A step that ends with exit code 2 has said in a line why this machine, or what it was given, does not suit it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common import record
from common.errors import InputError, printable
from common.run import privacy

FILE = "not_run.json"
LENGTH = 250  # characters of a reason, at most


@dataclass(frozen=True)
class NotRun:
    """step: its name. reason: a line, without a full stop."""

    step: str
    reason: str

    def __str__(self):
        return f"{self.step} was not run: {self.reason}"


def write(folder, step, reason):
    """Put `not_run.json` into a step's folder, which is made; nothing in it tells of this machine's folders."""
    with record.writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    made = NotRun(step, printable(privacy.redacted(reason), LENGTH).rstrip("."))
    record.write_whole(Path(folder) / FILE, json.dumps(asdict(made), indent=2) + "\n")


def read(path):
    """The `NotRun` in a file. Raises InputError that names it where it is broken."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: not JSON") from error
    whole = isinstance(value, dict) and set(value) == {"step", "reason"}
    if not whole or not all(isinstance(text, str) and text for text in value.values()):
        raise InputError(f"{path} is broken: it should hold a step and a reason")
    if value["step"] != Path(path).parent.name:
        raise InputError(f"{path} is broken: it is of {printable(value['step'], 80)}")
    return NotRun(**value)


def read_all(folder):
    """The steps of a record that were not run, in order."""
    return [read(path) for path in sorted(Path(folder).glob(f"[!.]*/{FILE}"))]
