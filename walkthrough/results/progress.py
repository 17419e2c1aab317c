"""The progress of a running step: a line for a person, or a line of JSON for the program that started it."""

import json
import os
from typing import Any

VARIABLE = "WALKTHROUGH_PROGRESS"  # set to "json" by a program that follows the step


def is_followed() -> bool:
    """Whether a program follows this step through a pipe."""
    return os.environ.get(VARIABLE) == "json"


def report(phase: str, done: int, of: int, samples_per_second: float | None = None, unit: str = "images") -> None:
    """Report that `done` of `of` equal parts of the run are over.

    phase: names the part that ended; where `done` is 0, the one that begins. unit: what samples are.
    """
    if is_followed():
        event = {"phase": phase, "done": done, "of": of, "samples_per_second": samples_per_second}
        print(json.dumps({"progress": event}), flush=True)
    else:
        speed = "" if samples_per_second is None else f"{samples_per_second:10.1f} {unit}/s"
        print(f"  {phase:<14}{speed}".rstrip(), flush=True)


def parse(line: str) -> dict[str, Any] | None:
    """The event of a JSON line that `report` printed; None for any other line."""
    if not line.startswith('{"progress": '):
        return None
    try:
        return json.loads(line)["progress"]
    except (ValueError, KeyError):
        return None


def say(text: str) -> None:
    """Print `text` for a person; a program that follows the step shows such things in its own way."""
    if not is_followed():
        print(text, flush=True)
