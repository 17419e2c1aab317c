"""Read, explain, compare and show PyTorch training traces; see `walkthrough --help`, and `read` for Python."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from walkthrough.explain.explanation import Explanation


def read(path: "str | Path", max_size: int | None = None) -> "Explanation":
    """A torch.profiler trace, or the newest one of a folder, explained: see `Explanation`.

    Raises InputError where it cannot be read, or holds more than max_size bytes of JSON (default: 4 GiB).
    """
    from walkthrough.explain.explanation import Explanation

    return Explanation(path, max_size)
