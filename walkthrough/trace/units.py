"""Numbers with their units, as texts."""

import re

_MICROSECONDS = re.compile(r"(?<=\d) us\b")


def time_text(us: float) -> str:
    """µs in a suitable unit."""
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.0f} us"


def fine_time_text(us: float) -> str:
    """The same, with a tenth of a microsecond."""
    return f"{us:.1f} us" if abs(us) < 1e3 else time_text(us)


def counted(count: float, one: str, several: str) -> str:
    """A rounded count with its noun, and what follows that and agrees with it: "1 copy is", "3 copies are"."""
    return f"{count:.0f} {one if f'{count:.0f}' == '1' else several}"


def micro_sign(text: str) -> str:
    """A text with "µs" for the "us" that terminals are given."""
    return _MICROSECONDS.sub(" µs", text)
