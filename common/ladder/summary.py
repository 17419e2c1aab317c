"""What a ladder's table amounts to, in words."""

from collections.abc import Iterable

from common.errors import printable
from common.ladder.compare import Ladder


def intervals(ladder: Ladder) -> str:
    """How to read the ladder's ratios, and what their intervals are from."""
    rounds = sorted({ratio.rounds for row in ladder.rows[1:] for ratio in (row.relative, row.gain) if ratio})
    if rounds[-1:] > [1]:
        count = "" if len(rounds) == 1 else f"{rounds[0]} to "
        source = f"over {count}{rounds[-1]} rounds, in each of which every step ran"
    else:
        source = "of one round, so it holds no run-to-run variation: --rounds N"
    return (
        f"1.39x (1.31-1.48): times as fast, and the 95 % interval ({source}). ~: the 95 % interval holds 1, so the two "
        "are not resolved; more rounds make it narrower."
    )


def summary(ladder: Ladder) -> str:
    """The fastest step, and which steps are faster or slower than the step before."""
    later = ladder.rows[1:]
    if not later:
        return f"Only {printable(ladder.baseline.step)} is here: there is nothing to compare it with."
    top = max(ladder.rows, key=lambda row: row.relative.ratio)
    if top is ladder.rows[0]:
        fastest = "No step is faster than the baseline"
    else:
        unresolved = "" if top.relative.resolved else ", not resolved"
        fastest = f"Top of the ladder: {printable(top.result.step)}, {top.relative} the baseline{unresolved}"
    gains = {row.result.step: row.gain for row in later if row.gain and row.gain.resolved}
    faster = _listed("faster", ((step, gain.ratio) for step, gain in gains.items() if gain.ratio > 1))
    slower = _listed("slower", ((step, gain.ratio) for step, gain in gains.items() if gain.ratio < 1))
    which = "; ".join(filter(None, (faster, slower)))
    return (
        f"{fastest}. Resolved against the step before: {len(gains) or 'none'} of {len(later)}"
        f"{f' ({which})' if which else ''}."
    )


def _listed(word: str, steps: Iterable[tuple[str, float]]) -> str:
    """ "faster: 02 1.21x, 04 1.30x"; "" for none."""
    names = ", ".join(f"{short_name(step)} {ratio:.2f}x" for step, ratio in steps)
    return f"{word}: {names}" if names else ""


def short_name(step: str) -> str:
    """A step's number, "02"; its name where it has none."""
    number = step.partition("_")[0]
    return number if number.isdecimal() else printable(step)
