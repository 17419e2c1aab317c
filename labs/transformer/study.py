"""What makes fine-tuning a transformer fast, which trick saves memory, and what that costs in accuracy.

    python labs/transformer/study.py            # full size: on a GPU DistilBERT's own, on two CPU cores 40 minutes
    python labs/transformer/study.py --quick    # a few minutes on two CPU cores

Speeds of the numbered programs in interleaved rounds, each over the one before; padding; memory, here and predicted for
a T4; whole trainings, their minutes and accuracies. The result is labs/transformer/study.json in --logdir.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

from common.device import autocast_notes, empty_cache
from common.options import StepOptions
from common.program import captured, peak_bytes, timed, words_of
from labs.shared import study as shared
from labs.shared.extras import imported
from labs.transformer import train
from labs.transformer.batches import Packing, padding_share
from labs.transformer.data import texts, training_set
from labs.transformer.model import DEFAULTS
from walkthrough.compare.statistics import mean, ratio
from walkthrough.compare.study import Claim, Row, claim, percent
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.predict import train_twice
from walkthrough.memory.tracker import MemoryTracker
from walkthrough.results.capture import Capture, Program
from walkthrough.results.capture import captured as captured_as
from walkthrough.results.errors import is_out_of_memory, printable

import torch
from torch.utils.data import DataLoader

PROGRAMS = train.PROGRAMS
ROUNDS, SEEDS = {True: 2, False: 5}, {True: 2, False: 4}  # by --quick
BATCHES_SEEN = 150  # of an epoch, from which padding is taken
LIMIT_SECONDS = 6 * 3600  # of one measurement
T4 = {"model": "base", "precision": "fp16", "batch_size": 32}  # what is predicted: a T4 has no bf16

# Whole trainings, of an epoch: the baseline, the last program before compiling, which does not pay for so short a
# training, and what of the tricks changes what is learned. {name: (program, the options that differ)}
BEFORE, AFTER = "00_baseline", train.LAST
RANDOM, UNIFORM, ALL = "random batches", "uniform length", "all tricks, bigger batch"
TRAININGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    RANDOM: (BEFORE, {}),
    ALL: (AFTER, {}),
    UNIFORM: (train.OF_ANY_MODEL, {"batch_size": 8, "precision": "fp32"}),
}
TRAINED = {True: (RANDOM, ALL), False: tuple(TRAININGS)}
CPU_TEXTS = 4000  # that a CPU trains on: an epoch of all takes the baseline 11 minutes on two cores

MINUTES_BEFORE, MINUTES_AFTER = 35, 10  # published: DistilBERT, one T4, 150,000 texts, one run, no spread
SPEED_UP = MINUTES_BEFORE / MINUTES_AFTER
POINTS = 2.0  # accuracies that differ by fewer percentage points are "kept"


def attempted(measure: Callable[[], Any], device: str) -> Any:
    """What measure() returns; {"failed": why} where it cannot be done here. Nothing of it is left in memory."""
    try:
        return measure()
    except Exception as error:  # a compiler that is missing, memory that is too small: the others are measured
        return {"failed": "out of memory" if is_out_of_memory(error) else printable(error, 200)}
    finally:
        torch.compiler.reset()
        empty_cache(torch.device(device))


@shared.measurement
def speeds(options: StepOptions, run: int) -> dict[str, Any]:
    """{program: the real tokens/s of its windows, or {"failed": why}}: one round. run: its number, and the seed."""
    own = replace(options, seed=options.seed + run)

    def tokens(name: str) -> list[float]:
        speed = timed(captured(PROGRAMS[name], train.words_for(own)), None, own.quick).tokens_per_second
        return speed.windows if speed else []

    return {name: attempted(partial(tokens, name), own.device) for name in PROGRAMS}


@shared.measurement
def loads(options: StepOptions) -> dict[str, Any]:
    """{program: {"padding": share of its tokens, "peak_bytes": of a step on its heaviest batch}}, or why it failed."""

    def load(name: str) -> dict[str, Any]:
        of = captured(PROGRAMS[name], train.words_for(replace(options, workers=0)))
        padding = padding_share(list(islice(of.loader, BATCHES_SEEN)), of.loader.dataset.pad_id)
        return {"padding": padding, "peak_bytes": peak_bytes(of, heaviest_batch(of))}

    return {name: attempted(partial(load, name), options.device) for name in PROGRAMS}


def heaviest_batch(of: Program) -> Sequence[torch.Tensor]:
    """The batch of an epoch with the longest text, or, packed, with the most tokens: memory has to be there for it."""
    data, size, order = of.loader.dataset, of.loader.batch_size, list(of.loader.sampler)
    collate = of.loader.collate_fn
    batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    if isinstance(collate, Packing) or not collate.length:  # else all batches are alike
        tokens = sum if isinstance(collate, Packing) else max
        batches.sort(key=lambda batch: -tokens(data.lengths[number] for number in batch))
    return collate([data[number] for number in batches[0]])


@shared.measurement
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
            loader: Any = DataLoader([batch], batch_size=None)  # pyright: ignore[reportArgumentType]
            train_twice(replace(reached.program, loader=loader), tracker, loader.batch_size)
        return tracker.peak_bytes

    left_out = ("10", "02", "07", "08") if options.quick else ("10",)
    return {name: attempted(partial(peak, name), "cpu") for name in PROGRAMS if not name.startswith(left_out)}


@shared.measurement
def trained(options: StepOptions, name: str, run: int) -> dict[str, Any]:
    """What an epoch gives: see `train.train`. name: of `TRAININGS`. run: the round, and the seed."""
    program, changed = TRAININGS[name]
    own = replace(options, seed=options.seed + run, **changed)
    return train.train(own, texts(own), program, epochs=1, most=None if shared.on_gpu(options) else CPU_TEXTS)


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
    one_before, rows = dict(pairwise(reversed(PROGRAMS))), shared.ladder_rows(windows, "tokens/s")
    for row in rows:
        load, peak = loaded.get(row["program"], {}), memory[row["program"]]
        before = memory.get(one_before.get(row["program"], ""))
        row["padding %"] = None if "padding" not in load else 100 * load["padding"]
        row["peak MB here"] = None if "peak_bytes" not in load else load["peak_bytes"] / 1e6
        row["peak GB predicted for a T4"] = peak and peak / 1e9
        row["memory, times the one before"] = peak / before if peak and before else None
    return rows


def minutes_rows(trainings: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[Row]:
    """Minutes of a whole training, before and after: as published, and of an epoch here, means over seeds."""
    published = {"machine": "one T4, published", "texts": 150_000}
    rows: list[Row] = [
        {"training": "before", **published, "minutes": MINUTES_BEFORE, "times as fast": None, "test accuracy %": None},
        {"training": "after", **published, "minutes": MINUTES_AFTER, "times as fast": SPEED_UP},
    ]
    speed = {name: {number: [1 / run["seconds"]] for number, run in runs.items()} for name, runs in trainings.items()}
    for name, program in ((RANDOM, BEFORE), (ALL, AFTER)):
        if runs := trainings.get(name):
            rows.append(
                {
                    "training": f"train.py --program {program}",
                    "machine": "here, an epoch",
                    "texts": next(iter(runs.values()))["trained_on"],
                    "minutes": mean([run["seconds"] / 60 for run in runs.values()]),
                    "times as fast": None if name == RANDOM else ratio(speed[name], speed.get(RANDOM, {})),
                    "test accuracy %": percent([run["accuracy"] for run in runs.values()]),
                }
            )
    return rows


def quality_rows(trainings: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[Row]:
    """Accuracy on held-out files, means over seeds, of trainings that differ from the baseline in a trick."""
    rows: list[Row] = []
    reference = trainings.get(RANDOM, {})
    for name, runs in trainings.items():
        both = [] if name == RANDOM else sorted(set(runs) & set(reference))
        points = [100 * (runs[number]["accuracy"] - reference[number]["accuracy"]) for number in both]
        rows.append(
            {
                "trained with": name,
                "seeds": len(runs),
                "test accuracy %": percent([run["accuracy"] for run in runs.values()]),
                "points more than random batches": mean(points) if points else None,
                "test loss": mean([run["loss"] for run in runs.values()]),
            }
        )
    return rows


# Claims


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was published, or expected, next to what was measured: from the tables as they are stored.

    What a CPU's arithmetic decides is decided here: padding, attention, passes over parts. Half precision without
    hardware for it, copies, and a loader that is faster than any CPU's training are for a GPU.
    """
    names = {name[:2]: name for name in PROGRAMS}
    gpu = None if on_gpu else "a GPU"

    def of(number: str, column: str) -> Any:
        return shared.cell(tables, "programs", column, program=names.get(number))

    def share(column: str, number: str, other: str) -> float | None:
        sizes = of(number, column), of(other, column)
        return None if None in sizes else sizes[0] / sizes[1]

    def points(name: str) -> Any:
        return shared.cell(tables, "quality", "points more than random batches", **{"trained with": name})

    base, before, here, t4 = "times the baseline", "times the one before", "peak MB here", "peak GB predicted for a T4"
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
              of("10", base), above=SPEED_UP),
        claim("whole", f"A whole training takes as much less time (train.py --program {AFTER}, times as fast)",
              shared.cell(tables, "minutes", "times as fast", training=f"train.py --program {AFTER}"), above=SPEED_UP),
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
        claim("uniform", "Uniform length is faster than dynamic padding (08, times 07)", of("08", before), above=1),
        claim("packing", "Packing is faster than uniform length (09, times 08)", of("09", before), above=1),
        claim("compile", "torch.compile is faster, once it has compiled (10, times 09)", of("10", before), above=1),
        claim("uniform-accuracy", f"Uniform length changes accuracy {kept}", points(UNIFORM), within=(-POINTS, POINTS)),
        claim("all-accuracy", f"All tricks, with a bigger batch at the same rate, change accuracy {kept}",
              points(ALL), within=(-POINTS, POINTS)),
    ]  # fmt: skip


def main() -> None:
    options, _ = shared.lab_options(__doc__, "transformer", DEFAULTS)
    imported("transformers", "transformer", "this study")
    train_set, classes = training_set(options)  # it refuses data and models that are none, and collects texts
    lab = shared.Measured(shared.measurements("transformer", options, limit_seconds=LIMIT_SECONDS))
    quick = options.quick
    rounds = lab.rounds(ROUNDS[quick], {"programs": partial(lab.one, "speeds")}).get("programs", {})
    trainings = lab.rounds(SEEDS[quick], {name: partial(lab.one, "trained", name=name) for name in TRAINED[quick]})
    loaded, peaks = lab.one("loads") or {}, lab.one("predicted") or {}
    tables: dict[str, list[Row]] = {
        "programs": program_rows(rounds, loaded, peaks),
        "minutes": minutes_rows(trainings),
        "quality": quality_rows(trainings),
    }
    for name, result in (item for measured in (*rounds.values(), loaded, peaks) for item in measured.items()):
        if isinstance(result, Mapping) and "failed" in result:
            lab.note(f"{name} was not run: {result['failed']}")
    labels = [example.label for example in train_set.examples]
    notes = [
        f"{len(train_set)} training texts ({train_set.source}, {len(classes)} classes, the most frequent has "
        f"{labels.count(statistics.mode(labels)) / len(labels):.0%} of them), of "
        f"{statistics.fmean(train_set.lengths):.0f} tokens on average, median "
        f"{statistics.median(train_set.lengths):.0f}, truncated at {train_set.length}",
        f"predicted: DistilBERT's own size, mixed precision as fp16, batches of 8, bigger ones of {T4['batch_size']}; "
        "the batch of an epoch with the most tokens; compiling is not predicted",
    ]
    if not shared.on_gpu(options):
        notes.append(
            "no GPU: pinned memory has no effect, and a peak here is what a step allocates on top of weights and "
            f"optimizer state; whole trainings see {CPU_TEXTS} texts at most, other ones with each seed"
        )
        if autocast_notes("cpu", options.precision):
            notes.append("no AMX: autocast is off in the programs, so 01 changes nothing: --precision bf16 turns it on")
    stored = shared.as_stored(tables)
    shared.report(lab.lab.study(tables, claims(stored, shared.on_gpu(options)), [*notes, *lab.notes]), options)


if __name__ == "__main__":
    shared.program(main, claims)
