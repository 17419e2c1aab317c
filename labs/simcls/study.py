"""The study of re-ranking: does it choose better summaries, what do 16 candidates cost, and what makes them cheaper?

Trains on folds of the packages and tests on the one that is left out; runs the numbered programs, interleaved;
measures the loader by itself, and the memory of a step by the number of candidates. Writes study.json, prints tables.
"""

from dataclasses import replace
from pathlib import Path

from labs.shared.study import lab_options, measurements, report
from labs.simcls import documents, rouge, tables
from labs.simcls.data import check_extras
from labs.simcls.model import DEFAULTS
from walkthrough.compare.study import Measurements, NotMeasured, Row
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

PROGRAMS = ("00_baseline", "01_workers", "02_half_precision", "03_checkpointing", "04_ordered_once")
CANDIDATES = (1, 2, 4, 8, 16)
CHOSEN_ON = 1  # the fold whose packages the encoder was chosen on: they are never tested
FOLDS = {True: (0, 2, 3), False: tuple(fold for fold in range(documents.FOLDS) if fold != CHOSEN_ON)}  # by --quick
SEEDS = {True: 1, False: 3}
ROUNDS = {True: 2, False: 5}


def main() -> None:
    options = lab_options(__doc__, "simcls", DEFAULTS)
    check_extras(options.model)
    texts = documents.corpus(options.data, options.download)
    rouge.kept_rouge(options.data, texts)  # once, here, rather than in the first process that needs it
    options = replace(options, download=False)
    lab = measurements("simcls", options, Path(__file__).with_name("measure.py"))
    try:
        quick = options.quick
        runs, not_run = measured_programs(lab, ROUNDS[quick])
        memory = measured_memory(lab)
        loading = measured_loading(lab)
        folds = [lab.measure("trained", fold=fold, seed=seed) for seed in range(SEEDS[quick]) for fold in FOLDS[quick]]
    except NotMeasured as error:
        raise InputError(f"{error} (what was measured is kept: the same command goes on)") from error
    in_order = {
        "re_ranking": tables.ranking_rows(folds),
        "against_the_rules": tables.paired_rows(folds),
        "folds": tables.fold_rows(folds),
        "curves": tables.curve_rows(folds),
        "programs": tables.program_rows(runs),
        "loading": loading,
        "candidates": tables.memory_rows(memory),
    }
    claims = [*tables.ranking_claims(folds), *tables.program_claims(runs), *tables.memory_claims(memory)]
    report(lab.study(in_order, claims, [*tables.notes(folds, runs, options.model), *not_run]), options)


def measured_programs(lab: Measurements, rounds: int) -> tuple[tables.Runs, list[str]]:
    """{program: its result.json of each round}, and why a program could not be run."""
    runs: tables.Runs = {name: [] for name in PROGRAMS}
    not_run = {}
    for number in range(1, rounds + 1):
        for name in PROGRAMS:
            if name in not_run:
                continue
            try:
                runs[name].append(lab.measure("program", name=name, run=number))
            except NotMeasured as error:
                not_run[name] = str(error)
                runs.pop(name)
    return runs, [f"{name} was not run: {why}" for name, why in not_run.items()]


def measured_memory(lab: Measurements) -> tables.Memory:
    """{candidates: (as it is, checkpointed)}; None for what does not fit."""

    def one(candidates: int, checkpointed: bool) -> dict | None:
        try:
            return lab.measure("memory", candidates=candidates, checkpointed=checkpointed)
        except NotMeasured as error:
            if "out of memory" not in str(error):
                raise
            return None

    return {candidates: (one(candidates, False), one(candidates, True)) for candidates in CANDIDATES}


def measured_loading(lab: Measurements) -> list[Row]:
    """Documents per second of the loader alone, by its workers."""
    most = max(2, min(8, usable_cores()))
    return [
        {
            "workers": workers,
            "documents/s, ROUGE when loaded": lab.measure("loading", workers=workers, ordered_once=False),
            "documents/s, ROUGE once": lab.measure("loading", workers=workers, ordered_once=True),
        }
        for workers in (0, 1, 2, 4, 8)
        if workers <= most
    ]


if __name__ == "__main__":
    main()
