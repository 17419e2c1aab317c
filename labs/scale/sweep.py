"""Search for good settings with Optuna: learning rate, weight decay, batch size, label smoothing and width.

    python labs/scale/sweep.py --trials 40                              # goes on where an earlier call ended
    python labs/scale/slurm.py --cluster slurm --array 4 -- python labs/scale/sweep.py --trials 40

On some classes of the data, as the published sweep was on 100 of ImageNet's. The tree-structured Parzen estimator
proposes, a pruner ends trials that are worse than others at the same epoch. All processes share one study, Optuna's
journal in --logdir. Settings are compared on a fifth of the training images, which no trial trains on: val/ stays
unseen until one of them has been chosen. Images of these classes alone lie in one file that all processes map into
memory (see 04_cached.py).
Each trial is a TensorBoard run, with its parameters in the HParams tab, which draws its last loss over each of them;
--logdir has all of them in sweep.json.
"""

import argparse
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.device import disable_tf32
from common.options import StepOptions, add_step_options, resolved
from labs.scale.data import Cached, image_folder, normalised, random_crops
from labs.scale.model import DEFAULTS, mobilenet
from labs.scale.preprocess import prepared
from labs.scale.train import Replica
from labs.shared.extras import imported
from labs.shared.training import SEEDS, difference, rising_then_falling
from walkthrough.results.errors import InputError, OneLineParser, add_number, is_out_of_memory, printable
from walkthrough.results.result import check_writable, write_json

import numpy as np
import torch

FILE, JOURNAL, NAME = "sweep.json", "journal.log", "sweep"
TRIALS, EPOCHS, CLASSES = 20, 8, 100
HELD_OUT = 5  # one image in so many
FEW_CLASSES = 10  # with no more, top-5 accuracy says little
WARM_UP_TRIALS, WARM_UP_EPOCHS = 5, 2  # that the pruner lets go on, whatever comes of them
LR, DECAY, SMOOTHING = (1e-3, 1.0), (1e-6, 1e-2), (0.0, 0.2)
BATCH_SIZES, WIDTHS = (16, 32, 64, 128), {"cpu": (8, 24), "cuda": (16, 48)}


@dataclass(frozen=True)
class Settings:
    """What all trials of a study share. metric: what is maximised, of `Replica.validated`."""

    data: str
    classes: int
    image_size: int
    epochs: int
    seed: int
    metric: str


class Subset:
    """The images of the first so many classes: which are trained on, and which are held out; `batch` reads some."""

    def __init__(self, data: Cached, classes: int) -> None:
        self.data, labels = data, np.array(data.labels)
        of_classes = [np.flatnonzero(labels == label) for label in range(classes)]
        self.held_out = np.concatenate([own[::HELD_OUT] for own in of_classes])
        self.train = np.setdiff1d(np.concatenate(of_classes), self.held_out)
        self.labels = torch.from_numpy(labels)

    def batch(self, which: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(uint8 [N, 3, S, S], labels [N]): these images alone are read, and nothing else is in memory."""
        return torch.from_numpy(self.data.images[which]).to(device), self.labels[which].to(device)


def optuna() -> Any:
    """The package, which prints how each trial ended. Raises InputError where it is not installed."""
    return imported("optuna", "scale", "the sweep")


def opened(folder: Path, settings: Settings) -> Any:
    """The study in a folder, made where there is none. Raises InputError where it is broken or has other settings."""
    package, journal = optuna(), folder / JOURNAL
    check_writable(folder)
    try:
        backend = package.storages.journal.JournalFileBackend(str(journal))
        study = package.create_study(
            study_name=NAME, storage=package.storages.JournalStorage(backend), direction="maximize",
            load_if_exists=True, pruner=package.pruners.MedianPruner(WARM_UP_TRIALS, WARM_UP_EPOCHS),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:  # of a line that is no JSON, or not Optuna's
        raise InputError(f"{journal} is damaged ({printable(error, 80)}): remove {folder}, or name another") from error
    theirs = study.user_attrs.get("settings") or asdict(settings)
    study.set_user_attr("settings", theirs)
    if differs := difference(asdict(settings), theirs):
        raise InputError(f"{folder} holds a sweep with {differs}: name another --logdir, or remove it")
    # Processes that begin at the same time would try the same parameters with the same seed.
    seed = settings.seed * SEEDS + 1009 * len(study.trials) + int(os.environ.get("JOB_INDEX", "0"))
    study.sampler = package.samplers.TPESampler(seed=seed, constant_liar=True)
    return study


def suggested(trial: Any, device: str) -> dict[str, Any]:
    """The parameters that a trial tries."""
    low, high = WIDTHS[device.partition(":")[0]]
    return {
        "lr": trial.suggest_float("lr", *LR, log=True),
        "weight_decay": trial.suggest_float("weight_decay", *DECAY, log=True),
        "batch_size": trial.suggest_categorical("batch_size", BATCH_SIZES),
        "label_smoothing": trial.suggest_float("label_smoothing", *SMOOTHING),
        "width": trial.suggest_int("width", low, high, step=8),
    }


def objective(trial: Any, options: StepOptions, data: Subset, settings: Settings) -> float:
    """Run a trial: `settings.metric` of the held-out images at the end. Its curves become a TensorBoard run.

    Raises TrialPruned where it is worse than others, its loss is no number, or there is no memory for it.
    """
    from torch.utils.tensorboard import SummaryWriter  # a second to import

    package, epochs, begin = optuna(), list[dict[str, float]](), time.perf_counter()
    parameters = suggested(trial, options.device)
    with SummaryWriter(str(options.logdir / "trials" / f"{trial.number:04d}")) as events:
        try:
            for row in trained(options, data, settings, parameters):
                epochs.append(row)
                for name, value in row.items():
                    events.add_scalar(name, value, row["epoch"])
                trial.report(row[settings.metric], int(row["epoch"]))
                if trial.should_prune():
                    raise package.TrialPruned(f"worse than others after epoch {row['epoch']}")
            return epochs[-1][settings.metric]
        except Exception as error:
            if not is_out_of_memory(error) and not isinstance(error, package.TrialPruned):
                raise
            reason = printable(error, 80)
            trial.set_user_attr("reason", reason)
            raise package.TrialPruned(reason) from error
        finally:
            trial.set_user_attr("epochs", epochs)
            trial.set_user_attr("seconds", time.perf_counter() - begin)
            if epochs:
                last = {f"last/{name}": value for name, value in epochs[-1].items()}
                events.add_hparams(parameters, last, run_name=".")


def trained(options: StepOptions, data: Subset, settings: Settings, parameters: Mapping[str, Any]) -> Any:
    """Train with these parameters: after each epoch {"epoch", "loss", "validation_loss", "top1_accuracy", …}.

    The last three are of the held-out images. Raises TrialPruned where a loss is no number.
    """
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    replica = Replica(
        mobilenet(f"w{parameters['width']}", settings.classes), device, parameters["lr"],
        weight_decay=parameters["weight_decay"], smoothing=parameters["label_smoothing"],
    )  # fmt: skip
    order, size = np.random.default_rng(options.seed), min(parameters["batch_size"], len(data.train))
    steps = len(data.train) // size
    schedule = rising_then_falling(replica.optimizer, settings.epochs * steps, 0.0, cosine=True)
    for epoch in range(1, settings.epochs + 1):
        replica.module.train()
        losses = torch.zeros((), device=device)
        chosen = order.permutation(data.train)[: steps * size].reshape(steps, size)
        crops = (
            (normalised(random_crops(images, settings.image_size)), labels)
            for images, labels in (data.batch(which, device) for which in chosen)
        )
        for _ in range(steps):
            losses += replica.step(crops)
            schedule.step()
        parts = np.array_split(data.held_out, -(-len(data.held_out) // 256))
        batches = (data.batch(part, device) for part in parts)
        row = {"epoch": epoch, "loss": losses.item() / steps}
        row |= replica.validated((normalised(images), labels) for images, labels in batches)
        if not math.isfinite(row["loss"] + row["validation_loss"]):
            raise optuna().TrialPruned(f"the loss of epoch {epoch} is no number")
        yield row


def summary(study: Any, settings: Settings) -> dict[str, Any]:
    """What sweep.json holds: the settings, all trials, and the best that ran to its end, None without one."""
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value if trial.state.name == "COMPLETE" else None,
            "parameters": trial.params,
            **{name: trial.user_attrs.get(name) for name in ("epochs", "seconds", "reason")},
        }
        for trial in study.get_trials(deepcopy=False)
    ]
    complete = [trial for trial in trials if trial["state"] == "complete"]
    best = max(complete, key=lambda trial: trial["value"], default=None)
    counts = dict(Counter(trial["state"] for trial in trials))
    return {"schema": 2, "settings": asdict(settings), "counts": counts, "best": best, "trials": trials}


def show(result: Mapping[str, Any]) -> None:
    """Print a sweep's result, in a few lines."""
    print(", ".join(f"{count} {state}" for state, count in sorted(result["counts"].items())) + " trials")
    if best := result["best"]:
        last = best["epochs"][-1]
        of = ", ".join(f"{name} {value:.3g}" for name, value in best["parameters"].items())
        print(
            f"best: trial {best['number']}, top-1 {last['top1_accuracy']:.1%}, top-5 {last['top5_accuracy']:.1%}, "
            f"held-out loss {last['validation_loss']:.3f}: {of}"
        )


def options_of(words: Sequence[str] | None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line: (what every program takes, all of it)."""
    parser = OneLineParser(description=__doc__)
    logdir = DEFAULTS.logdir / "sweep"
    add_step_options(
        parser,
        logdir=logdir,
        batch_size=None,
        without=(*DEFAULTS.without, "--model", "--batch-size", "--workers", "--quick", "--stacks"),
        texts={"--logdir": f"folder of this sweep (default: {logdir})"},
        defaults=DEFAULTS,
    )
    add_number(parser, "--trials", "in all, over all calls", 1, 10**6, TRIALS)
    add_number(parser, "--epochs", "of a trial", 1, 10**6, EPOCHS)
    add_number(parser, "--classes", "of the data set, the first so many", 2, 10**6, CLASSES)
    args = parser.parse_args(words)
    return resolved(args, defaults=DEFAULTS), args


def main(words: Sequence[str] | None = None) -> None:
    options, args = options_of(words)
    disable_tf32()
    data = prepared(image_folder(options.data), "cached", options.image_size, classes=args.classes)
    images = Cached(data, "train")
    classes = min(args.classes, len(images.classes))
    data = Subset(images, classes)
    if len(data.train) < max(BATCH_SIZES):
        raise InputError(f"{len(data.train)} training images in {classes} classes: {max(BATCH_SIZES)} are needed")
    settings = Settings(
        images.source, classes, images.images.shape[-1], args.epochs, options.seed,
        "top5_accuracy" if classes > FEW_CLASSES else "top1_accuracy",
    )  # fmt: skip
    study = opened(options.logdir, settings)
    print(
        f"sweep: {len(data.train)} images of {classes} classes of {images.source}, {len(data.held_out)} held out, "
        f"{args.epochs} epochs, {args.trials} trials in all, of which {len(study.trials)} are there",
        flush=True,
    )
    ended = (optuna().trial.TrialState.COMPLETE, optuna().trial.TrialState.PRUNED)
    enough = optuna().study.MaxTrialsCallback(args.trials, states=ended)
    if len(study.get_trials(deepcopy=False, states=ended)) < args.trials:
        study.optimize(lambda trial: objective(trial, options, data, settings), callbacks=[enough])
    result = summary(study, settings)
    write_json(options.logdir / FILE, result)
    show(result)
    print(f"written to {options.logdir}; look at it with: tensorboard --logdir {options.logdir / 'trials'}")


if __name__ == "__main__":
    main()
