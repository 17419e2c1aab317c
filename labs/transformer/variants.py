"""What the study compares: every trick alone on the baseline, and the numbered programs, trick after trick."""

from pathlib import Path

from labs.transformer.tricks import TRICKS, alone, cumulative

BASELINE = "baseline"


def alone_name(trick: str) -> str:
    """The variant with a trick alone, and with what it needs."""
    return f"alone {trick}"


def cumulative_name(trick: str) -> str:
    """The variant that is the numbered program of a trick."""
    return f"up to {trick}"


def without_name(trick: str) -> str:
    """The variant that a trick alone is compared with: the baseline, or what it needs without it."""
    without = alone(trick)[1]
    return alone_name(next(iter(without))) if without else BASELINE


HALF_FUSED = "mixed_precision with sdpa"
PREDICTED: dict[str, frozenset[str]] = {
    HALF_FUSED: frozenset({"mixed_precision", "sdpa"})
}  # of whose speed is not asked
VARIANTS: dict[str, frozenset[str]] = {  # {name: tricks}, each pair that is compared near each other in time
    BASELINE: frozenset(),
    **{alone_name(trick): alone(trick)[0] for trick in TRICKS},
    **{cumulative_name(trick): cumulative(trick) for trick in TRICKS},
}
PROGRAMS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[0-9][0-9]_*.py")))  # baseline, then tricks
