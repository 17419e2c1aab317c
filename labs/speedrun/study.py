"""How fast is a network as good as 94 %? Races of a ladder of programs, of further ideas, and of settings of the last.

    python labs/speedrun/study.py            # the whole study: on two CPU cores with digits about half an hour
    python labs/speedrun/study.py --quick    # minutes

Tables: every race; the ladder; ideas added to its last program; batch size x learning rate as a heat map; curves of two
batch sizes at two rates, and of several values of momentum; how many calls of Python an epoch takes; what others
published. Everything is a numbered program, or `ablations.py`, with other words on its command line. The result is
labs/speedrun/study.json in --logdir.
"""

import math
import os
import pstats
import runpy
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from common.device import autocast_dtype, autocast_notes, device_name
from common.options import StepOptions
from labs.shared.images import FOLDS, DataSet
from labs.shared.study import Measured, as_stored, lab_options, measurement, measurements, on_gpu, program, report
from labs.speedrun.ablations import IDEAS
from labs.speedrun.data import SETTINGS, data_set
from labs.speedrun.model import DEFAULTS, width_of
from labs.speedrun.race import FILE, RaceOptions, race_options
from walkthrough.compare.statistics import CONFIDENCE, Mean, Ratio, mean, of_pairs
from walkthrough.compare.study import Claim, Measurements, Row, claim, interval, percent
from walkthrough.results import result
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

import torch
from scipy.stats import binomtest

HERE = Path(__file__).parent
PROGRAMS = tuple(sorted(path.stem for path in HERE.glob("[0-9][0-9]_*.py")))
NAIVE, LAST, PLAIN, MOMENTUM = PROGRAMS[0], PROGRAMS[-1], "04_one_cycle", "05_momentum"
CONSTANT = PROGRAMS[: PROGRAMS.index(PLAIN)]  # programs with a constant learning rate take long
FASTER_RATE = f"{NAIVE}, ten times the rate"
FASTER_EPOCHS = 12  # of the naive program at ten times its rate: a third is plenty
BEFORE = {FASTER_RATE: NAIVE, **dict(zip(PROGRAMS[1:], PROGRAMS, strict=False)), **dict.fromkeys(IDEAS, LAST)}
ROUNDS = {True: {"cpu": 2, "cuda": 2}, False: {"cpu": 5, "cuda": 25}}  # by --quick
CONSTANT_ROUNDS = {True: 1, False: 5}
LAST_RACES = {True: 3, False: 50}  # fewer than 48 cannot show that 19 of 20 reach the target, even if all do
HEAT_BATCHES = {True: (1, 4), False: (0.5, 1, 2, 4)}  # times the default batch size
HEAT_RATES = {True: (0.25, 1, 4), False: (0.125, 0.25, 0.5, 1, 2, 4, 8)}  # times the plan's rate
SEEDS = {True: 2, False: 5}  # of the heat map and the curves: each holds another fifth out
MOMENTA = (0, 0.5, 0.9, 0.97)
SECONDS_LIMIT = 6 * 3600  # of one measurement: naive races on an old GPU take hours
SPEEDUP, SUCCESSES, RUNS = 10, 19, 20  # what this lab has to reach: over 00_naive; races of the last program
EQUAL_POINTS = 1.0  # accuracies that surely differ by less count as equal
FIRST_SECONDS = 10.0  # to 94 % of CIFAR-10: DAWNBench's first

Grid = dict[Any, dict[int, dict[str, Any]]]  # {variant: {seed: its race, as race.json has it}}

# What was published about the time to an accuracy on CIFAR-10; none of it was measured here. DAWNBench: the three
# shortest of CIFAR10/train/ in github.com/stanford-futuredata/dawn-bench-entries (fb27b82), by the first epoch at 94 %
# in their logs. The write-up: a blog's account of a race after them, one run each. airbench: airbench94_muon.py in
# github.com/KellerJordan/cifar10-airbench. Hiverge: the README of github.com/hiverge/cifar10-speedrun.
OFF_THE_CLOCK = "after a whole training off the clock, which compiles"  # both read in the source, main("warmup", model)
PUBLISHED = (  # who, hardware, accuracy %, seconds, epochs, remark
    ("DAWNBench, rank 1: Serrano et al., ml-cifar-10-faster", "8 V100", 94.2, 9.43, 15, "December 2019"),
    ("DAWNBench, rank 2: Arasanipalai, cifar-10-faster", "4 V100", 94.05, 10.66, 13, "January 2020"),
    ("DAWNBench, rank 3: KakaoBrain, torchskeleton", "4 V100", 94.02, 27.98, 33, "October 2019"),
    ("DAWNBench: Page, cifar10-fast, whose ResNet-9 this is", "one V100", 94.08, 74.04, 24, "November 2018"),
    ("the write-up: a replay of the first", "one cloud GPU", 93.9, 61.0, 10, "weight averaging"),
    ("the write-up: its own ResNet-9", "not said", 79.0, 450.0, 10, "at 45 s per epoch"),
    ("the write-up: the same, for longer", "not said", 91.0, 1500.0, None, "about"),
    ("airbench94_muon", "one A100 (400 W)", 94.01, 2.59, 8, f"mean of 200 runs, torch 2.4; {OFF_THE_CLOCK}"),
    ("Hiverge's cifar10_speedrun, from airbench", "one A100", 94.01, 2.015, None, f"mean; {OFF_THE_CLOCK}"),
)
WRITE_UPS_PROFILE = {"program": "the write-up's", "calls": 3_900_000, "s": 41.7}


def words(options: StepOptions, folder: Path, *more: object) -> list[str]:
    """The command line of a program that writes into `folder`: options that it would not choose itself, and more."""
    chosen = DEFAULTS.on(options.device)
    own: list[object] = ["--logdir", folder, "--device", options.device, "--data", options.data]
    own += ["--precision", options.precision]
    own += ["--model", options.model] if options.model != chosen.model else []
    own += ["--batch-size", options.batch_size] if options.batch_size != chosen.batch_size else []
    return [str(word) for word in (*own, *more)]


@measurement
def races(options: StepOptions, runs: Sequence[Sequence[Any]], threads: int = 0) -> list[dict[str, Any]]:
    """A race of each of `runs`, [program, words …], one after the other: its race.json, and "error".

    error: why there was none, in a line; None for a race, also for one that failed. threads: torch's; 0: as it chooses.
    What is compiled is compiled anew in each process, whatever an earlier one has kept.
    """
    if threads:
        torch.set_num_threads(threads)
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a compiler may be writing at the end
    with temporary as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        return [_race(options, Path(folder), name, *more) for name, *more in runs]


def _race(options: StepOptions, folder: Path, name: str, *more: object) -> dict[str, Any]:
    torch.compiler.reset()  # of an earlier network: torch compiles a function for a few of them only
    file = folder / name / FILE
    file.unlink(missing_ok=True)
    error = _run(name, words(options, folder, "--race-only", *more))
    return {**result.read_json(file), "error": None} if file.exists() else {"error": error or "no result"}


def _run(name: str, argv: list[str]) -> str | None:
    """Run a program in this process; why it gave up, in a line, if it did."""
    with patch.object(sys, "argv", [name, *argv]):
        try:
            runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
        except InputError as error:
            return str(error)
        except Exception as error:  # a compiler fails in any way; the others race on
            return f"{type(error).__name__}: {error}"
    return None


@measurement
def python_calls(options: StepOptions, programs: Sequence[str]) -> list[Row]:
    """What cProfile counts in an epoch of each program: calls, and seconds in all of them."""
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for name in programs:
            file = Path(folder) / "cprofile.prof"
            if error := _run(name, words(options, Path(folder), "--epochs", 1, "--cprofile", file)):
                raise InputError(error)
            stats: Any = pstats.Stats(str(file))
            rows.append({"program": f"ours: {name}", "calls": stats.total_calls, "s": stats.total_tt})
    return rows


class Study(Measured):
    """The measurements; `setting`: the options of the last program, which say what is raced on."""

    def __init__(self, lab: Measurements, setting: RaceOptions) -> None:
        super().__init__(lab)
        self.setting, self.plans = setting, SETTINGS[setting.dataset]
        self.processes = usable_cores() if setting.device == "cpu" else 2

    def ladder(self) -> list[Row]:
        """Every race of the programs and of the ideas: round after round, each from a seed of its own."""
        ideas = list(IDEAS)
        if autocast_dtype(self.setting.device, self.setting.precision) == torch.float32:
            ideas.remove("half_precision")  # it would be the same program
        faster = ["--lr", 10 * self.plans.plan(NAIVE).lr, "--epochs", FASTER_EPOCHS]
        slow = {NAIVE: [NAIVE], FASTER_RATE: [NAIVE, *faster], **{name: [name] for name in CONSTANT[1:]}}
        slow = {name: [*run, *(["--stop"] if self.quick else [])] for name, run in slow.items()}
        quick = {name: [name] for name in PROGRAMS[len(CONSTANT) :]}
        added = {idea: ["ablations", "--add", idea] for idea in ideas}
        rows, rounds = list[Row](), ROUNDS[self.quick][self.setting.device.partition(":")[0]]
        for seed in range(rounds):
            for name, run in slow.items() if seed < CONSTANT_ROUNDS[self.quick] else ():
                rows += self._races({name: run}, [seed])  # minutes: each is kept when it is done
            rows += self._races(quick | added, [seed])
        if not any(row["program"] == NAIVE for row in rows):
            raise InputError(f"{NAIVE} did not race: {'; '.join(self.notes)}")
        rows += self._races({LAST: [LAST]}, range(rounds, LAST_RACES[self.quick]))
        order = [*slow, *quick, *added]
        return sorted(rows, key=lambda row: order.index(row["program"]))  # stable: seeds stay in order

    def _races(self, runs: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Row]:
        """Races {name: [program, words …]} from each seed, in one process, as rows."""
        both = [(name, seed) for seed in seeds for name in runs]
        words = [[*runs[name], "--seed", self.options.seed + seed] for name, seed in both]
        answers = list(zip(both, self.one("races", runs=words) or [], strict=False))
        for (name, _), answer in answers:
            if answer["error"]:
                self.note(f"{name} did not race: {answer['error']}")
        return [race_row(name, seed, race) for (name, seed), race in answers if not race["error"]]

    def grid(self, variants: Mapping[Any, Sequence[Any]]) -> Grid:
        """{variant: {seed: its race}} of {variant: [program, words …]}, several processes of one thread at a time.

        On the fifth of the training part that the seed holds out.
        """
        seeds = range(SEEDS[self.quick])
        words = [["--fold", seed % FOLDS, "--seed", self.options.seed + seed] for seed in seeds]
        jobs = [{"runs": [[*run, *more] for run in variants.values()], "threads": 1} for more in words]
        races: Grid = {variant: {} for variant in variants}
        for seed, answer in zip(seeds, self.lab.several("races", jobs, self.processes), strict=True):
            for variant, values in zip(variants, answer or [], strict=False):
                if values["error"]:
                    self.note(f"a race of {variant} was not run: {values['error']}")
                else:
                    races[variant][seed] = values
        return races

    def heat_map(self) -> Grid:
        """Batch size x learning rate of the last program."""
        sizes = [int(factor * self.setting.batch_size) for factor in HEAT_BATCHES[self.quick]]
        cells = [(size, factor * self.setting.lr) for size in sizes for factor in HEAT_RATES[self.quick]]
        return self.grid({(size, lr): [LAST, "--batch-size", size, "--lr", lr] for size, lr in cells})

    def curves(self) -> Grid:
        """Two batch sizes at two learning rates; the write-up's are 128 and 512, for which digits are too few."""
        size = self.setting.batch_size if self.setting.dataset == "digits" else 128
        same = [LAST, "--epochs", max(8, self.setting.epochs)]
        return self.grid(
            {
                f"batch {batch}, rate x {rate}": [*same, "--batch-size", batch, "--lr", rate * self.setting.lr]
                for batch, rate in product((size, 4 * size), (1, 4))
            }
        )

    def momentum(self) -> Grid:
        """Several values of momentum, each at a rate with which a gradient counts as much in the end."""
        same = 10 * self.plans.plan(MOMENTUM).lr  # a gradient counts ten times with momentum 0.9
        return self.grid(
            {f"momentum {m}": [MOMENTUM, "--momentum", m, "--lr", round(same * (1 - m), 6)] for m in MOMENTA}
        )


def race_row(name: str, seed: int, race: Mapping[str, Any]) -> Row:
    """One race, a program's race.json. A failure never reached the target: it has no time."""
    return {
        "program": name, "seed": seed, "epochs": race["epochs_to_target"], "s to target": race["seconds_to_target"],
        "failure": race["failure"] or "", "accuracy at the end %": 100 * race["accuracies"][-1],
    }  # fmt: skip


def median(values: Sequence[float | None]) -> float | None:
    """Of times to the target, None for a failure, which is longer than any other: None where half of them failed."""
    middle = statistics.median(math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def speedup(rows: Sequence[Row], slower: str | None, faster: str) -> Ratio | float | None:
    """Seconds to the target of one over the other's, from the seeds with which both reach it; a number if it is one."""
    of = [{row["seed"]: row["s to target"] for row in rows if row["program"] == name} for name in (slower, faster)]
    ratios = [of[0][seed] / seconds for seed, seconds in of[1].items() if seconds and of[0].get(seed)]
    return of_pairs(ratios) if len(ratios) > 1 else ratios[0] if ratios else None


def outcome(rows: Sequence[Row], name: str) -> Row:
    """A row of one program's races: how many, how many reached the target, medians over all of them, accuracy.

    "speed-up": over the program before it; of an idea, over the last program, which it is added to.
    """
    own = [row for row in rows if row["program"] == name]
    seconds = [row["s to target"] for row in own]
    return {
        "program": name, "races": len(own), "reached it": len(own) - seconds.count(None),
        "epochs": median([row["epochs"] for row in own]), "s to target": median(seconds),
        "accuracy at the end %": percent([row["accuracy at the end %"] / 100 for row in own]),
        "speed-up": speedup(rows, BEFORE.get(name), name),
        "speed-up over 00_naive": speedup(rows, NAIVE, name) if name != NAIVE else None,
    }  # fmt: skip


def heat_rows(cells: Grid) -> list[Row]:
    """{(batch size, learning rate): {seed: race}} as rows; a run that diverged counts as an accuracy of 0."""
    rows = list[Row]()
    for (batch_size, lr), by_seed in sorted(cells.items()):
        done, failed = list(by_seed.values()), sum(race["failure"] == "diverged" for race in by_seed.values())
        if done:
            accuracy = {"accuracy %": percent([race["accuracies"][-1] for race in done])}
            failures = {"failures": f"{failed} of {len(done)} diverged" if failed else ""}
            rows.append({"batch size": batch_size, "learning rate": lr} | accuracy | failures)
    return rows


def curve_rows(races: Grid) -> list[Row]:
    """Loss and accuracy by epoch, means over the seeds that did not diverge, of which "seeds" says how many."""
    rows = list[Row]()
    for name, by_seed in races.items():
        done = [race for race in by_seed.values() if race["failure"] != "diverged"]
        for epoch in range(min((len(race["losses"]) for race in done), default=0)):
            loss = {"training loss": mean([race["losses"][epoch] for race in done])}
            accuracy = {"accuracy %": percent([race["accuracies"][epoch] for race in done])}
            rows.append({"variant": name, "epoch": epoch + 1, "seeds": len(done)} | loss | accuracy)
    return rows


def difference_row(races: Grid, one: str, other: str) -> Row:
    """By how many points `other` ends more accurate than `one`, seed by seed, where neither diverged."""
    both = [(race, races[other].get(seed)) for seed, race in races[one].items() if race["failure"] != "diverged"]
    points = [100 * (b["accuracies"][-1] - a["accuracies"][-1]) for a, b in both if b and b["failure"] != "diverged"]
    return {"from": one, "to": other, "points more at the end": mean(points) if points else None}


def published_rows(ladder: Sequence[Row], setting: RaceOptions) -> list[Row]:
    """What others published, and our first and last program."""
    rows = [(who, "CIFAR-10", *rest) for who, *rest in PUBLISHED]
    for row in ladder:
        if row["program"] in (NAIVE, LAST):
            ours = (setting.dataset, device_name(setting.device), 100 * setting.target, row["s to target"])
            remark = f"median; {row['reached it']} of {row['races']} races reached it"
            rows.append((f"ours: {row['program']}", *ours, row["epochs"], remark))
    head = ("who", "data", "on", "accuracy %", "s", "epochs", "remark")
    return [Row(zip(head, row, strict=True)) for row in rows]


EXPECTED = {  # {program, or idea: what was expected of it over the one before, or over the last program}
    "01_tensors": "Images that are prepared once, as tensors, are faster",
    "02_on_device": "Augmentation on the device is faster than image by image",
    "03_resnet9": "ResNet-9 is faster than the naive network",
    "04_one_cycle": "One cycle of the learning rate is faster than a constant rate",
    "05_momentum": "Momentum is faster than plain SGD",
    "06_channels_last": "Channels last is faster than torch's own order",
    "07_lookahead": "An average of the weights is faster",
    "08_test_time_views": "Tests on several views are faster",
    "half_precision": "Half precision is faster",
    "compile": "Compiled, the same is faster, compiling aside",
    "whitening": "A first layer that is computed, whitening, is faster",
    "bias_only": "Batch norm without a learned factor is faster",
    "celu": "CELU is faster than ReLU",
    "label_smoothing": "Label smoothing is faster",
}


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was to be reached, what was expected of each program, and what the write-up says."""
    races, ladder = tables["races"], tables["ladder"]
    last, reached, count = (ladder[-1][name] for name in ("program", "reached it", "races"))
    seconds = {row["program"]: row["s to target"] for row in ladder}
    spent = [f"{seconds.get(name) or math.nan:.3g} s" for name in (NAIVE, FASTER_RATE, last)]
    in_time = sum(row["program"] == last and (row["s to target"] or math.inf) < FIRST_SECONDS for row in races)
    raced_for_real = on_gpu and tables["setting"][0]["data"] == "cifar10"
    rows = [
        _of_speedup("rate", f"Ten times the learning rate alone makes {NAIVE} faster: {spent[0]}, then {spent[1]} "
                    "(speed-up)", speedup(races, NAIVE, FASTER_RATE)),
        _of_speedup("over-faster-rate", f"All programs together, up to {last}, are faster than that, too: {spent[1]}, "
                    f"then {spent[2]} (speed-up)", speedup(races, FASTER_RATE, last)),
        _of_speedup("all", f"All programs together are {SPEEDUP} times as fast as {NAIVE} at its own rate: {spent[0]}, "
                    f"then {spent[2]} (speed-up)", speedup(races, NAIVE, last), SPEEDUP),
        claim("reliable", f"{last} reaches the target in {SUCCESSES} of {RUNS} races ({reached} of {count}; share)",
              share(reached, count), above=(SUCCESSES - 0.5) / RUNS),
        claim("record", f"Most races reach 94 % of CIFAR-10 in less than {FIRST_SECONDS:g} s, as DAWNBench's first on "
              "8 V100 (share)", share(in_time, count) if raced_for_real else None, above=0.5,
              needs=None if raced_for_real else "a GPU and CIFAR-10"),
    ]  # fmt: skip
    for name, text in EXPECTED.items():
        needs = "a GPU" if name == "half_precision" and not on_gpu else None
        rows.append(_of_speedup(name, f"{text} (speed-up)", speedup(races, BEFORE[name], name), needs=needs))
    points = {(row["from"], row["to"]): interval(row["points more at the end"]) for row in tables["differences"]}
    for (one, other), difference in points.items():
        if other.startswith("momentum"):
            text = f"{other.capitalize()} ends more accurate than {one} at ten times the rate (points)"
            rows.append(claim("momentum", text, difference, above=0))
        else:
            text = f"{other} ends as accurate as {one}, within {EQUAL_POINTS} points (difference)"
            rows.append(claim("linear-scaling", text.capitalize(), difference, within=(-EQUAL_POINTS, EQUAL_POINTS)))
    return rows


def share(successes: int, count: int) -> Mean:
    """A share (0..1), and its exact 95 % interval (Clopper-Pearson): of few it is wide, even if all succeed."""
    exact = binomtest(successes, count).proportion_ci(CONFIDENCE)
    return Mean(successes / count, exact.low, exact.high, count)


def _of_speedup(name: str, text: str, value: Ratio | float | None, over: float = 1, needs: str | None = None) -> Claim:
    """A claim that a `speedup` is more than `over`; a single pair does not decide it."""
    return claim(name, text, value, above=over, needs=needs, more="more races" if isinstance(value, float) else None)


def setting_row(setting: RaceOptions, data: DataSet) -> Row:
    """What is raced on, and how much of an accuracy is chance: its binomial standard error with so many test images."""
    error = math.sqrt(setting.target * (1 - setting.target) / len(data.test))
    return {
        "data": data.source, "target %": 100 * setting.target, "training images": len(data.train),
        "test images": len(data.test), "standard error of the target, points": 100 * error,
        "image px": setting.image_size, "network": setting.model, "batch": setting.batch_size,
    }  # fmt: skip


def notes_of(setting: RaceOptions, data: DataSet) -> list[str]:
    """What the figures rest on, and what this device cannot show."""
    notes = [
        "the clock stops at the first test that reaches the target, as in DAWNBench, which is optimistic; the accuracy "
        "after the last epoch is next to it",
        "the heat map and the curves are of training in one thread, in several processes at a time, on validation "
        "images: a fifth of the training part, another one for each seed",
    ]
    if data.source == "digits":
        notes.append(
            "digits are scikit-learn's, the UCI test set, without their writers: the test images are a random third of "
            "each digit, the same for all programs, so writers are in both parts; and digits are not mirrored"
        )
    if setting.device == "cpu":
        notes += autocast_notes("cpu", setting.precision)
        notes.append("no GPU: nothing is copied to a device, and nothing waits for one")
    return notes


def main() -> None:
    options, _ = lab_options(__doc__, "speedrun", DEFAULTS)
    width_of(options.model)
    setting = race_options(None, HERE / f"{LAST}.py", argv=words(options, options.logdir))
    data = data_set(setting)
    study = Study(measurements("speedrun", options, limit_seconds=SECONDS_LIMIT), setting)
    raced = study.ladder()
    heat, curves, momentum = heat_rows(study.heat_map()), study.curves(), study.momentum()
    one, *_, four = curves
    differences = [difference_row(curves, one, four), difference_row(momentum, "momentum 0", "momentum 0.9")]
    calls = study.one("python_calls", programs=PROGRAMS[:3]) or []
    outcomes = [outcome(raced, name) for name in dict.fromkeys(row["program"] for row in raced)]
    ladder = [row for row in outcomes if row["program"] not in IDEAS]
    tables = {
        "setting": [setting_row(setting, data)], "ladder": ladder, "ablations": outcomes[len(ladder) :],
        "published": published_rows(ladder, setting), "heat_map": heat, "curves": curve_rows(curves),
        "momentum": curve_rows(momentum), "differences": differences, "calls": [WRITE_UPS_PROFILE, *calls],
        "races": raced,
    }  # fmt: skip
    checked = claims(as_stored(tables), on_gpu(options))
    report(study.lab.study(tables, checked, [*notes_of(setting, data), *study.notes]), options)


if __name__ == "__main__":
    program(main, claims)
