"""How fast is a network as good as 94 %? A ladder of races, the settings around its end, and what profilers say.

    python labs/speedrun/study.py            # the whole study: on a CPU with digits about an hour
    python labs/speedrun/study.py --quick    # minutes on two CPU cores

Tables: the ladder of programs, with every race; accuracy against time; batch size x learning rate as a heat map;
curves; ablations; what a network remembers of the last images; the naive program under two profilers; the published
rows. The result is labs/speedrun/study.json in --logdir, next to heat_map.svg. `heads.py` then writes
what each program reached into its head.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.device import autocast_notes, device_name
from labs.shared.images import DataSet
from labs.shared.study import Measured, lab_options, measurements, report
from labs.speedrun import tables
from labs.speedrun.data import data_set
from labs.speedrun.measure import SGD, options_of
from labs.speedrun.model import DEFAULTS, width_of
from labs.speedrun.plans import SETTINGS
from labs.speedrun.race import RaceOptions
from labs.speedrun.tables import FASTER_RATE, LAST, NAIVE, PROGRAMS, Races, race_of
from walkthrough.compare.figures import heat_map_figure, save
from walkthrough.compare.study import Measurements, NotMeasured, Row
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

CONSTANT = PROGRAMS[:4]  # programs with a constant learning rate: long, so each has a process of its own
SCHEDULED = PROGRAMS[4:-1]
LEFT_OUT = (  # of the ladder, by --quick
    "01_tensors", "02_on_device", "06_label_smoothing", "07_half_precision", "08_channels_last", "10_ghost_norm",
    "11_celu",
)  # fmt: skip
FASTER_EPOCHS = 12  # of the naive program at ten times its rate: a third is plenty
CONSTANT_ROUNDS = {True: 1, False: 5}
ROUNDS = {True: {"cpu": 2, "cuda": 2}, False: {"cpu": 5, "cuda": 25}}  # of programs with a schedule
LAST_RACES = {True: {"cpu": 3, "cuda": 3}, False: {"cpu": 20, "cuda": 25}}
HEAT_BATCHES = {True: (1, 4), False: (0.5, 1, 2, 4)}  # times the default batch size
HEAT_RATES = {True: (0.25, 1, 4), False: (0.125, 0.25, 0.5, 1, 2, 4, 8)}  # times the plan's rate
HEAT_SEEDS = {True: 1, False: 3}
ABLATION_SEEDS = {True: 2, False: 8}
CURVE_SEEDS, CURVE_EPOCHS = {True: 2, False: 5}, {True: 4, False: 8}
REMEMBERED_SEEDS = {True: 2, False: 8}
SECONDS_LIMIT = 6 * 3600  # of one measurement: naive races on an old GPU take hours
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "SGD instead of Muon, its plan": {"muon": False},
    "no momentum": {"muon_momentum": 0.0, "momentum": 0.0},
    "ReLU": {"activation": "relu"},
    "GELU": {"activation": "gelu"},
    "batch norm over the whole batch": {"ghost": 0},
    "batch norm with a factor": {"scale": True},
    "no whitening": {"whitening": False},
    "no label smoothing": {"label_smoothing": 0.0},
    "no weight decay": {"weight_decay": 0.0},
    "no Lookahead": {"lookahead": False},
    "one view": {"views": False},
    "no cutout": {"cutout": False},
    "no shift": {"shift": False},
}
MIRRORING = {"not mirrored": {"flip": False}}  # where images may be


class Study(Measured):
    """The measurements."""

    def __init__(self, lab: Measurements, setting: RaceOptions, data: DataSet) -> None:
        super().__init__(lab)
        self.setting, self.data = setting, data
        self.processes = usable_cores() if setting.device == "cpu" else 2

    def races(self) -> Races:
        """{program: {seed: its race}}, interleaved: round after round, each from a seed of its own."""
        found: Races = {}
        kind = self.setting.device.partition(":")[0]
        stop = ["--stop"] if self.quick else []
        for seed in range(ROUNDS[self.quick][kind]):
            constant = seed < CONSTANT_ROUNDS[self.quick]
            for program in CONSTANT if constant else ():
                if not (self.quick and program in LEFT_OUT):
                    self._race(found, [program], [seed], stop)
            if constant:
                lr = 10 * SETTINGS[self.setting.dataset].plan(NAIVE).lr
                faster = [*stop, "--lr", str(lr), "--epochs", str(FASTER_EPOCHS)]
                self._race(found, [NAIVE], [seed], faster, FASTER_RATE)
            scheduled = [program for program in SCHEDULED if not (self.quick and program in LEFT_OUT)]
            self._race(found, scheduled, [seed])
            if not self.quick:
                self._race(found, [LAST], [seed])
        more = range(len(found.get(LAST, {})), LAST_RACES[self.quick][kind])
        if more:
            self._race(found, [LAST], list(more))
        if NAIVE not in found:
            raise InputError(f"{NAIVE} did not race: {'; '.join(self.notes)}")
        order = [NAIVE, FASTER_RATE, *PROGRAMS[1:]]
        return {name: found[name] for name in order if name in found}

    def _race(
        self, found: Races, programs: Sequence[str], seeds: list[int], changes: Sequence[str] = (), name: str = ""
    ) -> None:
        try:
            settings = {"programs": list(programs), "seeds": seeds, "changes": list(changes)}
            answers = self.lab.measure("races", **settings)
        except NotMeasured as error:
            self.note(f"{', '.join(programs)} did not race: {error}")
            return
        for answer in answers:
            if answer["error"]:
                self.note(f"{answer['program']} did not race: {answer['error']}")
            else:
                race = race_of(answer)
                found.setdefault(name or race.program, {})[race.seed] = race

    def heat_map(self) -> list[Row]:
        """Batch size x learning rate, on validation images: in several processes at a time."""
        plan = SETTINGS[self.setting.dataset].plan(SGD)
        rates = [factor * plan.lr for factor in HEAT_RATES[self.quick]]
        sizes = [int(factor * self.setting.batch_size) for factor in HEAT_BATCHES[self.quick]]
        jobs = [
            {"batch_size": size, "seed": seed, "lrs": rates} for seed in range(HEAT_SEEDS[self.quick]) for size in sizes
        ]
        cells: dict[tuple[int, float], list[float | None]] = {}
        answers = self._several("heat_row", jobs)
        for job, answer in zip(jobs, answers, strict=True):
            for lr, accuracy in zip(rates, answer["accuracies"] if answer else (), strict=answer is not None):
                cells.setdefault((job["batch_size"], lr), []).append(accuracy)
        seconds = sum(answer["seconds"] for answer in answers if answer) / self.processes
        self.note(
            f"the heat map is of {sum(map(len, cells.values()))} races, about {seconds / 60:.1f} minutes in "
            f"{self.processes} processes at a time"
        )
        return tables.heat_rows(cells)

    def ablations(self) -> list[Any]:
        """For each seed: {variant: what came of it}."""
        variants = VARIANTS | (MIRRORING if self.data.mirrors else {})
        jobs = [{"seed": seed, "variants": variants} for seed in range(ABLATION_SEEDS[self.quick])]
        return [answer for answer in self._several("ablated", jobs) if answer]

    def curves(self) -> list[Any]:
        """For each seed: {variant: its curves}, of two batch sizes at two learning rates."""
        size = self.setting.batch_size if self.data.source == "digits" else 128
        epochs = (
            CURVE_EPOCHS[self.quick] if self.data.source == "digits" else SETTINGS[self.data.source].plan(SGD).epochs
        )
        variants = {
            f"batch {batch * size}, rate x {rate}": {"batch_size": batch * size, "lr_times": rate, "epochs": epochs}
            for batch in (1, 4)
            for rate in (1, 4)
        }
        jobs = [{"seed": seed, "variants": variants} for seed in range(CURVE_SEEDS[self.quick])]
        return [answer for answer in self._several("curves", jobs) if answer]

    def remembered(self) -> list[Any]:
        """For each seed: by epoch, what is remembered of images by when they were seen."""
        jobs = [{"seed": seed} for seed in range(REMEMBERED_SEEDS[self.quick])]
        return [answer for answer in self._several("remembered", jobs) if answer]

    def profile(self) -> dict[str, Any]:
        """The naive program under both profilers; {} where that failed."""
        try:
            return self.lab.measure("profiled", program=NAIVE)
        except NotMeasured as error:
            self.note(f"{NAIVE} was not profiled: {error}")
            return {}

    def _several(self, what: str, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        answers = self.lab.several(what, jobs, self.processes)
        if missing := sum(answer is None for answer in answers):
            self.note(f"{missing} of {len(answers)} measurements of {what.replace('_', ' ')} failed")
        return answers


def setting_rows(setting: RaceOptions, data: DataSet) -> list[Row]:
    """What is raced on, and how much of an accuracy is chance: its binomial standard error with so many test images."""
    error = math.sqrt(setting.target * (1 - setting.target) / len(data.test))
    return [
        {
            "data": data.source,
            "target %": 100 * setting.target,
            "training images": len(data.train),
            "test images": len(data.test),
            "standard error of the target, points": 100 * error,
            "image px": setting.image_size,
            "network": setting.model,
            "batch": setting.batch_size,
        }
    ]


def profile_rows(profile: dict[str, Any]) -> list[Row]:
    """How many calls cProfile counted in how many seconds, next to the write-up's."""
    from labs.speedrun import published

    ours = {"profile": "ours: one epoch of 00_naive", "calls": profile["calls"], "s": profile["seconds"]}
    return [
        {"profile": "the write-up's", "calls": int(published.PROFILE_CALLS), "s": published.PROFILE_SECONDS},
        ours,
    ]


def notes_of(setting: RaceOptions, data: DataSet) -> list[str]:
    """What the figures rest on, and what this device cannot show."""
    notes = [
        "the clock stops at the first test that reaches the target, as in DAWNBench, which is optimistic; the accuracy "
        "after the last epoch is next to it",
        "ablations, the heat map and curves are of training in one thread, in several processes at a time: their "
        "seconds compare within a table only",
        "programs with a schedule race one after the other in one process, and so do the last program's races after "
        "the rounds, all others in one of their own: only where a program compiles are its first steps more than a "
        "process's beginning",
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
    options = lab_options(__doc__, "speedrun", DEFAULTS)
    width_of(options.model)
    setting = options_of(options, 0)
    data = data_set(setting)
    study = Study(
        measurements("speedrun", options, Path(__file__).with_name("measure.py"), SECONDS_LIMIT), setting, data
    )
    races = study.races()
    heat, ablations, curves, remembered = study.heat_map(), study.ablations(), study.curves(), study.remembered()
    profile = study.profile()
    ladder = tables.ladder_rows(races)
    in_order = {
        "setting": setting_rows(setting, data),
        "ladder": ladder,
        "published": tables.published_rows(ladder, setting.target, device_name(setting.device), data.source),
        "heat_map": heat,
        "ablations": tables.ablation_rows(ablations) if ablations else [],
        "curves": tables.curve_rows(curves) if curves else [],
        "remembered": tables.remembered_rows(remembered) if remembered else [],
        "profiles": profile_rows(profile) if profile else [],
        "cprofile": profile.get("functions", []),
        "torch_profiler": profile.get("operators", []),
        "races": tables.race_rows(races),
        "pareto": tables.pareto_rows(races),
    }
    claims = tables.claims(races, ablations, curves, remembered)
    result = study.lab.study(in_order, claims, [*notes_of(setting, data), *study.notes])
    if rows := result.tables["heat_map"]:
        figure = heat_map_figure(rows, "learning rate", "batch size", "accuracy %", "failures")
        save(figure, options.logdir / "heat_map.svg")
    report(result, options)


if __name__ == "__main__":
    main()
