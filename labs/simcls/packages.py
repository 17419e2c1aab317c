"""Means over test documents whose intervals are over packages; an article of CNN/DailyMail is one by itself.

Documents of one package have the same authors and subject, so they say less than as many independent ones. Packages
are the independent units: a ratio of sums over packages is linearised (Taylor; Cochran, "Sampling Techniques", 1977,
6.4: one value for each package, whose mean is the ratio), and the interval is Student's t of these values. Seeds are
averaged first: they share their documents, so another seed is no further package.
"""

from collections.abc import Callable, Sequence
from typing import Any

from walkthrough.compare.statistics import Mean, mean

Run = dict[str, Any]  # `training.Trained`, as JSON
Sums = dict[str, Sequence[float]]  # {method: sums over a package's documents, of each kind of ROUGE}
Value = Callable[[Sums, int], float]  # of a package's sums and its number of documents


def documents(sums: Sums, count: int) -> float:
    """A `Value`, to divide by: a mean per document."""
    return float(count)


def percent(method: str, kind: int | None = None) -> Value:
    """A `Value`: ROUGE of a method in percent, of one kind or the mean of the three."""
    return lambda sums, count: 100 * (sum(sums[method]) / len(sums[method]) if kind is None else sums[method][kind])


def difference(method: str, other: str) -> Value:
    """A `Value`: how much more ROUGE a method has than another on the same documents, in points."""
    more, less = percent(method), percent(other)
    return lambda sums, count: more(sums, count) - less(sums, count)


def totals(runs: Sequence[Run], value: Value) -> dict[str, float]:
    """{package: the value of it, the mean over the runs that tested on it}."""
    of_runs: dict[str, list[float]] = {}
    for run in runs:
        for package, sums in run["test"].items():
            of_runs.setdefault(package, []).append(value(sums, run["counts"][package]))
    return {package: sum(values) / len(values) for package, values in of_runs.items()}


def over_packages(runs: Sequence[Run], value: Value, per: Value = documents) -> Mean:
    """The sum of `value` over all packages by that of `per`, with its interval."""
    above, below = totals(runs, value), totals(runs, per)
    ratio, size = sum(above.values()) / sum(below.values()), sum(below.values()) / len(below)
    return mean([ratio + (above[package] - ratio * below[package]) / size for package in above])


def over_seeds(runs: Sequence[Run], value: Value) -> Mean:
    """The mean per document, with an interval over seeds: how training varies, on these packages alone."""
    seeds = dict.fromkeys(run["seed"] for run in runs)
    return mean([over_packages([run for run in runs if run["seed"] == seed], value).mean for seed in seeds])
