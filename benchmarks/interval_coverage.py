"""How often an interval of `walkthrough.compare.statistics` holds the true ratio, and a true gain is resolved.

    python benchmarks/interval_coverage.py [--trials N] [--seed N] [--outliers SHARE]

Simulates two programs that are measured in turn, round by round, and prints a table (Markdown). In brackets:
the same of the rule that this project had before, the range from the slowest window of one over the fastest of the
other to the reverse, without a tenth of the windows at either end.

Coverage: 95 % is what a 95 % interval says of itself. The t interval over rounds speaks of the two programs; the
bootstrap over the windows of one round speaks of these two runs, offsets included, so one round has both columns.
Power: how often a program that is 2, 5 or 10 % faster comes out as faster. It depends on the gain over the noise: on a
machine with half this noise, a gain of 5 % is resolved about as often as one of 10 % here.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from walkthrough.compare.statistics import ratio

# Standard deviations of logarithms: 0.03 is 3 % of the speed.
WINDOW = 0.03  # windows of one run
RUN = 0.02  # offset of a whole run
DRIFT = 0.03  # what the machine changes by from one round to the next, for both programs
OUTLIER = 0.8  # share of the speed that an outlier has left

CORRELATIONS = (0.0, 0.3, 0.6)  # of neighbouring windows
WINDOWS = (5, 10)
ROUNDS = (1, 3, 5, 7, 10)
GAINS = (1.02, 1.05, 1.10)


def simulated(generator, trials, rounds, windows, correlation, outliers):
    """Speeds of two programs that are equally fast, [trial, program, round, window], and the offsets of their runs."""
    shape = (trials, 2, rounds, windows)
    noise = generator.standard_normal(shape)
    for at in range(1, windows):  # AR(1)
        noise[..., at] = correlation * noise[..., at - 1] + math.sqrt(1 - correlation**2) * noise[..., at]
    offsets = RUN * generator.standard_normal(shape[:-1])
    drift = DRIFT * np.cumsum(generator.standard_normal((trials, 1, rounds)), axis=2)
    losses = np.where(generator.random(shape) < outliers, math.log(OUTLIER), 0.0)
    return 1000 * np.exp(WINDOW * noise + (offsets + drift)[..., None] + losses), offsets


def t_or_bootstrap(first, second):
    """Interval of the ratio of two programs, by the rule of this project. Arrays: [round, window]."""
    answer = ratio(dict(enumerate(first.tolist())), dict(enumerate(second.tolist())))
    return answer.low, answer.high


def ranges(first, second):
    """The same by the rule that this project had before: what the windows allow."""
    ends = []
    for windows in (np.sort(first, axis=None), np.sort(second, axis=None)):
        left_out = windows.size // 10
        ends.append((windows[left_out], windows[-1 - left_out]))
    (slowest, fastest), (other_slowest, other_fastest) = ends
    return slowest / other_fastest, fastest / other_slowest


def coverage(intervals, offsets):
    """Percent of intervals that hold the programs' ratio, and that of the runs (None where there are several)."""
    low, high = intervals
    yield 100 * np.mean((low <= 1) & (high >= 1))
    runs = np.exp(offsets[:, 0, 0] - offsets[:, 1, 0])
    yield 100 * np.mean((low <= runs) & (high >= runs)) if offsets.shape[2] == 1 else None


def power(intervals):
    """Percent of intervals that resolve each gain, which multiplies one program's windows, and so both ends."""
    low, _ = intervals
    for gain in GAINS:
        yield 100 * np.mean(low * gain > 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000, help="simulations of each row (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (default: %(default)s)")
    parser.add_argument(
        "--outliers",
        type=float,
        default=0.05,
        help=f"share of windows at {OUTLIER} of the speed (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.trials < 1 or args.seed < 0 or not 0 <= args.outliers <= 1:
        parser.error("--trials is at least 1, --seed at least 0, --outliers a share from 0 to 1")
    generator = np.random.default_rng(args.seed)

    error = 1.96 * math.sqrt(0.95 * 0.05 / args.trials)
    print(f"{args.trials} trials per row, seed {args.seed}: 95 % is known to +- {100 * error:.1f}. In percent;")
    print("in brackets: by the earlier rule, the range of the windows.")
    print(f"Noise (standard deviations): windows {WINDOW:.0%}, runs {RUN:.0%}, drift {DRIFT:.0%} per round;")
    print(f"{args.outliers:.0%} of windows at {OUTLIER:.0%} of the speed.\n")
    header = ["rounds", "windows", "correlation", "holds the programs' ratio", "holds the runs' ratio"]
    header += [f"resolves +{gain - 1:.0%}" for gain in GAINS]
    print("|", " | ".join(header), "|")
    print("|", " | ".join("-" * (len(name) - 1) + ":" for name in header), "|")
    for rounds in ROUNDS:
        for windows in WINDOWS:
            for correlation in CORRELATIONS:
                speeds, offsets = simulated(generator, args.trials, rounds, windows, correlation, args.outliers)
                both = [np.array([rule(*pair) for pair in speeds]).T for rule in (t_or_bootstrap, ranges)]
                cells = [str(rounds), str(windows), str(correlation)]
                for new, old in zip(*(coverage(intervals, offsets) for intervals in both), strict=True):
                    cells.append("-" if new is None else f"{new:.1f} ({old:.1f})")
                for new, old in zip(*(power(intervals) for intervals in both), strict=True):
                    cells.append(f"{new:.0f} ({old:.0f})")
                print("|", " | ".join(cell.rjust(len(name)) for cell, name in zip(cells, header, strict=True)), "|")


if __name__ == "__main__":
    main()
