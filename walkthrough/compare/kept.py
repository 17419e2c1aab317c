"""What a study's processes have measured, kept until its file is written: after a cut, the same command goes on."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from walkthrough.results import progress
from walkthrough.results import result as record
from walkthrough.results.environment import code_hash, current_environment
from walkthrough.results.errors import InputError

T = TypeVar("T")


@dataclass
class Kept:
    """Measurements by name, dataclasses, each written to `path` as soon as it is there; without a path none is.

    setup: what all of them share. values: of each, as JSON. lock: held while one is
    added and written, as several may be measured at a time.
    """

    path: Path | None = None
    setup: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def of(
        cls, name: str, settings: Mapping[str, Any], logdir: Path, quick: bool, code: str = "studies/*.py"
    ) -> "Kept":
        """Those of the study of that name in `logdir`: what an earlier call left, if it measured the same.

        With the same settings, versions and code, that is. Says how many there are. code: a glob pattern of the files
        that measure, relative to the project. quick: see `path_of`.
        """
        import torch

        environment = asdict(current_environment(torch.__version__, torch.version.cuda)) | {"git": None}
        shared = {"settings": dict(settings), "environment": environment, "code": code_hash("studies/*.py", code)}
        path = path_of(logdir, name, quick)
        kept = cls(path, json.loads(json.dumps(shared, default=str)))
        try:
            left = record.read_json(path)
            kept.values = dict(left["values"]) if left["setup"] == kept.setup else {}
        except (InputError, KeyError, TypeError, ValueError):  # none, or not ours: then all is measured anew
            pass
        if kept.values:
            progress.say(f"  kept of an earlier call that was cut off: {len(kept.values)} measurement(s)")
        return kept

    def measurement(self, name: str, kind: type[T], measure: Callable[[], T | str]) -> T | str:
        """The measurement of that name, a `kind`, from `measure` unless it is there; a text, which says why not."""
        if name in self.values:
            return record.typed(kind, self.values[name], self.path or name)
        result = measure()
        if not isinstance(result, str):
            with self.lock:
                self.values[name] = asdict(result)  # pyright: ignore[reportArgumentType]  # a dataclass
                if self.path:
                    record.write_json(self.path, {"setup": self.setup, "values": self.values})
        return result


def path_of(logdir: Path, name: str, quick: bool) -> Path:
    """The file of what is kept of the study of that name; `study.report` removes it with the result written.

    A smoke run has its own, so that it does not lose the hours of a whole study that was cut off.
    """
    return logdir / f".{name}{'.quick' if quick else ''}.json"
