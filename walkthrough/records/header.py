"""`record.json`: what all runs of a record share."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from walkthrough.results import result
from walkthrough.results.environment import Environment
from walkthrough.results.result import Meta

FILE = "record.json"
Size = Annotated[int, Meta(ge=1, le=2**32)]
Count = Annotated[int, Meta(ge=0, le=2**32)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of all runs.

    instructions: of a CPU for bf16, "AVX512-BF16": CPUs of one name differ in them. None without, on a GPU, and in
    older records.
    """

    device: str
    instructions: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,40}$")] | None = None
    data: Literal["cifar10", "stand-in"]
    model: str
    image_size: Size
    batch_size: Size
    workers: Count
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    seed: Count
    quick: bool


@dataclass(frozen=True, kw_only=True)
class Header:
    """environment: the fields of an `Environment` but for git. code: see `environment.code_hash`.

    files: {name: its SHA-256} of all that was recorded; None in a record that is not whole yet, and in older ones.
    """

    schema: int
    settings: Settings
    environment: dict[str, str | int | None]
    code: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    files: dict[str, Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]] | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `record.json` holds."""
        value = asdict(self)
        if self.settings.instructions is None:
            del value["settings"]["instructions"]
        if self.files is None:
            del value["files"]
        return value

    def differences(self, other: "Header") -> list[str]:
        """What `other` has in place of this header's settings, environment and code, a text each."""
        pairs = [(asdict(self.settings), asdict(other.settings)), (self.environment, other.environment)]
        differences = [
            f"{name} was {old.get(name)!r} and is {value!r}"
            for old, new in pairs
            for name, value in new.items()
            if old.get(name) != value
        ]
        changed = "the code of steps/, common/ or walkthrough/ has changed"
        return differences + [changed] * (self.code != other.code)


def shared(environment: Environment) -> dict[str, str | int | None]:
    """The environment without git: a commit of docs between two runs changes nothing, and `code` is exact."""
    values = asdict(environment)
    del values["git"]
    return values


def read_header(path: str | Path) -> Header:
    """Read a `record.json`. Raises InputError that names the file and what is wrong with it."""
    return result.read_as(Header, path, result.SCHEMA)
