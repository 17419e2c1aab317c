"""The study of re-ranking: does it choose better summaries, what do 16 candidates cost, and what makes them cheaper?

Trains on folds of the packages and tests on the one that is left out; runs the numbered programs, interleaved;
measures the memory of a step by the number of candidates. Writes study.json, prints tables. Of a data set with splits
of its own there is one fold. ROUGE is in percent, as papers print it.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.loaders import Batch
from common.options import StepOptions
from common.program import captured, peak_bytes, timed, words_of
from labs.shared import study as shared
from labs.simcls.data import SOME, check_extras
from labs.simcls.documents import FOLDS, Corpus, corpus, kept_rouge
from labs.simcls.model import DEFAULTS, size_of
from labs.simcls.train import METHODS, Trained, add_candidates, settings_for, train
from walkthrough.compare.statistics import Mean, mean
from walkthrough.compare.study import LIMIT_SECONDS, Claim, NotMeasured, Row, claim, interval
from walkthrough.results.capture import Program
from walkthrough.results.errors import InputError

import torch

PROGRAMS = ("00_baseline", "01_workers", "02_half_precision", "03_checkpointing", "04_ordered_once")
PLAIN, CHECKPOINTED, ORDERED_ONCE = PROGRAMS[2:]
HERE = Path(__file__).parent
CANDIDATES = {True: (1, 4, 16), False: (1, 2, 4, 8, 16)}  # by --quick
CHOSEN_ON = 1  # the fold whose packages the encoder was chosen on: they are never tested
TESTED = {True: (0, 2), False: tuple(fold for fold in range(FOLDS) if fold != CHOSEN_ON)}
SEEDS, ROUNDS = {True: 1, False: 3}, {True: 2, False: 5}
DAYS_SECONDS = 5 * 24 * 3600  # of one measurement at most, with an encoder that takes hours to train
ANY_TOKENS = 10, 100  # ids that every tokenizer has, none of which fills sequences up
KINDS = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
RULES = {  # that need no model: what is compared with the re-ranker, in words
    "random": "a random candidate",
    "first": "the first candidate",
    "nearest length": "the candidate of the usual length",
}
POINTS = "points of ROUGE more"
NEAR = 0.1  # a share: memory that is as near as that to what its tokens say grows with them

# Liu and Liu, "SimCLS", ACL 2021, table 1: CNN/DailyMail, 16 candidates sampled from BART each, by our names for them.
PUBLISHED = {
    "worst": (33.17, 11.67, 30.77),  # "Min"
    "random": (43.98, 20.06, 40.94),
    "first": (44.39, 21.21, 41.28),  # "Origin": what BART itself ranks first
    "re-ranked": (46.67, 22.15, 43.54),
    "oracle": (54.36, 28.73, 50.77),  # "Max"
}

Run = Mapping[str, Any]  # `Trained`, as JSON
Sums = Mapping[str, Sequence[float]]  # {method: sums over a package's documents, of each kind of ROUGE}
Value = Callable[[Sums, int], float]  # of a package's sums and its number of documents


def takes_hours(model: str) -> bool:
    """Whether training this encoder is more than minutes."""
    return model not in ("small", "medium")


@shared.measurement
def trained(options: StepOptions, fold: int, seed: int) -> Trained:
    """Train and test on one fold; "small" in place of "medium", see `model.SIZES`. seed: added to that of the options.

    Where that takes hours, a checkpoint is kept until it is done, so that after a kill the study goes on from there.
    """
    model = options.model if takes_hours(options.model) else "small"
    options = replace(options, model=model, seed=options.seed + seed)
    texts, device = corpus(options.data, SOME), torch.device(options.device)
    keep = options.logdir / f"fold-{fold}-seed-{seed}" if takes_hours(model) else None
    workers = options.workers if keep else 0
    of_fold = train(texts, kept_rouge(options.data, texts), settings_for(options, texts, fold), device, workers, keep)
    if keep:
        shutil.rmtree(keep)
    return of_fold


@shared.measurement
def speed(options: StepOptions, name: str, run: int) -> dict[str, Any]:
    """A numbered program with its loader, then on a batch of full length. run: its number: rounds are interleaved."""
    one = captured(HERE / f"{name}.py", words_of(options, options.workers))
    windows = timed(one, None, options.quick).samples_per_second.windows
    used = needed_bytes(one, full_batch(options, max(CANDIDATES[options.quick])))
    return {"windows": windows, "bytes": used, "precision": one.dtype}


@shared.measurement
def memory(options: StepOptions, candidates: int) -> Row:
    """What a step needs with that many candidates per document, beyond weights and moments: a row of the table."""
    batch = full_batch(options, candidates)
    sizes, step_ms = [], []
    for name in (PLAIN, CHECKPOINTED):
        one = captured(HERE / f"{name}.py", words_of(options))
        step_ms.append(timed(one, batch, options.quick).step_ms.median)
        sizes.append(needed_bytes(one, batch) / 1e6)
    return {
        "candidates": candidates,
        "sequences per step": options.batch_size * (candidates + 2),
        "tokens per step": sum(part.numel() for part in batch),
        "MB": sizes[0],
        "MB, checkpointed": sizes[1],
        "of it": sizes[1] / sizes[0],
        "step ms": step_ms[0],
        "step ms, checkpointed": step_ms[1],
    }


def full_batch(options: StepOptions, candidates: int) -> Batch:
    """A batch of sequences of full length, so that nothing depends on which documents it holds."""
    text, summary = size_of(options.model).lengths
    shapes = (text,), (summary,), (candidates, summary)
    return tuple(torch.randint(*ANY_TOKENS, (options.batch_size, *shape), device=options.device) for shape in shapes)


def needed_bytes(one: Program, batch: Batch) -> int:
    """The most bytes that a program's step allocates beyond weights, moments and the gradients of the step before."""
    peak = peak_bytes(one, batch)
    return peak if one.args.device == "cpu" else peak - torch.cuda.memory_allocated(one.args.device)


# Means over test documents whose intervals are over packages; an article of CNN/DailyMail is one by itself.
#
# Documents of one package have the same authors and subject, so they say less than as many independent ones. Packages
# are the independent units: a ratio of sums over packages is linearised (Taylor; Cochran, "Sampling Techniques", 1977,
# 6.4: one value for each package, whose mean is the ratio), and the interval is Student's t of these values. Seeds are
# averaged first: they share their documents, so another seed is no further package.


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


def ranking_rows(runs: Sequence[Run]) -> list[Row]:
    """ROUGE by method: the mean over documents, its interval over packages, how far it comes from random to oracle."""
    share = difference("oracle", "random")
    return [
        {
            "candidate chosen": method,
            **{name: over_packages(runs, percent(method, number)) for number, name in enumerate(KINDS)},
            "mean of the three": over_packages(runs, percent(method)),
            "of the way from random to oracle": over_packages(runs, difference(method, "random"), share),
            "published, CNN/DailyMail": " / ".join(f"{value:.2f}" for value in PUBLISHED.get(method, ())) or None,
        }
        for method in METHODS
    ]


def paired_rows(runs: Sequence[Run], over: str) -> list[Row]:
    """The re-ranker against each rule on the same documents: over packages, or articles, and over seeds alone."""
    return [
        {
            "against": method,
            f"{POINTS}, over {over}": over_packages(runs, difference("re-ranked", method)),
            "the same, over seeds": over_seeds(runs, difference("re-ranked", method)),
            "times its ROUGE": over_packages(runs, percent("re-ranked"), percent(method)),
        }
        for method in RULES
    ]


def program_rows(rounds: Mapping[str, Mapping[int, Run]]) -> list[Row]:
    """The numbered programs: speed by all rounds, over the baseline and over the program before, and memory."""
    windows = {name: {at: run["windows"] for at, run in rounds.get(name, {}).items()} for name in PROGRAMS}
    rows = shared.ladder_rows(windows, "documents/s")
    for row in rows:
        of = rounds[row["program"]]
        row["peak MB"] = median(run["bytes"] for run in of.values()) / 1e6
        row["precision"] = next(iter(of.values()))["precision"]
    return rows


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was published or expected, and what these tables, as stored, say of it."""
    against = {row["against"]: row for row in tables["against_the_rules"]}
    header = next(name for name in against["first"] if name.startswith(POINTS))
    over, made = header.rpartition(" ")[2], []
    for method in ("first", "nearest length", "random"):
        text = f"Re-ranking chooses better summaries than {RULES[method]} ({POINTS}, interval over {over})"
        made.append(claim(f"beats_{method.replace(' ', '_')}", text, interval(against[method][header]), above=0))
    for method in ("first", "random"):
        text = f"The same on these {over}, whatever the seed: than {RULES[method]} (interval over seeds)"
        points = interval(against[method]["the same, over seeds"])
        more = None if points and points.low is not None else "several seeds: the study without --quick"
        made.append(claim(f"beats_{method}_over_seeds", text, points, above=0, more=more))
    gained = fmean(PUBLISHED["re-ranked"]) - fmean(PUBLISHED["first"])
    text = f"The same on CNN/DailyMail, than BART's own first candidate ({POINTS})"
    needs = "CNN/DailyMail, BART's candidates and roberta-base on a GPU: train.py"
    made.append(claim("published_gain", text, None, above=gained, needs=needs, published=f"{gained:.2f}"))

    programs = {row["program"]: row for row in tables["programs"]}
    precisions = {programs[name]["precision"] for name in PROGRAMS[1:3] if name in programs}
    expected = {
        "01_workers": ("Workers make the training faster", True, None),
        "02_half_precision": ("Half precision makes it faster", True, None if len(precisions) == 2 else "a GPU"),
        "03_checkpointing": ("Checkpointing makes it slower", False, None),
        "04_ordered_once": ("ROUGE once instead of in every epoch makes it faster", True, None),
    }
    for name, (text, faster, needs) in expected.items():
        if name in programs:
            ratio, text = interval(programs[name]["times the one before"]), f"{text} (times the program before)"
            limits = (1, None) if faster else (None, 1)
            made.append(claim(name, text, ratio, above=limits[0], below=limits[1], needs=needs))

    if tables["candidates"]:
        few, many = tables["candidates"][0], tables["candidates"][-1]
        tokens = many["tokens per step"] / few["tokens per step"]
        text = (
            f"{many['candidates']} candidates need as many times the memory of {few['candidates']} as they have tokens "
            f"(times the memory, over {tokens:.2f} times the tokens, within {NEAR:.0%})"
        )
        made.append(claim("memory_by_tokens", text, many["MB"] / few["MB"] / tokens, within=(1 - NEAR, 1 + NEAR)))
        text = f"Checkpointing more than halves the memory of a step with {many['candidates']} candidates (share left)"
        made.append(claim("checkpointing_memory", text, many["of it"], below=0.5))
    return made


def notes(texts: Corpus, model: str) -> list[str]:
    """What the figures rest on. model: of the options."""
    said = [f"{texts.source}: {len(texts.documents)} documents, and {texts.dropped} left out as too short"]
    if texts.source == "docstrings":
        said[0] += "; other machines have other packages, so other documents"
        said.append("training parts of folds overlap, so intervals are somewhat too narrow")
    if model == "medium":
        said.append("the ranking is trained with the encoder small, everything else is measured with medium")
    return said


def main() -> None:
    options, _ = shared.lab_options(__doc__, "simcls", DEFAULTS, add_more=add_candidates)
    quick, hours = options.quick, takes_hours(options.model)
    check_extras(options.model)
    texts = corpus(options.data, SOME)
    kept_rouge(options.data, texts)  # once, here, rather than in the first process that needs it
    lab = shared.measurements("simcls", options, limit_seconds=DAYS_SECONDS if hours else LIMIT_SECONDS)
    measured = shared.Measured(lab)
    rounds = measured.rounds(ROUNDS[quick], {name: partial(measured.one, "speed", name=name) for name in PROGRAMS})
    by_candidates = [measured.one("memory", candidates=count) for count in CANDIDATES[quick]]
    tested = (0,) if texts.is_split else TESTED[quick]
    try:
        runs = [lab.measure("trained", fold=fold, seed=seed) for seed in range(SEEDS[quick]) for fold in tested]
    except NotMeasured as error:
        raise InputError(f"{error} (what was measured is kept: the same command goes on)") from error
    tables = {
        "re_ranking": ranking_rows(runs),
        "against_the_rules": paired_rows(runs, "packages" if texts.source == "docstrings" else "articles"),
        "programs": program_rows(rounds),
        "candidates": [row for row in by_candidates if row],
    }
    made = claims(shared.as_stored(tables), shared.on_gpu(options))
    shared.report(lab.study(tables, made, [*notes(texts, options.model), *measured.notes]), options)


if __name__ == "__main__":
    shared.program(main, claims)
