"""What one process tells the command that started it: a small JSON file, replaced whole."""

from __future__ import annotations

import json
import os
import socket
import sys


class Report:
    """The report of this process; `folder` is shared by all processes of a command.

    state: "python" (has started), "torch" (has imported torch), "stepping" (a training step has ended), "measuring"
    (being traced, or timed), "done", or "failed" (`reason` says why).
    """

    def __init__(self, folder: str) -> None:
        host, pid = socket.gethostname(), os.getpid()
        self.path = os.path.join(folder, f"{host}.{pid}.json")
        self.values: dict[str, object] = {"host": host, "pid": pid, "state": "python", "python": sys.version.split()[0]}

    def update(self, **values: object) -> None:
        """Add values and write the file. A report that cannot be written is left out."""
        self.values.update(values)
        beside = f"{self.path}.partial"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(self.values, file)
            os.replace(beside, self.path)
        except OSError:
            pass

    @property
    def state(self) -> object:
        return self.values["state"]
