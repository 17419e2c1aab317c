"""Whether two programs differ: the ratio of their speeds and its 95 % interval.

Nothing else in this project decides it. Programs are measured in rounds, A B C … A B C …, so they are compared in
pairs: in each round, the median window of one over that of the other. What a machine does to a whole round (heat,
neighbours) cancels in such a ratio. Over rounds: the geometric mean of the ratios, and Student's t interval of their
logarithms.

With one round only there are no pairs. Then a block bootstrap over the windows of both runs gives the interval; blocks,
since neighbouring windows are alike (Künsch 1989, "The jackknife and the bootstrap for general stationary
observations"). It holds how the windows vary within these two runs, and nothing of how a run varies from one to the
next: only rounds show that.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
EARLY = 0.01  # probability that any of the looks before the last round finds a difference where there is none
RESAMPLES = 1000
UNLIMITED = sys.float_info.max  # an upper end that nothing limits; JSON has no infinity
ROUNDING = 1e-9  # speeds that differ by less are equal but for floating point

Rounds = Mapping[
    int, Sequence[float]
]  # {round: the windows of that round's run, samples/s}; a run by itself is round 0


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
        """For people: "1.39x (1.31-1.48)"; "~1.02x (0.97-1.08)" without a measurable difference.

        With one, numbers that two decimals round to 1 have more: "1.25x (1.003-1.56)".
        """
        ratio = self._text(self.ratio) if self.ratio < 1e4 else f"{self.ratio:.0e}"
        low, high = (self._text(end) if end < 1000 else "1000+" for end in (self.low, self.high))
        return f"{'' if self.resolved else '~'}{ratio}x ({low}-{high})"

    def _text(self, value: float) -> str:
        decimals = next((count for count in range(2, 9) if not self.resolved or round(value, count) != 1), 9)
        return f"{value:.{decimals}f}"

    @property
    def resolved(self) -> bool:
        """True where the interval excludes 1: the two programs differ."""
        return self.low > 1 + ROUNDING or self.high < 1 - ROUNDING


SAME = Ratio(1.0, 1.0, 1.0, 1)  # a run over itself


@dataclass(frozen=True)
class Mean:
    """A mean of independent values, such as accuracies over seeds or their paired differences, and its 95 % interval.

    Student's t; of one value the interval is not known: low and high are None.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    def __str__(self) -> str:
        """For people: "0.31 (0.25 to 0.37)"."""
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean(values: Sequence[float]) -> Mean:
    """The `Mean` of one value or more."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Mean(middle, None, None, len(values))
    reach = statistics.stdev(values) / math.sqrt(len(values)) * t_quantile(len(values) - 1)
    return Mean(middle, middle - reach, middle + reach, len(values))


def ratio(faster: Rounds, slower: Rounds) -> Ratio:
    """The `Ratio` of two programs' speeds, `faster` over `slower`: by pairs, where two rounds or more have both.

    Otherwise from all windows of each.
    """
    if faster is slower:
        return SAME
    both = [number for number in faster if number in slower]
    if len(both) > 1:
        return of_pairs([statistics.median(faster[number]) / statistics.median(slower[number]) for number in both])
    return of_windows(*([speed for windows in rounds.values() for speed in windows] for rounds in (faster, slower)))


def of_pairs(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """The `Ratio` of two ratios or more, one for each round: geometric mean, and t interval on the logarithms.

    Of two it is very wide, since one difference says little about how much pairs differ.
    """
    logarithms = [math.log(value) for value in ratios]
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return _interval(statistics.fmean(logarithms), error, len(logarithms) - 1, len(logarithms), confidence)


def decided(ratios: Sequence[float], rounds: int) -> bool | None:
    """Whether the ratios of the rounds so far settle what all `rounds` of them would show; None: go on.

    True: that the programs differ. An interval that is looked at after each round leaves 1 out more often by chance, so
    that of a look before the last one is wider: together they are wrong with a probability of `EARLY` at most. False:
    that there is no measurable difference. The mean of all rounds, as predicted at 95 %, would be too near to 1 for
    their interval, as wide as the spread so far makes it. Never of fewer than 3 rounds.

    In 100,000 simulated trials, where the speeds of runs have a standard deviation of 5 %, equally fast programs are
    found to differ in 5.5 % with 5 rounds asked for, in 5.4 % with 10 and in 4.9 % with 50 (without early ends in 4.9 %
    to 5.0 %; with a 95 % interval at each look in 10 %, 17 % and 31 %). That takes 4.4, 8.0 and 37 rounds on average.
    A ratio of 1.2 is found in 98.6 % with 5 rounds asked for, as without early ends, after 4.6; in all with 50, after
    8.0. The 95 % interval that is shown holds the ratio in 92 % to 95 %.
    """
    count = len(ratios)
    if not 3 <= count < rounds:
        return None
    if of_pairs(ratios, 1 - EARLY / (rounds - 3)).resolved:
        return True
    middle, spread, reach = _at_the_end(ratios, rounds)
    further = spread * math.sqrt(1 / count - 1 / rounds) * t_quantile(count - 1)
    return False if middle + further <= reach else None


def rounds_needed(ratios: Sequence[float], rounds: int) -> float:
    """About how many rounds, of `rounds` at least, it takes until the interval leaves 1 out.

    If the ratio and its spread stay those of `ratios`, which are two or more. Infinite for a ratio of 1.
    """
    middle, _, reach = _at_the_end(ratios, rounds)
    return max(rounds, math.ceil(rounds * (reach / middle) ** 2)) if middle else math.inf


def _at_the_end(ratios: Sequence[float], rounds: int) -> tuple[float, float, float]:
    """Distance of the mean logarithm from 0, its spread, and how far the interval of `rounds` will reach from it."""
    logarithms = [math.log(value) for value in ratios]
    spread = statistics.stdev(logarithms)
    return abs(statistics.fmean(logarithms)), spread, spread / math.sqrt(rounds) * t_quantile(rounds - 1)


def of_windows(faster: Sequence[float], slower: Sequence[float]) -> Ratio:
    """The `Ratio` of the median windows of one run each, its interval by a block bootstrap over the windows.

    It reaches as far as a t interval with as many degrees of freedom as there are blocks, less one for each run. A run
    of one window does not show how it varies: the interval is then 0 to `UNLIMITED`.

    What `benchmarks/interval_coverage.py` shows, for 5 windows (for 10): the interval holds the ratio of the two runs
    in 99.7 % (98.1 %) of trials where windows are independent, in 98.9 % (97.0 %) where neighbours have a correlation
    of 0.3, in 94.9 % (92.2 %) at 0.6, and there in 91.3 % (91.0 %) without outliers. So it is rather too wide, but
    somewhat too narrow where windows stay alike for long. It holds the ratio of the programs less often, since it
    cannot know how runs vary.
    """
    middle = math.log(statistics.median(faster)) - math.log(statistics.median(slower))
    if min(len(faster), len(slower)) < 2:
        return Ratio(_exp(middle), 0.0, UNLIMITED, 1)
    error = math.hypot(_bootstrap_error(faster), _bootstrap_error(slower))
    freedom = sum(len(windows) / _block_length(len(windows)) - 1 for windows in (faster, slower))
    return _interval(middle, error, freedom, 1)


def _block_length(count: int) -> int:
    """Windows in a block, of `count` >= 2 windows: about as many as there are blocks, and two blocks at least."""
    return min(math.ceil(math.sqrt(count)), count // 2)


def _bootstrap_error(windows: Sequence[float]) -> float:
    """Standard error of the logarithm of the windows' median: over resamples of whole blocks, the same ones each time.

    A block that reaches the last window goes on with the first one. Resamples vary about these windows' own median, so
    too little; the last factor is the usual correction of that.
    """
    import numpy as np

    count, length = len(windows), _block_length(len(windows))
    starts = np.random.default_rng(0).integers(0, count, (RESAMPLES, math.ceil(count / length), 1))
    at = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    medians = np.median(np.asarray(windows, dtype=float)[at], axis=1)
    error = np.std(np.log(medians / statistics.median(windows)), ddof=1)
    return float(error) * math.sqrt(count / (count - 1))


def _interval(middle: float, error: float, freedom: float, rounds: int, confidence: float = CONFIDENCE) -> Ratio:
    reach = error * t_quantile(freedom, confidence)
    return Ratio(_exp(middle), _exp(middle - reach), _exp(middle + reach), rounds)


def _exp(logarithm: float) -> float:
    try:
        return math.exp(logarithm)
    except OverflowError:
        return UNLIMITED


@cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """How many standard errors a t interval reaches to either side: P(|T| > t) = 1 - `confidence`.

    freedom: degrees of freedom, 1 at least, whole or not. P is a regularised incomplete beta function, computed by its
    continued fraction (DLMF 8.17.22). P is convex, so Newton's method only grows from the normal distribution's
    quantile, which is lower, until rounding ends it.
    """
    half = freedom / 2
    logarithm = math.lgamma(half + 0.5) - math.lgamma(half)  # less exact than gamma, which overflows
    gammas = math.gamma(half + 0.5) / math.gamma(half) if half < 170 else math.exp(logarithm)
    t, further = 0.0, statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    while further > t:
        t = further
        x, fraction = freedom / (freedom + t * t), 1.0
        for m in range(200, 0, -1):
            odd = -(half + m) * (half + 0.5 + m) * x / ((half + 2 * m) * (half + 2 * m + 1))
            even = m * (0.5 - m) * x / ((half + 2 * m - 1) * (half + 2 * m))
            fraction = 1 + even / (1 + odd / fraction)
        density = gammas / math.sqrt(math.pi * freedom) * math.exp(-(half + 0.5) * math.log1p(t * t / freedom))
        outside = density * t / half / (1 - (half + 0.5) * x / (half + 1) / fraction)
        further = t + (outside - (1 - confidence)) / (2 * density)
    return t
