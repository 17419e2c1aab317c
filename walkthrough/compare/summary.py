"""What a ladder's table amounts to, in words."""

from collections import Counter
from collections.abc import Iterable

from walkthrough.compare.rounds import Ladder, Row, rounds_compared
from walkthrough.compare.statistics import ratio
from walkthrough.results.errors import printable

NO_EFFECT = (
    "Where a row says what the step needs, its change has no effect on this device: it ran once, for its trace, and "
    "the next step is compared with the last one that has an effect."
)


def intervals(ladder: Ladder) -> str:
    """How to read the ladder's ratios, and what their intervals are from."""
    (fewest, most), all_act = rounds_compared(ladder), len(ladder.acting) == len(ladder.rows)
    if most == 1:
        source = "of one round, so it has no run-to-run variation: `tour --rounds N`, `record --runs N`"
    elif fewest == most:
        source = f"over {most} rounds, in each of which {'every step' if all_act else 'both steps'} ran"
    elif fewest > 1:
        source = f"over the {fewest} to {most} rounds in which both steps ran"
    else:
        source = (
            f"over the up to {most} rounds in which both steps ran; where there are none, as for a step that was run "
            "again by itself, by the windows of two runs, so it has no run-to-run variation"
        )
    text = (
        f"1.39x (1.31-1.48): times as fast, and the 95 % interval ({source}). ~: no measurable "
        "difference, the interval includes 1; more rounds make it narrower."
    )
    return text if all_act else f"{text} {NO_EFFECT}"


def notes_of(ladder: Ladder) -> list[str]:
    """What the runs noted, each note once.

    Without what steps without effect noted on it, where several need the same: their rows say what they need.
    """
    needs = Counter(row.needs for row in ladder.rows)
    rows = [row for row in ladder.rows if row.acts or needs[row.needs] == 1]
    return list(dict.fromkeys(note for row in rows for note in row.result.notes))


def summary(ladder: Ladder) -> str:
    """Where the ladder's top is reached, and which steps are faster or slower than the step before."""
    if len(ladder.rows) == 1:
        return f"Only {printable(ladder.baseline.step)} is here: there is nothing to compare it with."
    later, idle = ladder.acting[1:], [row.result.step for row in ladder.rows[1:] if not row.acts]
    gains = {row.result.step: row.gain for row in later if row.gain and row.gain.resolved}
    faster = _listed("faster", ((step, gain.ratio) for step, gain in gains.items() if gain.ratio > 1))
    slower = _listed("slower", ((step, gain.ratio) for step, gain in gains.items() if gain.ratio < 1))
    which = "; ".join(filter(None, (faster, slower)))
    text = (
        f"{_top(ladder)}. Measurably different from the step before: {len(gains) or 'none'} of {len(later)}"
        f"{f' ({which})' if which else ''}."
    )
    if not idle:
        return text
    steps = f"{len(idle)} steps have" if len(idle) > 1 else "1 step has"
    return f"{text} {steps} no effect on this device ({', '.join(map(short_name, idle))})."


def _top(ladder: Ladder) -> str:
    """The first step that is as fast, as far as can be measured, as the one with the largest ratio; and that one."""
    largest = max(ladder.acting, key=lambda row: row.relative.ratio)
    if largest is ladder.rows[0]:
        return "No step is faster than the baseline"

    def as_fast(row: Row) -> bool:
        return row.relative.resolved and row.relative.ratio > 1 and not ratio(largest.rounds, row.rounds).resolved

    top = next(filter(as_fast, ladder.acting), largest)
    unresolved = "" if top.relative.resolved else ", no measurable difference"
    text = f"Top of the ladder: {printable(top.result.step)}, {top.relative} the baseline{unresolved}"
    if top is not largest:
        over = ratio(largest.rounds, top.rounds)
        text += f"; {printable(largest.result.step)}, with the largest ratio, is {over} that, no measurable difference"
    return text


def _listed(word: str, steps: Iterable[tuple[str, float]]) -> str:
    """ "faster: 02 1.21x, 04 1.30x"; "" for none."""
    names = ", ".join(f"{short_name(step)} {ratio:.2f}x" for step, ratio in steps)
    return f"{word}: {names}" if names else ""


def short_name(step: str) -> str:
    """A step's number, "02"; its name where it has none."""
    number = step.partition("_")[0]
    return number if number.isdecimal() else printable(step)
