"""How kernels' names are shown: shortened in the same way in every text and on every page."""

from common.errors import printable

_COMMON = ("at::native::", "(anonymous namespace)::")


def short_name(name: str, width: int) -> str:
    """A kernel's name on one line without common prefixes, its middle left out if it is longer than `width`."""
    line = printable(name).removeprefix("void ")
    for prefix in _COMMON:
        line = line.replace(prefix, "")
    keep = (width - 1) // 2
    return line if len(line) <= width else f"{line[: width - 1 - keep]}…{line[len(line) - keep :]}"
