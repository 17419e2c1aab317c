"""A step that could not be run, and why: what stands in a record in the place of its runs.

A step that ends with exit code 2 has printed one line: why this machine, or its input, does not suit it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from walkthrough.results import privacy, result
from walkthrough.results.errors import InputError, printable

FILE = "not_run.json"


@dataclass(frozen=True)
class NotRun:
    """step: its name. reason: a line, without a full stop."""

    step: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step} was not run: {self.reason}"


def write(folder: str | Path, step: str, reason: str) -> None:
    """Write `not_run.json` into a step's folder, which is made; names of this machine's folders are left out."""
    with result.writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    not_run = NotRun(step, privacy.reason(reason))
    result.write_json(Path(folder) / FILE, asdict(not_run))


def read(path: str | Path) -> NotRun:
    """The `NotRun` in a file. Raises InputError that names it where it is broken."""
    value = result.read_json(path)
    if set(value) != {"step", "reason"} or not all(isinstance(text, str) and text for text in value.values()):
        raise InputError(f"{path} is broken: it should hold a step and a reason")
    if value["step"] != Path(path).parent.name:
        raise InputError(f"{path} is broken: it is of {printable(value['step'], 80)}")
    return NotRun(**value)


def read_all(folder: str | Path) -> list[NotRun]:
    """The steps of a record that were not run, in order."""
    return [read(path) for path in sorted(Path(folder).glob(f"[!.]*/{FILE}"))]
