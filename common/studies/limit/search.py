"""The search for the fastest program: greedy, one setting at a time. Starts without torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from common.record import Throughput
from common.studies.limit.record import Program

LARGEST_BATCH = 65536  # images, as for --batch-size

TimeProgram = Callable[[Program], Throughput | None]


def greedy(start: Program, settings: Mapping[str, object], time_program: TimeProgram) -> dict[Program, Throughput]:
    """The speeds of the programs that were tried, in the order in which they were.

    First each of `settings`, {field of a `Program`: another value}, which is kept where the median is higher. Then the
    batch size: doubled while the speed grows, and where that never helps, halved while it does. A growing speed is one
    whose median is above all windows of the fastest program before. This rule only chooses what to try next: whether
    two programs differ is decided in `ladder.statistics`, which needs SciPy.

    time_program: None for a program that cannot be timed (no memory, no time left); the search does not go on there.
    """
    speeds: dict[Program, Throughput] = {}

    def timed(program: Program) -> bool:
        speed = time_program(program)
        if speed is not None:
            speeds[program] = speed
        return speed is not None

    if not timed(start):
        return speeds
    best = start
    for name, value in settings.items():
        changed = replace(best, **{name: value})  # pyright: ignore[reportArgumentType]  # of the field's type
        if timed(changed) and speeds[changed].median > speeds[best].median:
            best = changed
    for resized in (lambda size: size * 2, lambda size: size // 2):
        while 1 <= (size := resized(best.batch_size)) <= LARGEST_BATCH:
            changed = replace(best, batch_size=size)
            if not timed(changed) or speeds[changed].median <= max(speeds[best].windows):
                break
            best = changed
        if best.batch_size != start.batch_size:
            break
    return speeds
