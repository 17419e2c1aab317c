"""Every trick for fine-tuning a transformer, alone and together: what it gains in speed, in memory, and what it costs.

    python labs/transformer/study.py            # full size: on a GPU DistilBERT's own
    python labs/transformer/study.py --quick    # a few minutes on two CPU cores

Speeds of the numbered programs and of each trick alone, in interleaved rounds; padding; memory, here and predicted for
a T4; workers; quality at a fixed number of tokens, and the noise of gradients; what `explain` says of three traces. The
result is labs/transformer/study.json in --logdir.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.device import autocast_notes
from common.options import StepOptions
from labs.shared.extras import imported
from labs.shared.study import lab_options, measurements, report
from labs.transformer import audit, quality, tables
from labs.transformer.data import training_set
from labs.transformer.model import DEFAULTS
from walkthrough.compare.study import Measurements, NotMeasured
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

ROUNDS, LOADING_ROUNDS, SEEDS = {True: 3, False: 5}, {True: 1, False: 4}, {True: 2, False: 3}  # by --quick
WORKERS = {True: (0, 2, 4), False: (0, 1, 2, 4, 8)}
QUALITY = {True: (quality.RANDOM, quality.UNIFORM), False: tuple(quality.VARIANTS)}
EXPLAINED = {True: ("00_baseline",), False: ("00_baseline", "03_bigger_batch", "10_fused_adamw")}
LIMIT_SECONDS = 6 * 3600  # of one measurement
PROCESSES = 8  # at a time, at most: each takes a GB of memory


def main() -> None:
    options = lab_options(__doc__, "transformer", DEFAULTS)
    imported("transformers", "transformer", "this study")
    imported("sklearn", "transformer", "the bag of words of this study")
    training_set(options)  # once, here: it refuses data and models that are none, and collects texts
    options = replace(options, download=False)
    lab = measurements("transformer", options, Path(__file__).with_name("measure.py"), LIMIT_SECONDS)
    try:
        study = measured(lab)
    except NotMeasured as error:
        raise InputError(f"{error} (what was measured is kept: the same command goes on)") from error
    report(study, options)


def measured(lab: Measurements) -> Any:
    """The study. Raises NotMeasured."""
    quick = lab.options.quick
    parts = [{"part": part} for part in ("predicted", "memory", "simpler", "padding")]  # the longest first
    predicted, memory, simpler, padding = several(lab, "once", parts)
    rounds = [lab.measure("speeds", run=run) for run in range(1, ROUNDS[quick] + 1)]
    loading: dict[int, list[Any]] = {workers: [] for workers in WORKERS[quick]}
    for run in range(1, LOADING_ROUNDS[quick] + 1):
        for row in lab.measure("loading", workers=list(loading), run=run):
            loading[row["workers"]].append(row)
    wanted = [*QUALITY[quick], "noise"]
    # One process for all is quicker; one for each loses less where hours of training are cut off.
    groups = [wanted] if quick else [[name] for name in wanted]
    trained: dict[str, list[Any]] = {name: [] for name in wanted}
    trainings = [{"seed": seed, "wanted": group} for seed in range(SEEDS[quick]) for group in groups]
    trainings.sort(key=lambda own: own["wanted"] != [quality.LONGER])  # these first, as they take longest
    for results in several(lab, "seeded", trainings):
        for name, result in results.items():
            trained[name].append(result)
    noise = trained.pop("noise")
    explained = {name: lab.measure("explained", name=name) for name in EXPLAINED[quick]}
    in_order = {
        "programs": tables.program_rows(rounds, memory, predicted, padding),
        "alone": tables.alone_rows(rounds, memory, predicted),
        "yes_no": tables.yes_no_rows(rounds, predicted),
        "padding": tables.padding_rows(padding),
        "workers": tables.worker_rows(loading),
        "quality": tables.quality_rows(trained, simpler),
        "noise": tables.noise_rows(noise),
        "explained": tables.explained_rows(explained),
        "memory_by_trick": tables.memory_rows(predicted),
        "lengths": tables.length_rows(padding),
        "padding_per_batch": tables.padding_curve_rows(padding),
    }
    claims = [
        *audit.speed_claims(rounds),
        *audit.memory_claims(predicted),
        *audit.loading_claims(loading),
        *audit.quality_claims(trained),
        *audit.bag_claims(trained, simpler["accuracy"]),
        *audit.noise_claims(noise),
    ]
    return lab.study(in_order, claims, [*tables.notes(rounds, padding, simpler), *notes_of(lab.options)])


def several(lab: Measurements, what: str, settings: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What takes no time that counts: on a CPU in several processes at a time. Raises NotMeasured."""
    answers = lab.several(what, settings, min(usable_cores(), PROCESSES) if lab.options.device == "cpu" else 1)
    # What failed is tried again by itself, which says why.
    return [
        lab.measure(what, **own) if answer is None else answer for own, answer in zip(settings, answers, strict=True)
    ]


def notes_of(options: StepOptions) -> list[str]:
    """What this device cannot show."""
    if options.device != "cpu":
        return []
    off = (
        "mixed precision alone is bf16; in the numbered programs autocast is off, as this CPU has no AMX, so there it "
        "changes nothing: --precision bf16 turns it on"
    )
    return [
        *([off] if autocast_notes("cpu", "bf16") else []),
        "no GPU: pinned memory has no effect",
        "no GPU: a peak here is what a step allocates on top of weights and optimizer state",
    ]


if __name__ == "__main__":
    main()
