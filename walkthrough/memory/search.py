"""The largest batch that fits into a memory."""

from collections.abc import Callable

MOST = 2**20  # samples
GUESSES = 10  # by a line through the last two sizes; then the middle is taken


def largest_batch(needed_bytes: Callable[[int], int], budget: int, start: int, tolerance: float = 0) -> int:
    """The largest batch size that needs at most `budget` bytes, 0 where not even one sample fits; at most `MOST`.

    needed_bytes(batch size): grows with it, nearly linearly; asked for few sizes. start: the size to begin with.
    tolerance: the size returned fits, but one that is larger by this share of it may fit as well; fewer are asked for.
    """
    fits, too_large = 0, MOST + 1
    before, last = (0, 0), (0, 0)
    size, guesses = min(max(start, 1), MOST), 0
    while too_large - fits > (step := max(1, int(fits * tolerance))):
        before, last = last, (size, needed_bytes(size))
        if last[1] <= budget:
            fits = size
        else:
            too_large = size
        guesses += 1
        slope = (last[1] - before[1]) / (last[0] - before[0])
        halve = guesses > GUESSES or slope <= 0
        size = (fits + too_large) // 2 if halve else int(last[0] + (budget - last[1]) / slope)
        step = max(1, int(fits * tolerance))
        size = max(fits + step, min(size, too_large - step))
    return fits
