"""Whether two programs differ: the ratio of their speeds and its 95 % interval. Nothing else in this project decides it.

Programs are measured in rounds, A B C … A B C …, so they are compared in pairs: in each round, the median window of one
over that of the other. What a machine does to a whole round (heat, neighbours) cancels in such a ratio. Over rounds:
the geometric mean of the ratios, and Student's t interval of their logarithms.

With one round only there are no pairs. Then a block bootstrap over the windows of both runs gives the interval; blocks,
since neighbouring windows are alike (Künsch 1989, "The jackknife and the bootstrap for general stationary
observations"). It holds how the windows vary within these two runs, and nothing of how a run varies from one to the next.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import InputError

CONFIDENCE = 0.95

Rounds = Mapping[int, Sequence[float]]  # {round: the windows of that round's run, samples/s}; a run by itself is round 0


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one program is as another, and the 95 % interval of that.

    rounds: the pairs of runs that it is from; 1 where it is from the windows of one run each.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        """For people: "1.39x (1.31-1.48)"; "~1.02x (0.97-1.08)" where it is not resolved."""
        return f"{'' if self.resolved else '~'}{self.ratio:.2f}x ({self.low:.2f}-{self.high:.2f})"

    @property
    def resolved(self) -> bool:
        """True where the interval leaves 1 out: the two programs differ."""
        return not self.low <= 1 <= self.high


SAME = Ratio(1.0, 1.0, 1.0, 1)  # a run over itself


def ratio(faster: Rounds, slower: Rounds) -> Ratio:
    """The `Ratio` of two programs' speeds, `faster` over `slower`: by pairs, where two rounds or more have both.

    Otherwise from all windows of each. Raises InputError where SciPy is not installed.
    """
    if faster is slower:
        return SAME
    both = [number for number in faster if number in slower]
    if len(both) > 1:
        return of_pairs([statistics.median(faster[number]) / statistics.median(slower[number]) for number in both])
    return of_windows(*([speed for windows in rounds.values() for speed in windows] for rounds in (faster, slower)))


def of_pairs(ratios: Sequence[float]) -> Ratio:
    """The `Ratio` of two ratios or more, one for each round: geometric mean, and t interval on the logarithms."""
    logarithms = [math.log(value) for value in ratios]
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return _interval(statistics.fmean(logarithms), error, len(logarithms) - 1, len(logarithms))


def of_windows(faster: Sequence[float], slower: Sequence[float]) -> Ratio:
    """The `Ratio` of the median windows of one run each, its interval by a block bootstrap over the windows."""
    error = math.hypot(*(_bootstrap_error(windows) for windows in (faster, slower)))
    freedom = max(min(len(faster), len(slower)) - 1, 1)
    return _interval(math.log(statistics.median(faster) / statistics.median(slower)), error, freedom, 1)


def _bootstrap_error(windows: Sequence[float]) -> float:
    """Standard error of the logarithm of the windows' median: over resamples of whole blocks of windows."""
    import numpy as np

    count = len(windows)
    length = max(1, round(count ** (1 / 3)))
    generator = np.random.default_rng(0)  # the same answer each time
    starts = generator.integers(0, count, (2000, math.ceil(count / length)))
    at = (starts[:, :, None] + np.arange(length)).reshape(len(starts), -1)[:, :count] % count
    return float(np.std(np.log(np.median(np.asarray(windows)[at], axis=1)), ddof=1)) * math.sqrt(
        count / max(count - 1, 1)
    )


def _interval(mean: float, error: float, freedom: int, rounds: int) -> Ratio:
    reach = error * _quantile(freedom)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), rounds)


def _quantile(freedom: int) -> float:
    """How many standard errors a t interval reaches to either side."""
    try:
        from scipy.special import stdtrit
    except ImportError as error:
        raise InputError("intervals need SciPy, which is not installed: pip install scipy") from error
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
