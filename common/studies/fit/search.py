"""The largest batch that fits into a memory."""

from collections.abc import Callable

MOST = 2**20  # samples
GUESSES = 8  # by a line through the two sizes next to the budget; then the middle is taken


def largest_batch(peak_bytes: Callable[[int], int], budget: int, start: int) -> int:
    """The largest batch size whose peak is at most `budget` bytes, 0 where not even one sample fits; at most `MOST`.

    peak_bytes(batch size): grows with it, nearly linearly; asked for few sizes. start: the size to begin with.
    """
    fits, too_large = (0, None), None
    size, guesses = min(start, MOST), 0
    while True:
        peak = peak_bytes(size)
        if peak <= budget:
            fits = (size, peak)
        else:
            too_large = (size, peak)
        if fits[0] == MOST or (too_large is not None and too_large[0] - fits[0] <= 1):
            return fits[0]
        if too_large is None:
            size = min(MOST, 2 * size)
            continue
        guesses += 1
        low, high = fits[0] + 1, too_large[0] - 1
        if fits[0] and guesses <= GUESSES:
            per_sample = (too_large[1] - fits[1]) / (too_large[0] - fits[0])
            guess = fits[0] + int((budget - fits[1]) / per_sample)
            size = min(max(guess, low), high)
        else:
            size = (low + high) // 2
