"""What makes fine-tuning a transformer fast, which trick saves memory, and what that costs in accuracy.

    python labs/transformer/study.py            # full size: on a GPU DistilBERT's own
    python labs/transformer/study.py --quick    # a few minutes on two CPU cores

Speeds of the numbered programs in interleaved rounds, each over the one before; padding; memory, here and predicted for
a T4; workers; whole trainings, their minutes and accuracies. The result is labs/transformer/study.json in --logdir.
"""

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

from common.device import autocast_notes, empty_cache
from common.options import StepOptions
from common.program import captured, peak_bytes, timed, words_of
from labs.shared.extras import imported
from labs.shared.study import (
    Measured,
    as_stored,
    lab_options,
    ladder_rows,
    measurement,
    measurements,
    on_gpu,
    program,
    report,
)
from labs.transformer import train
from labs.transformer.batches import FixedPadding, Packing, padding_share
from labs.transformer.data import PARTS, texts, training_set
from labs.transformer.model import DEFAULTS
from walkthrough.compare.statistics import Mean, Ratio, mean, ratio
from walkthrough.compare.study import Claim, Row, claim, interval, percent
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.tracker import MemoryTracker
from walkthrough.results.capture import Capture, Program
from walkthrough.results.capture import captured as captured_as
from walkthrough.results.errors import is_out_of_memory, printable

import torch

PROGRAMS = train.PROGRAMS
ROUNDS, SEEDS = {True: 3, False: 5}, {True: 2, False: 3}  # by --quick
BATCHES_SEEN = 150  # of an epoch, from which padding is taken
LIMIT_SECONDS = 6 * 3600  # of one measurement
T4 = {"model": "base", "precision": "fp16", "batch_size": 32}  # what is predicted: a T4 has no bf16

# Whole trainings: the baseline program and the last one before compiling, which minutes do not pay for; and what of the
# tricks changes what is learned. {name: (program, the options that differ, epochs)}
BEFORE, AFTER, SORTED = "00_baseline", train.LAST, train.OF_ANY_MODEL
RANDOM, UNIFORM, BIGGER, HALF = "random batches", "uniform length", "bigger batch", "half precision"
LONGER = "uniform length, bigger batch, for longer"
SMALL = {"batch_size": 8, "precision": "fp32"}
TRAININGS: Mapping[str, tuple[str, dict[str, Any], int]] = {
    BEFORE: (BEFORE, {}, 1),
    AFTER: (AFTER, {}, 1),
    RANDOM: (AFTER, SMALL, 1),
    UNIFORM: (SORTED, SMALL, 1),
    BIGGER: (AFTER, {"precision": "fp32"}, 1),
    HALF: (AFTER, {**SMALL, "precision": "half"}, 1),
    LONGER: (SORTED, {"precision": "fp32"}, 3),
}
TRAINED = {True: (BEFORE, AFTER), False: tuple(TRAININGS)}

MINUTES_BEFORE, MINUTES_AFTER = 35, 10  # published: DistilBERT, one T4, 150,000 texts, one run, no spread
SPEED_UP = MINUTES_BEFORE / MINUTES_AFTER
POINTS = 2.0  # accuracies that differ by fewer percentage points are "kept"
WORDS, PUNCTUATED, COMMONEST = "bag of words", "bag of words and punctuation", "commonest class"
BAGS = {WORDS: r"\w+", PUNCTUATED: r"\w+|[^\w\s]+"}  # {name: what counts as a word}


def attempted(measure: Callable[[], Any], device: str) -> Any:
    """What measure() returns; {"failed": why} where it cannot be done here. Nothing of it is left in memory."""
    gc.freeze()  # what is there already is not searched for cycles again
    try:
        return measure()
    except Exception as error:  # a compiler that is missing, memory that is too small: the others are measured
        return {"failed": "out of memory" if is_out_of_memory(error) else printable(error, 200)}
    finally:
        torch.compiler.reset()
        gc.collect()
        gc.unfreeze()
        empty_cache(torch.device(device))


def words_for(options: StepOptions) -> list[str]:
    """The command line of a program."""
    return [*words_of(options, options.workers), *(["--quick"] if options.quick else [])]


@measurement
def speeds(options: StepOptions, run: int) -> dict[str, Any]:
    """{program: the real tokens/s of its windows, or {"failed": why}}: one round. run: its number, and the seed."""
    own = replace(options, seed=options.seed + run)

    def tokens(name: str) -> list[float]:
        speed = timed(captured(PROGRAMS[name], words_for(own)), None, own.quick).tokens_per_second
        return speed.windows if speed else []

    return {name: attempted(partial(tokens, name), own.device) for name in PROGRAMS}


@measurement
def loads(options: StepOptions) -> dict[str, Any]:
    """{program: {"padding": share of its tokens, "peak_bytes": of a step on its heaviest batch}}, or why it failed."""

    def load(name: str) -> dict[str, Any]:
        of = captured(PROGRAMS[name], words_for(replace(options, workers=0)))
        padding = padding_share(list(islice(of.loader, BATCHES_SEEN)), of.loader.dataset.pad_id)
        return {"padding": padding, "peak_bytes": peak_bytes(of, heaviest_batch(of))}

    return {name: attempted(partial(load, name), options.device) for name in PROGRAMS}


def heaviest_batch(of: Program) -> Sequence[torch.Tensor]:
    """The batch of an epoch with the longest text, or, packed, with the most tokens: memory has to be there for it."""
    data, size, order = of.loader.dataset, of.loader.batch_size, list(of.loader.sampler)
    batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    if not isinstance(of.loader.collate_fn, FixedPadding):  # whose batches are all alike
        tokens = sum if isinstance(of.loader.collate_fn, Packing) else max
        batches.sort(key=lambda batch: -tokens(data.lengths[number] for number in batch))
    return of.loader.collate_fn([data[number] for number in batches[0]])


@measurement
def predicted(options: StepOptions) -> dict[str, Any]:
    """{program: peak bytes of a step of `T4` on a GPU, predicted on fake tensors, for the heaviest batch of an epoch}.

    Compiled code may hold less than predicted, so it is left out; by --quick so are those whose memory is another's.
    """
    own = replace(options, device="cpu", workers=0, quick=False, **T4)

    def peak(name: str) -> int:
        batch = heaviest_batch(captured(PROGRAMS[name], words_of(replace(own, model="tiny", precision="auto"))))
        tracker = MemoryTracker()
        with fake_gpu(tracker, []):
            # The exception holds the locals of the program's main(), its optimizer among them.
            reached = captured_as(PROGRAMS[name], words_of(own), Capture(as_on_gpu=True))
            gc.collect()
            tracker.begin()
            fake = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in batch]
            tracker.mark("inputs", fake)
            for _ in range(2):  # in the second one the optimizer's state is there
                gc.collect()  # what only a cycle holds is not memory that a step needs
                tracker.reset_peak()
                reached.program.train_step(*fake)
                tracker.mark_state()
        return tracker.peak_bytes

    left_out = ("11", "02", "07", "08", "10") if options.quick else ("11",)
    return {name: attempted(partial(peak, name), "cpu") for name in PROGRAMS if not name.startswith(left_out)}


@measurement
def trained(options: StepOptions, name: str, run: int) -> dict[str, Any]:
    """What a whole training gives: see `train.train`. name: one of `TRAININGS`; run: the round, and the seed."""
    base, changed, epochs = TRAININGS[name]
    own = replace(options, seed=options.seed + run, **changed)
    if own.precision == "half":  # on a CPU autocast may stay off unless its dtype is named
        own = replace(own, precision="bf16" if options.device == "cpu" else "auto")
    return train.train(own, texts(own), base, epochs) | {"epochs": epochs}


@measurement
def bags(options: StepOptions) -> dict[str, float]:
    """{name: share of the test texts classified right}, by what is simpler than a transformer, on all training texts.

    A bag: TF-IDF of what `BAGS` names, and logistic regression, its regularisation chosen on the validation texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    of = texts(options)
    labels = {part: [one.label for one in getattr(of, part)] for part in PARTS}
    accuracies = {}
    for name, pattern in BAGS.items():
        rare = 2 if len(of.train) > 1000 else 1
        vectorizer = TfidfVectorizer(min_df=rare, sublinear_tf=True, token_pattern=pattern)
        vectorizer.fit([one.text for one in of.train])
        inputs: Any = {part: vectorizer.transform([one.text for one in getattr(of, part)]) for part in PARTS}
        models = [LogisticRegression(C=c, max_iter=1000).fit(inputs["train"], labels["train"]) for c in (3, 10, 30)]
        best = max(models, key=lambda model: model.score(inputs["validation"], labels["validation"]))
        accuracies[name] = float(best.score(inputs["test"], labels["test"]))
    commonest = statistics.mode(labels["train"])
    return {**accuracies, COMMONEST: labels["test"].count(commonest) / len(labels["test"])}


# Tables


def program_rows(
    rounds: Mapping[int, Mapping[str, Any]], loaded: Mapping[str, Any], peaks: Mapping[str, Any]
) -> list[Row]:
    """The numbered programs: real tokens/s and memory, over the baseline and over the program before."""
    windows = {
        name: {number: run[name] for number, run in rounds.items() if isinstance(run.get(name), list)}
        for name in PROGRAMS
    }
    memory = {name: None if isinstance(peak := peaks.get(name), Mapping) else peak for name in PROGRAMS}
    one_before, rows = dict(pairwise(reversed(PROGRAMS))), ladder_rows(windows, "tokens/s")
    for row in rows:
        load, peak = loaded.get(row["program"], {}), memory[row["program"]]
        before = memory.get(one_before.get(row["program"], ""))
        row["padding %"] = None if "padding" not in load else 100 * load["padding"]
        row["peak MB here"] = None if "peak_bytes" not in load else load["peak_bytes"] / 1e6
        row["peak GB predicted for a T4"] = peak and peak / 1e9
        row["memory, times the one before"] = peak / before if peak and before else None
    return rows


def minutes_rows(trainings: Mapping[str, Mapping[int, dict[str, Any]]], count: int) -> list[Row]:
    """Minutes of a whole training, before and after: as published, and here. count: training texts here."""
    published = {"machine": "one T4, published", "texts": 150_000}
    rows: list[Row] = [
        {"training": "before", **published, "minutes": MINUTES_BEFORE, "times as fast": None, "test accuracy %": None},
        {"training": "after", **published, "minutes": MINUTES_AFTER, "times as fast": SPEED_UP},
    ]
    speed = {name: {number: [1 / run["seconds"]] for number, run in runs.items()} for name, runs in trainings.items()}
    for name in (BEFORE, AFTER):
        if runs := trainings.get(name):
            rows.append(
                {
                    "training": f"train.py --program {name}",
                    "machine": "here, an epoch",
                    "texts": count,
                    "minutes": mean([run["seconds"] / 60 for run in runs.values()]),
                    "times as fast": None if name == BEFORE else ratio(speed[name], speed[BEFORE]),
                    "test accuracy %": percent([run["accuracy"] for run in runs.values()]),
                }
            )
    return rows


def quality_rows(trainings: Mapping[str, Mapping[int, dict[str, Any]]], simpler: Mapping[str, float]) -> list[Row]:
    """Accuracy on held-out files, means over seeds, of trainings that differ in one trick; and of what is simpler."""
    rows: list[Row] = []
    reference = trainings.get(RANDOM, {})
    for name, runs in trainings.items():
        if name == AFTER:  # it is the bigger batch's, but for the precision
            continue
        both = [] if name in (RANDOM, LONGER) else sorted(set(runs) & set(reference))
        points = [100 * (runs[number]["accuracy"] - reference[number]["accuracy"]) for number in both]
        rows.append(
            {
                "trained with": name,
                "seeds": len(runs),
                "epochs": next(iter(runs.values()))["epochs"],
                "test accuracy %": percent([run["accuracy"] for run in runs.values()]),
                "points more than random batches": mean(points) if points else None,
                "test loss": mean([run["loss"] for run in runs.values()]),
            }
        )
    return rows + [
        {"trained with": f"{name}, all training texts", "test accuracy %": 100 * accuracy}
        for name, accuracy in simpler.items()
    ]


# Claims


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was published, or expected, next to what was measured: from the tables as they are stored.

    What a CPU's arithmetic decides is decided here: padding, attention, passes over parts. Half precision without
    hardware for it, copies, and a loader that is faster than any CPU's training are for a GPU.
    """
    rows = {row["program"][:2]: row for row in tables.get("programs", ())}
    gpu = None if on_gpu else "a GPU"

    def of(number: str, column: str) -> Ratio | float | None:
        cell = rows.get(number, {}).get(column)
        value = interval(cell)
        return cell if value is None or isinstance(value, Mean) else value

    def share(column: str, number: str, other: str) -> float | None:
        sizes = [of(one, column) for one in (number, other)]
        return None if None in sizes else sizes[0] / sizes[1]  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]

    base, before, here, t4 = "times the baseline", "times the one before", "peak MB here", "peak GB predicted for a T4"
    quality = {row["trained with"]: row for row in tables.get("quality", ())}

    def points(name: str) -> Any:
        return interval(quality.get(name, {}).get("points more than random batches"))

    def more_than(bag: str) -> Mean | None:
        ours = interval(quality.get(LONGER, {}).get("test accuracy %"))
        theirs = quality.get(f"{bag}, all training texts", {}).get("test accuracy %")
        if not isinstance(ours, Mean) or theirs is None or ours.low is None or ours.high is None:
            return None
        return Mean(ours.mean - theirs, ours.low - theirs, ours.high - theirs, ours.count)

    minutes = {row["training"]: row for row in tables.get("minutes", ())}
    whole = interval(minutes.get(f"train.py --program {AFTER}", {}).get("times as fast"))
    published = f"about {MINUTES_BEFORE} to {MINUTES_AFTER} minutes"
    kept = f"by less than {POINTS:g} percentage points (points more)"
    return [
        claim("padding", "Most of what the baseline computes is padding, % of tokens", of("00", "padding %"), above=50),
        claim("sorted", "Batches of texts of about one length are faster than the baseline (08, times its tokens/s)",
              of("08", base), above=1),
        claim("packed", "Packing several texts into a row is faster than the baseline (09, times its tokens/s)",
              of("09", base), above=1),
        claim("published", f"The published tricks for speed gain {SPEED_UP:g} times (03, times the baseline)",
              of("03", base), published=published, above=SPEED_UP, needs=None if on_gpu else "a GPU with 16-bit units"),
        claim("all", f"All tricks together gain as much (the last program, {SPEED_UP:g} times the baseline at least)",
              of("11", base), above=SPEED_UP),
        claim("whole", f"A whole training takes as much less time (train.py --program {AFTER}, times as fast)",
              whole, above=SPEED_UP),
        claim("half-time", "Half the precision, half the time: mixed precision is 1.8 times as fast at least (01)",
              of("01", before), published="faster", above=1.8, needs=None if on_gpu else "a GPU with 16-bit units"),
        claim("half-memory", "Mixed precision saves no memory, to within 5 % (01, of the baseline's peak, predicted)",
              share(here if on_gpu else t4, "01", "00"), within=(0.95, 1.05), published="no less memory", needs=gpu),
        claim("workers", "Workers and pinned memory are faster (02, times 01)", of("02", before), above=1, needs=gpu,
              published="faster"),
        claim("bigger-batch", "A bigger batch is faster (03, times 02)", of("03", before), above=1, published="faster"),
        claim("accumulation-time", "Gradient accumulation is slower than the whole batch (04, times 03)",
              of("04", before), below=1, published="not faster"),
        claim("accumulation-memory", "Accumulation holds less memory (04, of the peak of 03)",
              share(here, "04", "03"), below=0.95, published="less memory"),
        claim("checkpointing-time", "Gradient checkpointing is slower (05, times 04)", of("05", before), below=1,
              published="not faster"),
        claim("checkpointing-memory", "Checkpointing holds less memory (05, of the peak of 04)",
              share(here, "05", "04"), below=0.95, published="less memory"),
        claim("sdpa", "Fused attention is faster than checkpointed eager attention (06, times 05)",
              of("06", before), above=1),
        claim("sdpa-memory", "Fused attention holds less memory than eager (06, of the peak of 04)",
              share(here, "06", "04"), below=0.95),
        claim("dynamic", "Dynamic padding is faster (07, times 06)", of("07", before), above=1),
        claim("uniform", "Uniform length is faster than dynamic padding (08, times 07)", of("08", before), above=1),
        claim("packing", "Packing is faster than uniform length (09, times 08)", of("09", before), above=1),
        claim("fused", "Fused AdamW is faster (10, times 09)", of("10", before), above=1),
        claim("compile", "torch.compile is faster, once it has compiled (11, times 10)", of("11", before), above=1),
        claim("uniform-accuracy", f"Uniform length changes accuracy {kept}", points(UNIFORM), within=(-POINTS, POINTS)),
        claim("bigger-accuracy", f"The bigger batch at the same learning rate changes it {kept}",
              points(BIGGER), within=(-POINTS, POINTS)),
        claim("half-accuracy", f"Half precision changes it {kept}", points(HALF), within=(-POINTS, POINTS)),
        claim("bag", f"A DistilBERT without pretraining, trained for longer, beats a {WORDS} (points more)",
              more_than(WORDS), above=0),
        claim("bag-punctuation", f"A DistilBERT without pretraining beats a {PUNCTUATED} (points more)",
              more_than(PUNCTUATED), above=0),
    ]  # fmt: skip


def main() -> None:
    options, _ = lab_options(__doc__, "transformer", DEFAULTS)
    imported("transformers", "transformer", "this study")
    imported("sklearn", "transformer", "the bag of words of this study")
    train_set, classes = training_set(options)  # it refuses data and models that are none, and collects texts
    lab = Measured(measurements("transformer", options, limit_seconds=LIMIT_SECONDS))
    quick = options.quick
    rounds = lab.rounds(ROUNDS[quick], {"programs": partial(lab.one, "speeds")}).get("programs", {})
    trainings = lab.rounds(SEEDS[quick], {name: partial(lab.one, "trained", name=name) for name in TRAINED[quick]})
    loaded, peaks = lab.one("loads") or {}, lab.one("predicted") or {}
    tables: dict[str, list[Row]] = {
        "programs": program_rows(rounds, loaded, peaks),
        "minutes": minutes_rows(trainings, len(train_set)),
        "quality": quality_rows(trainings, lab.one("bags") or {}),
    }
    for name, why in failures(*rounds.values(), loaded, peaks):
        lab.note(f"{name} was not run: {why}")
    notes = [
        f"{len(train_set)} training texts ({train_set.source}, {len(classes)} classes), of "
        f"{statistics.fmean(train_set.lengths):.0f} tokens in the mean, half of at most "
        f"{statistics.median(train_set.lengths):.0f}, cut at {train_set.length}",
        *notes_of(options),
        *lab.notes,
    ]
    report(lab.lab.study(tables, claims(as_stored(tables), on_gpu(options)), notes), options)


def failures(*measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(Program, why) of each that could not be measured."""
    every = [item for values in measured for item in values.items()]
    return [(name, row["failed"]) for name, row in every if isinstance(row, Mapping) and "failed" in row]


def notes_of(options: StepOptions) -> list[str]:
    """What the figures rest on, and what this device cannot show."""
    predicted = (
        f"predicted: DistilBERT's own size, mixed precision as fp16, batches of 8, bigger ones of "
        f"{T4['batch_size']}; the batch of an epoch with the most tokens; compiling is not predicted"
    )
    if options.device != "cpu":
        return [predicted]
    off = (
        "half precision of the trainings is bf16; in the programs autocast is off, as this CPU has no AMX, so 01 "
        "changes nothing: --precision bf16 turns it on"
    )
    return [
        predicted,
        *([off] if autocast_notes("cpu", options.precision) else []),
        "no GPU: pinned memory has no effect",
        "no GPU: a peak here is what a step allocates on top of weights and optimizer state",
    ]


if __name__ == "__main__":
    program(main, claims)
